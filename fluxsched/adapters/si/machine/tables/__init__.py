"""Tables of one resource manager, as rows: nodes, applications, asks, allocations; and how values are read."""
