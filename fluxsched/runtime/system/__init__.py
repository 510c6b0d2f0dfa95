"""What is known of this machine's clock, files, directories, logs and processes, each in one place."""
