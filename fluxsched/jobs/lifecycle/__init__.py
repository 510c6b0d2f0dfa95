"""Lifecycle of jobs from submit to inactive: turns of events in, effects out."""
