"""What moves targets: between groups, into and out of the inventory, and back to their places after a restart."""
