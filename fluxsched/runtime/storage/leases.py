"""Rows of leases: those that this instance has in clusters (`lease`), and the names of jobs that it runs for others
(`leased`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from fluxsched.errors import InvalidValue
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
    for row in rows("SELECT * FROM lease ORDER BY jobid", ()):
        yield decode_lease(row)


def decode_lease(row: Sequence[Any]) -> Lease:
    """Return the lease of a row. Raises InvalidValue naming its job if it has none."""
    jobid, attempt, cluster, name, text, state = row
    try:
        fields = msgspec.convert((jobid, attempt, cluster, name), tuple[int, int, str, str])
        return Lease(*fields, msgspec.json.decode(text, type=dict[str, Any]), LeaseState(state))
    except (ValueError, TypeError) as fault:
        raise InvalidValue(f"lease of job {jobid} cannot be read: {type(fault).__name__}: {fault}") from fault


def read_leased(rows: LeaseQuery) -> Iterator[tuple[str, int]]:
    """Names of jobs run for others, those of which nothing is known any more left out."""
    yield from rows("SELECT name, jobid FROM leased WHERE jobid IN (SELECT jobid FROM job_log)", ())
