"""A scheduler module: its session without I/O, and the process that hosts it."""
