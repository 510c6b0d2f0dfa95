"""One job: its states (RFC 21), its values and what its events do."""
