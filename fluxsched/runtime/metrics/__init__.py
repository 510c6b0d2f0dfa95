"""An instance's figures for Prometheus: a process of its own, and an ordinary client of the instance."""
