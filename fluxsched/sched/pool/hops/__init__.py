"""Targets that are near each other: switches over the targets of a pool, what fits under each, and where a job goes."""
