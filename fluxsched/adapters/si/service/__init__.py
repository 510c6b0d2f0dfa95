"""The scheduler interface over gRPC: the service."""
