"""Messages of live views: the machine, what runs, what is planned, messages as they pass (rfc/live.md)."""
