"""Leases: jobs of this instance that run in another one (rfc/clusters.md). Pure state, no I/O."""
