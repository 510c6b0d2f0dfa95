"""Plugins: small hooks in the one decision loop, under every policy."""
