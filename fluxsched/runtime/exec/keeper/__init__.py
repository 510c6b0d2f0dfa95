"""The process that is the parent of all tasks, and outlives the instance; and how both talk to each other."""
