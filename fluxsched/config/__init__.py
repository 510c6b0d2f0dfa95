"""The configuration file and the inventory: TOML into checked values, changes, policies, sources of R."""
