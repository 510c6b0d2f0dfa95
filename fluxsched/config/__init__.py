"""The configuration: TOML into checked values, and what changes when it is read again."""
