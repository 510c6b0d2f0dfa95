"""Traces: what a simulation is fed with, read, written and generated."""
