"""Reservations: when waiting jobs can start if running jobs end by their limits."""
