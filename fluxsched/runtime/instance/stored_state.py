"""What a restart finds in the store: resource state, journal, jobs with their logs, and processes left behind."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fluxsched.errors import FluxschedError
from fluxsched.jobs.lifecycle.restore import StoredJob
from fluxsched.resource.effects import Saved
from fluxsched.runtime.clusters.clusters import StoredClusters
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.loop.turns import pieces
from fluxsched.runtime.messaging.payload_memo import JSON, JobspecMemo
from fluxsched.runtime.services.jobs.scheduler_states import KINDS
from fluxsched.runtime.services.resource_journal import STORED_EVENTS_MAX
from fluxsched.runtime.storage.jobs import JobRecord, ended_last, last_jobid, read_active, read_ended
from fluxsched.runtime.storage.leases import read_leased, read_leases
from fluxsched.runtime.storage.schema import WRITER
from fluxsched.runtime.storage.usage import COUNTED
from fluxsched.runtime.system.log import logger

log = logger("instance")

INACTIVE_RESTORED_MAX = 10_000
"""Inactive jobs that a restart reads back for `jobs -a`, the last to end; others stay in the store for lookups."""


@dataclass(slots=True)
class StoredState:
    """Everything read back, as plain values."""

    saved: list[Saved] = field(default_factory=list)
    jobs: Iterable[StoredJob] = ()
    """Those that are active, to be taken once, job by job: a hundred thousand of them at once are a gigabyte."""
    ended: Iterable[Sequence[StoredJob]] = ()
    """Those that ended last, some at a time: they can be read when the instance serves again."""
    processes: dict[int, Any] = field(default_factory=dict)
    queues: dict[str, Any] = field(default_factory=dict)
    epoch_ms: int | None = None
    last_jobid: int = 0
    counted: int = 0
    """The last row of jobs up to which accounts have what ended."""
    clusters: StoredClusters = field(default_factory=StoredClusters)
    leased: dict[str, int] = field(default_factory=dict)
    """Jobs that are run for other instances, by the names of their leases."""


def read_store(store: Store) -> StoredState:
    """Read all that a restart needs."""
    found = StoredState()
    for kind, key, value in store.read("SELECT kind, key, value FROM saved WHERE kind NOT IN (?, ?)", KINDS):
        decoded = json.loads(value)
        if kind == "queue":
            found.queues[key] = decoded
        elif (kind, key) == ("instance", "epoch_ms"):
            found.epoch_ms = int(decoded)
        elif (kind, key) == COUNTED:
            found.counted = int(decoded)
        elif (kind, key) != WRITER and not found.clusters.read(kind, key, decoded):
            found.saved.append(Saved(kind, key, decoded))
    journal = store.read("SELECT event FROM journal ORDER BY seq DESC LIMIT ?", (STORED_EVENTS_MAX,))
    found.saved += [Saved("journal", "", json.loads(event)) for (event,) in reversed(journal)]
    found.processes = {jobid: json.loads(value) for jobid, value in store.read("SELECT jobid, value FROM process")}
    found.last_jobid = last_jobid(store.read)
    found.clusters.leases = list(read_leases(store.rows))
    found.leased = dict(read_leased(store.rows))
    specs = JobspecMemo(JSON)
    found.jobs = (_stored(job, specs) for job in read_active(store.rows))
    found.ended = _ended(store, specs, ended_last(store.read, INACTIVE_RESTORED_MAX))
    return found


def _stored(job: JobRecord, specs: JobspecMemo) -> StoredJob:
    return job.jobid, job.events, None if job.jobspec is None else specs.read(job.jobspec), job.R


def _ended(store: Store, specs: JobspecMemo, jobids: list[int]) -> Iterator[list[StoredJob]]:
    """By a query for some at a time: one that was left open would have all others see the store as it was."""
    for some in pieces(jobids):
        found = []
        for job in read_ended(store.read, some):
            try:
                found.append(_stored(job, specs))
            except FluxschedError as fault:
                log.error("left out: job %d: %s", job.jobid, fault)
        yield found
