"""Flux itself: our schedulers as a broker module of a real Flux, and the services that stock Flux clients know.

Only `broker/` imports Flux.
"""
