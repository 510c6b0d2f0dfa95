"""Plugins in the engine: gates before the queue, verdicts before the pass, starts within it, permits after."""
