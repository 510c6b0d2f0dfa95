"""Moves of targets: between groups, into and out of the inventory, and back to their groups after a restart."""
