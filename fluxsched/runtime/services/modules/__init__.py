"""The `module` service: scheduler modules, their processes and their supervision."""
