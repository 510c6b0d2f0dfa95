"""What goes to one resource manager: answers, demands, events and container states."""
