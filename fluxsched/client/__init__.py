"""Clients of an instance, and how one is found."""
