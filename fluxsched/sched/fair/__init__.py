"""A tree of accounts: what each uses, what its share is, and whose job comes next."""
