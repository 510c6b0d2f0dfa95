"""Messages to one resource manager: answers, demands, events."""
