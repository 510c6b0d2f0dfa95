"""A tree of queues with quotas: guarantees, maxima and limits, what is used, and whose turn it is."""
