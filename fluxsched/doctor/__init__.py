"""What `fluxsched doctor` looks at: what is installed, which homes work, and the directories of instances."""
