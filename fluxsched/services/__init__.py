"""RPC services of an instance: each translates messages for one state machine and performs its effects."""
