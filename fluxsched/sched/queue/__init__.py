"""Who waits, and in which order."""
