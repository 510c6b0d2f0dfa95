"""Plugins: small hooks at twelve points of the one decision loop, under every policy."""
