"""What a restart finds in the store: resource state, journal, jobs with their logs, and processes left behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fluxsched.errors import FluxschedError
from fluxsched.jobs.lifecycle.restore import StoredJob
from fluxsched.resource.effects import Saved
from fluxsched.runtime.clusters.clusters import StoredClusters
from fluxsched.runtime.instance.parts.kept_changes import KIND as SOURCE
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.loop.turns import pieces
from fluxsched.runtime.messaging.payload_memo import JSON, JobspecMemo
from fluxsched.runtime.services.jobs.scheduler_states import KINDS
from fluxsched.runtime.services.resource_journal import STORED_EVENTS_MAX
from fluxsched.runtime.storage.commit_record import COMMIT
from fluxsched.runtime.storage.jobs import DamagedJob, JobRecord, ended_last, last_jobid, read_active, read_ended
from fluxsched.runtime.storage.leases import read_leased, read_leases
from fluxsched.runtime.storage.saved import decode_saved
from fluxsched.runtime.storage.schema import WRITER
from fluxsched.runtime.storage.usage import COUNTED
from fluxsched.runtime.system.log import logger

log = logger("instance")

INACTIVE_RESTORED_MAX = 10_000
"""Inactive jobs that a restart reads back for `jobs -a`, the last to end; others stay in the store for lookups."""

LEFT_OUT_NAMED_MAX = 3
"""Ended jobs that cannot be read and are named in the notice; the log names all."""


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
    source: dict[str, Any] = field(default_factory=dict)
    """R and its expiration as requests have changed them."""
    epoch_ms: int | None = None
    last_jobid: int = 0
    counted: int = 0
    """The last row of jobs up to which accounts have what ended."""
    clusters: StoredClusters = field(default_factory=StoredClusters)
    leased: dict[str, int] = field(default_factory=dict)
    """Jobs that are run for other instances, by the names of their leases."""


class StateNotice:
    """Text for the user about the stored state: that it was damaged, and which ended jobs are left out."""

    def __init__(self, text: str | None = None) -> None:
        self._text = text
        self._left_out: list[str] = []

    def leave_out(self, fault: FluxschedError) -> None:
        """An ended job cannot be read: listings do not have it."""
        log.error("left out: %s", fault)
        self._left_out.append(str(fault))

    @property
    def text(self) -> str | None:
        """All of it; None if there is nothing to be said."""
        if not self._left_out:
            return self._text
        count = len(self._left_out)
        left_out = f"{count} ended {'job is' if count == 1 else 'jobs are'} left out of listings"
        more = f"; the log names {count - LEFT_OUT_NAMED_MAX} more" if count > LEFT_OUT_NAMED_MAX else ""
        named = f"{left_out}: {'; '.join(self._left_out[:LEFT_OUT_NAMED_MAX])}{more}"
        return named if self._text is None else f"{self._text}. {named}"


def read_store(store: Store, notice: StateNotice) -> StoredState:
    """Read all that a restart needs; ended jobs that cannot be read are left out, and said in `notice`."""
    found = StoredState()
    for kind, key, value in store.read("SELECT kind, key, value FROM saved WHERE kind NOT IN (?, ?)", KINDS):
        decoded = decode_saved(kind, key, value)
        if kind == "queue":
            found.queues[key] = decoded
        elif kind == SOURCE:
            found.source[key] = decoded
        elif (kind, key) == ("instance", "epoch_ms"):
            found.epoch_ms = int(decoded)
        elif (kind, key) == COUNTED:
            found.counted = int(decoded)
        elif (kind, key) not in (WRITER, COMMIT) and not found.clusters.read(kind, key, decoded):
            found.saved.append(Saved(kind, key, decoded))
    journal = store.read("SELECT seq, event FROM journal ORDER BY seq DESC LIMIT ?", (STORED_EVENTS_MAX,))
    found.saved += [Saved("journal", "", decode_saved("journal", seq, event)) for seq, event in reversed(journal)]
    processes = store.read("SELECT jobid, value FROM process")
    found.processes = {jobid: decode_saved("process", jobid, value) for jobid, value in processes}
    found.last_jobid = last_jobid(store.read)
    found.clusters.leases = list(read_leases(store.rows))
    found.leased = dict(read_leased(store.rows))
    specs = JobspecMemo(JSON)
    found.jobs = (_stored(job, specs) for job in read_active(store.rows))
    found.ended = _ended(store, specs, notice, ended_last(store.read, INACTIVE_RESTORED_MAX))
    return found


def _stored(job: JobRecord, specs: JobspecMemo) -> StoredJob:
    return job.jobid, job.events, None if job.jobspec is None else specs.read(job.jobspec), job.R


def _ended(store: Store, specs: JobspecMemo, notice: StateNotice, jobids: list[int]) -> Iterator[list[StoredJob]]:
    """By a query for some at a time: one that was left open would have all others see the store as it was."""
    for some in pieces(jobids):
        found = []
        for job in read_ended(store.read, some, notice.leave_out):
            try:
                found.append(_stored(job, specs))
            except (FluxschedError, ValueError) as fault:
                notice.leave_out(DamagedJob(job.jobid, fault))
        yield found
