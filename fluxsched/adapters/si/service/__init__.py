"""The scheduler interface over gRPC: addresses, clients, and the service."""
