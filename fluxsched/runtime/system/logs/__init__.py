"""Logs: how lines are written, and the logs of instances that have ended."""
