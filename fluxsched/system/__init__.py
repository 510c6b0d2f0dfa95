"""Access to this machine, each part in one place: clock, loop, files, logs and processes."""
