"""One typed class a message, by service; each cites the RFC section whose object it is. Nothing else knows the keys."""
