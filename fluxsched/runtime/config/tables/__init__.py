"""Tables of the configuration that have a concern of their own, one a file."""
