"""A tree of queues with quotas, as other resource managers have it."""
