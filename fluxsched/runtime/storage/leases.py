"""Rows of leases: those that this instance has in clusters (`lease`), and the names of jobs that it runs for others
(`leased`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from fluxsched.leases.lease import Lease
from fluxsched.leases.states import LeaseState

LEASE_TABLES: Final = (
    "CREATE TABLE lease "
    "(jobid INTEGER PRIMARY KEY, attempt INTEGER, cluster TEXT, name TEXT, jobspec BLOB, state TEXT)",
    "CREATE TABLE leased (name TEXT PRIMARY KEY, jobid INTEGER) WITHOUT ROWID",
)

LeaseQuery = Callable[[str, Sequence[Any]], Iterator[Any]]


def read_leases(rows: LeaseQuery) -> Iterator[Lease]:
    """All leases that are stored (`Lease.row`), in order of job id."""
    for jobid, attempt, cluster, name, text, state in rows("SELECT * FROM lease ORDER BY jobid", ()):
        yield Lease(jobid, attempt, cluster, name, msgspec.json.decode(text), LeaseState(state))


def read_leased(rows: LeaseQuery) -> Iterator[tuple[str, int]]:
    """Names of jobs run for others, those of which nothing is known any more left out."""
    yield from rows("SELECT name, jobid FROM leased WHERE jobid IN (SELECT jobid FROM job_log)", ())
