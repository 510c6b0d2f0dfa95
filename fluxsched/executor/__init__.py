"""Executors on one host: the keeper, which outlives the instance, and the tasks that it starts."""
