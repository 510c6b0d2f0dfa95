"""The scheduler's state, pure: pool, queue, ledger, engine and the policy interface.

Law: only the ledger changes allocations; a policy sees core values and a read-only view.
"""
