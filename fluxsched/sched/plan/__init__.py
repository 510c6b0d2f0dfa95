"""When waiting jobs can start if running jobs end by their limits: reservations, and what they rest on."""
