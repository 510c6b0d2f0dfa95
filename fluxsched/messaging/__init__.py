"""RFC 3 messages between peers and services: router, peers and their limits, keys, listening."""
