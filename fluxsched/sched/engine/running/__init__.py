"""Running jobs that change their size: what becomes of events and decisions, and the growing at the end of a pass."""
