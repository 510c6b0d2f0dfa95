"""What jobs hold: one of them, an elastic one and its sizes, and what must hold of all."""
