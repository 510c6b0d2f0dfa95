"""RFC 3 messages between peers and services."""
