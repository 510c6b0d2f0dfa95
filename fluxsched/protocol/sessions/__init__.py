"""One state machine a conversation, without I/O: it takes what arrived and returns what to send."""
