"""Executors: what makes a job's tasks happen once its resources are its own."""
