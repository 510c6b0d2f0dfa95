"""Services in the form that stock Flux clients know, at the local socket."""
