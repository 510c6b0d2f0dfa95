"""Parts that both sides of the scheduler interface over gRPC share, and the clients' side: addresses, certificates,
calls.
"""
