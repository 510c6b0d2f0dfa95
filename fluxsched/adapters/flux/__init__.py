"""Inside a real Flux instance: our schedulers as a broker module. Only `broker/` imports Flux; all else is pure."""
