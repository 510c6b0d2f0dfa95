"""What goes to one resource manager: answers, demands, events."""
