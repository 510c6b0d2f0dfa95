"""Leases: jobs of this instance that run in another one; their states, jobspecs and mirrored targets."""
