"""The files that Flux loads, and the only ones that import it."""
