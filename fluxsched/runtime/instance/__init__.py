"""An instance of its own: put together, started, found, and what it leaves."""
