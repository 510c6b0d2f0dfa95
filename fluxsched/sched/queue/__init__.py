"""Waiting jobs and their orders."""
