"""A scheduler module as a process of its own."""
