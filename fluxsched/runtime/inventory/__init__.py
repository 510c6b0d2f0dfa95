"""Where the resources of an instance come from."""
