"""What is free in one group of targets, and where a request goes."""
