"""Engines: what exists already (Slurm, Flux, ssh) starts a keeper on each host of an instance (rfc/engines.md)."""
