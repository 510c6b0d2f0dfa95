"""The conformance suite: a policy against the laws that every policy has to keep."""
