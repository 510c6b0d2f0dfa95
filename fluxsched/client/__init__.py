"""Clients of an instance, blocking and asynchronous, and how an instance is found."""
