"""The record of an instance, read from its file while it runs or after it has ended: jobs, targets and configuration.

Law: nothing is written, and the instance takes no part in it. What cannot be read is left out and counted.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from functools import lru_cache
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

from fluxsched.config.policies import files_in
from fluxsched.config.reader import recorded_config
from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import FluxschedError, LimitExceeded, Refused
from fluxsched.instance.backup import database_of
from fluxsched.instance.restarts import KIND, RANKS
from fluxsched.jobs.manager import read as read_job
from fluxsched.jobs.query import LISTED
from fluxsched.jobs.queues import JobQueue, QueueConfig
from fluxsched.messaging.memo import JSON, JobspecMemo
from fluxsched.store.integrity import SELECTED, intact
from fluxsched.store.jobs import DamagedJob, Query, read_active, read_ended
from fluxsched.store.repair import is_filled, open_read_only
from fluxsched.store.schema import CONFIGURED, refuse_newer
from fluxsched.system.files import DATABASE_NAME, user_name

RECORD_JOBS_MAX = 1_000_000
"""Jobs of one record, some 4 kB each; an instance keeps 100,000 ended ones unless it is configured otherwise."""

RecordedJob = tuple[dict[str, Any], Mapping[str, Any] | None]
"""Attributes of a job as job-manager.list has them, with the time at which it asked for resources (`t_sched`), and its
jobspec.
"""

Unusable = tuple[float, float, Idset]
"""From when until when (inf: still) jobs could not be started on which targets."""

_ATTRIBUTES: Final = {
    "id", "state", "userid", "urgency", "t_submit", "ntasks", "duration", "queue", "t_run", "t_cleanup", "t_inactive",
    "ncores", "ranks", "sizes", "result", "bank", "preemptible_after",
}  # fmt: skip
_GETTERS: Final = tuple((name, get) for name, get in LISTED if name in _ATTRIBUTES)
_IN_GROUPS: Final = ("excluded", "spare")
"""States that follow from the configuration, which a simulation has."""


class Record(NamedTuple):
    """Jobs that did not end before `since_s`, and the site, until `until_s`, when the instance was seen last."""

    jobs: list[RecordedJob]
    since_s: float
    until_s: float
    resources: ResourceSet | None
    """None in files of instances that did not keep it."""
    config: dict[str, Any]
    policies: list[tuple[str, list[str]]]
    """Policies of schedulers, each with the groups that it serves (none: default)."""
    unusable: list[Unusable]
    damaged: int


def read_record(
    uri: str | None, statedir: Path | None, since_s: float | None, reader: str, *, is_run: bool = True
) -> Record:
    """Return the record of the instance at `uri`, or of the one that had this state directory.

    Raises FluxschedError for a file that cannot be read, and for too many jobs; if its policies are to be run, also for
    those in files that another user's record names.
    """
    source = database_of(uri, reader) if statedir is None else statedir / DATABASE_NAME
    if not is_filled(source):
        raise Refused(f"{source.parent} has no state of an instance: name a directory of --statedir", errno.ENOENT)
    try:
        with closing(open_read_only(source)) as connection:
            refuse_newer(connection, str(source))
            connection.execute("BEGIN")  # all statements see the same jobs: a running instance goes on writing
            record = _record(connection.execute, since_s or 0.0)
    except sqlite3.Error as fault:
        raise FluxschedError(f"{source} cannot be read: {fault}: see fluxsched doctor --statedir") from fault
    if is_run:
        _refuse_code(source, record)
    return record


def _refuse_code(source: Path, record: Record) -> None:
    """Raise Refused for policies in files, which a record in another user's file could name for us to execute."""
    config, _ = recorded_config(record.config)
    own = [queue.policy for queue in config.queues.values() if queue.policy is not None]
    for name in chain.from_iterable(map(files_in, [*(spec for spec, _ in record.policies), *own])):
        for path in (source.parent, source):
            if (owner := path.stat().st_uid) != os.geteuid():
                raise Refused(
                    f"the record names the policy {name}, which is not executed for others than the user of the "
                    f"instance, and {path} belongs to {user_name(owner)}: run this as that user",
                    errno.EPERM,
                )


def _record(read: Query, since_s: float) -> Record:
    ids = [jobid for (jobid,) in read("SELECT jobid FROM job_log WHERE ended >= ? ORDER BY jobid", (int(since_s),))]
    if len(ids) > RECORD_JOBS_MAX:
        raise LimitExceeded(f"{len(ids)} jobs ended in this time: the limit is {RECORD_JOBS_MAX}: give a later --since")
    damaged: list[DamagedJob] = []
    specs, jobs = JobspecMemo(JSON), list[RecordedJob]()
    for record in chain(read_ended(read, ids, damaged.append), read_active(read, damaged.append)):
        try:
            spec = None if record.jobspec is None else specs.read(record.jobspec)
            queue = _queue(None if spec is None else spec.queue)
            job = read_job((record.jobid, record.events, spec, record.R), queue)[0]
        except (FluxschedError, ValueError) as fault:
            damaged.append(DamagedJob(record.jobid, fault))
            continue
        row = {name: value for name, get in _GETTERS if (value := get(job)) is not None}
        row["t_sched"] = job.t_sched or job.t_submit
        jobs.append((row, None if spec is None else spec.raw))
    seen_s = max((seen_s for _, seen_s in intact(read(f"SELECT {SELECTED['run']} FROM run", ()))), default=since_s)
    until_s = max([seen_s, *[row.get("t_inactive") or row["t_submit"] for row, _ in jobs]])
    rows = intact(read(f"SELECT {SELECTED['interval']} FROM interval WHERE ended IS NULL OR ended > ?", (since_s,)))
    unusable = [
        (began_s, inf if ended_s is None else ended_s, Idset.parse(targets))
        for _, targets, state, _, began_s, ended_s in rows if state not in _IN_GROUPS
    ]  # fmt: skip
    machine, configured = _saved(read, KIND, RANKS), _saved(read, *CONFIGURED)
    resources = ResourceSet.parse(machine["R"]) if machine and configured else None  # 0.1.0 kept something else there
    config, policies = configured.get("config", {}), configured.get("policies", [])
    return Record(jobs, since_s, until_s, resources, config, policies, unusable, len(damaged))


@lru_cache(1024)
def _queue(name: str | None) -> JobQueue:
    return JobQueue(QueueConfig(name))


def _saved(read: Query, kind: str, key: str) -> dict[str, Any]:
    rows = intact(read(f"SELECT {SELECTED['saved']} FROM saved WHERE kind = ? AND key = ?", (kind, key)))
    for _, _, value in rows:
        return dict(json.loads(value))
    return {}
