"""The simulation: a trace through the production scheduler on virtual time."""
