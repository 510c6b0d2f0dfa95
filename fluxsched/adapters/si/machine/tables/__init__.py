"""What is known of one resource manager: its partitions, nodes, applications, asks and allocations."""
