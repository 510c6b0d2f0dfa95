"""What is known of this machine, each in one place: clock, loop, files, logs and processes."""
