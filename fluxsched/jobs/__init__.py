"""The job manager's state, pure: RFC 21 states and events, RFC 27's job manager side, RFC 33 queues.

Law: an event goes in with its time, effects come out; nothing here waits, sends, stores or reads a clock.
"""
