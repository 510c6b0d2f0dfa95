"""The services of an instance put together: from what surroundings, and how a configuration is read again."""
