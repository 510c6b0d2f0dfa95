"""The commands: parse, one call, show. They know core values and the blocking client, and nothing of the services."""
