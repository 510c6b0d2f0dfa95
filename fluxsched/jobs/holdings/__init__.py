"""Which job holds what: grants (RFC 20), targets and countables."""
