"""What an instance keeps on disk: the form of its file, older forms, checks, backups."""
