"""The instance's services: each translates between messages and one state machine, and performs its effects."""
