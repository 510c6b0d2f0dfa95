"""State of the targets: inventory, properties, groups, presence, drains, and which of them jobs hold."""
