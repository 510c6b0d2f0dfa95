"""How jobs go from submit to inactive: turns of events in, effects out."""
