"""Targets without cores: amounts of any kinds, each target with its own, ordered by the share that is free."""
