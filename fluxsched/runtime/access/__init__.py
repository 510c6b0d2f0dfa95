"""Who may connect and as whom: rules for users of this machine, and keys for all others."""
