"""Rights to call topics: the least role, and what a guest may do with its own jobs.

Law: every topic of `topics` and `local_topics` is here (a test compares), and any other topic is the owner's alone. A
topic that starts a program, or reaches one that runs, is the owner's: tasks run as the instance's user. So is the memo
of a job, which tells the owner's commands where a nested instance is.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from fluxsched.core.role import Role


class Scope(Enum):
    """Jobs that a guest may name: its own, or those that it may see (in private mode the same)."""

    OWN = "own"
    SEEN = "seen"


Least = tuple[Role, Scope | None]


def _all(least: Role, scope: Scope | None, text: str) -> dict[str, Least]:
    return dict.fromkeys(text.split(), (least, scope))


_GUESTS = _all(
    Role.GUEST,
    None,
    """
    attr.get attr.list broker.ping config.get groups.get state-machine.get state-machine.wait
    instance.info instance.ready instance.goodbye module.list
    resource.status resource.sched-status resource.groups resource.targets resource.stats-get sched.resource-status
    resource.watch resource.watch-cancel job-manager.running
    job-manager.list job-manager.select job-manager.select-cancel job-manager.queue-list job-manager.queue-status
    job-list.list job-list.list-attrs
    history.report cluster.list
    """,
)
"""Listings leave out what a guest may not see."""

_GUESTS_SEEN = _all(Role.GUEST, Scope.SEEN, "job-manager.why job-manager.reasons job-list.list-id")

_GUESTS_OWN = _all(
    Role.GUEST,
    Scope.OWN,
    """
    job-manager.cancel job-manager.raise job-manager.kill job-manager.urgency job-manager.update
    job-manager.lookup job-manager.wait job-manager.wait-all job-manager.watch
    job-manager.eventlog job-manager.changes job-manager.output job-info.lookup job-info.eventlog-watch
    """,
)

_GUESTS_CANCEL = _all(
    Role.GUEST,
    None,
    """
    job-manager.wait-all-cancel job-manager.watch-cancel job-manager.eventlog-cancel job-manager.changes-cancel
    job-manager.output-cancel
    job-info.eventlog-watch-cancel
    """,
)
"""Of a peer's own streams, by matchtag."""

_ADMINS = _all(
    Role.ADMIN,
    None,
    """
    resource.drain resource.undrain resource.assign resource.include resource.property-add resource.property-remove
    resource.expiration-update resource.reload resource.journal resource.journal-cancel resource.monitor-waitup
    job-manager.queue-enable job-manager.queue-start job-manager.raiseall job-manager.killall job-manager.alloc-query
    job-manager.history.get job-manager.drain job-manager.idle
    instance.metrics feasibility.check
    cluster.forget
    sched.why sched.reasons sched.permit config.reload module.reload module.stats agent.hello agent.heartbeat
    """,
)

_OWNER = _all(
    Role.OWNER,
    None,
    """
    resource.acquire resource.acquire-cancel resource.release resource.acquire-mute
    job-manager.submit job-ingest.submit job-manager.memo job-manager.released job-manager.input shell-*.stdin
    job-manager.sched-hello job-manager.sched-ready job-manager.sched-save
    job-manager.sched-grow job-manager.sched-shrink
    sched.alloc sched.free sched.cancel sched.prioritize sched.expiration
    module.load module.remove service.add service.remove instance.stop
    instance.restart instance.trace instance.trace-cancel
    lease.submit lease.watch lease.watch-cancel lease.withdraw lease.settle
    """,
)

_COUNTS = _all(
    Role.GUEST,
    None,
    "job-list.job-stats job-manager.stats-get sched.accounts sched.plan history.samples history.intervals",
)
"""These tell of all jobs: where jobs are private they are the admins'."""

_SERVICES = (
    "agent", "attr", "cluster", "config", "feasibility", "history", "instance", "job-manager", "lease", "module",
    "resource", "sched", "service",
)  # fmt: skip
_COMMON = {f"{service}.{name}": (Role.GUEST, None) for service in _SERVICES for name in ("ping", "disconnect")}
_STATS = {f"{service}.stats-get": (Role.ADMIN, None) for service in _SERVICES}

LEAST: Final[Mapping[str, Least]] = MappingProxyType(
    {**_COMMON, **_STATS, **_GUESTS, **_GUESTS_SEEN, **_GUESTS_OWN, **_GUESTS_CANCEL, **_ADMINS, **_OWNER, **_COUNTS}
)
"""The least role of each topic; with a scope, guests may call it for such jobs only."""

COUNTS_OF_JOBS: Final = frozenset(_COUNTS)

OWNERS_ALONE: Final[Least] = (Role.OWNER, None)


def least_of(topic: str, *, private_jobs: bool) -> Least:
    """Return the least role for `topic`, and the scope of a guest."""
    if private_jobs and topic in COUNTS_OF_JOBS:
        return Role.ADMIN, None
    return LEAST.get(topic, OWNERS_ALONE)
