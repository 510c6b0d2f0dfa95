"""An instance: put together, started, restarted, backed up, and what it leaves."""
