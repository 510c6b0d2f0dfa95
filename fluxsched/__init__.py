"""fluxsched: a Flux-style resource module and pluggable schedulers for HPC."""

__version__ = "0.1.0"
