"""The scheduler's state, pure: pool, queue, ledger, engine and the policy interface.

Law: only the ledger changes holdings; a policy sees core values and a read-only view.
"""
