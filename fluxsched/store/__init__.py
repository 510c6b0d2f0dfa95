"""The loop of an instance: turns, the store that they wait for, and what happens when either fails."""
