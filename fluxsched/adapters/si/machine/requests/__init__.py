"""Requests of a resource manager, item by item: read, refused or done."""
