"""The scheduler interface as tables: requests in, answers out, on a time that is an argument."""
