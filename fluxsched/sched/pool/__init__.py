"""The free resources of one group of targets, and the search for places."""
