"""The resource module's state, pure, one concern a file: inventory, groups, drain, presence, journal, availability.

Law: an event goes in with its time, effects come out; nothing here waits, sends, stores or reads a clock.
"""
