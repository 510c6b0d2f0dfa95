"""Queries about jobs: selections, listings, attributes, results. Reads only."""
