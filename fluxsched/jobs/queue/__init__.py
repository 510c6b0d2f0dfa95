"""Queues of jobs (RFC 33): configuration, limits, and the jobs that wait in them."""
