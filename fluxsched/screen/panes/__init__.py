"""The parts of the screen, each drawn line by line; they know nothing of the instance."""
