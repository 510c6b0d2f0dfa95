"""The commands: parse, one call, print. They use core values and the blocking client, but no services."""
