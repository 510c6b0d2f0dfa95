"""Frozen values with one parser and one printer each: idset, hostlist, R, jobspec, constraint, job id, duration.

Law: `parse(str(x)) == x`, every limit has a name, and nothing here knows a clock, a socket or another package.
"""
