"""Services as stock Flux clients know them, at the local socket."""
