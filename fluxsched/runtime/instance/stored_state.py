"""What a restart finds in the store: resource state, journal, jobs with their logs, and processes left behind."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fluxsched.jobs.lifecycle.restore import StoredJob
from fluxsched.resource.effects import Saved
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.messaging.payload_memo import JSON, JobspecMemo
from fluxsched.runtime.services.jobs.scheduler_states import KINDS
from fluxsched.runtime.services.resource_journal import STORED_EVENTS_MAX
from fluxsched.runtime.storage.jobs import last_jobid, read_jobs
from fluxsched.runtime.storage.schema import WRITER

INACTIVE_RESTORED_MAX = 10_000
"""Inactive jobs that a restart reads back for `jobs -a`, the last to end; others stay in the store for lookups."""


@dataclass(slots=True)
class StoredState:
    """Everything read back, as plain values."""

    saved: list[Saved] = field(default_factory=list)
    jobs: Iterable[StoredJob] = ()
    """To be taken once, job by job: a hundred thousand of them at once are a gigabyte."""
    processes: dict[int, Any] = field(default_factory=dict)
    queues: dict[str, Any] = field(default_factory=dict)
    epoch_ms: int | None = None
    last_jobid: int = 0


def read_store(store: Store) -> StoredState:
    """Read all that a restart needs."""
    found = StoredState()
    for kind, key, value in store.read("SELECT kind, key, value FROM saved WHERE kind NOT IN (?, ?)", KINDS):
        decoded = json.loads(value)
        if kind == "queue":
            found.queues[key] = decoded
        elif (kind, key) == ("instance", "epoch_ms"):
            found.epoch_ms = int(decoded)
        elif (kind, key) != WRITER:
            found.saved.append(Saved(kind, key, decoded))
    journal = store.read("SELECT event FROM journal ORDER BY seq DESC LIMIT ?", (STORED_EVENTS_MAX,))
    found.saved += [Saved("journal", "", json.loads(event)) for (event,) in reversed(journal)]
    found.processes = {jobid: json.loads(value) for jobid, value in store.read("SELECT jobid, value FROM process")}
    found.last_jobid = last_jobid(store.read)
    found.jobs = _jobs(store)
    return found


def _jobs(store: Store) -> Iterable[StoredJob]:
    """All active jobs and those that ended last, in order of job id."""
    specs = JobspecMemo(JSON)
    for jobid, events, jobspec, resources in read_jobs(store.rows, INACTIVE_RESTORED_MAX):
        yield (jobid, events, None if jobspec is None else specs.read(jobspec), resources)
