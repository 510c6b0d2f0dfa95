"""The scheduler: RFC 27 and RFC 28 events in, effects out, one scheduling pass after the other."""
