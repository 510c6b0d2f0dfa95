"""What one looks at while it changes: the machine, what runs, what is planned, messages as they pass (rfc/live.md)."""
