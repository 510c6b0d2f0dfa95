"""Jobspecs of the jobs of a trace.

Law: queues and banks decide as in an instance (`jobs.queues`): defaults, requirements and limits are theirs; a job that
they would refuse is refused here with their words. No rule is written here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

from fluxsched.core.jobfields import parse_sharing
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.text import with_path
from fluxsched.errors import InvalidValue, Refused
from fluxsched.jobs.queues import ANY_BANK, Banks, QueueConfig, Queues
from fluxsched.sim.traces import Ask, TraceJob, parts_jobspec

JobspecKey: TypeAlias = tuple[Ask, float | None, int | str | None, str | None, float | None, int]

COMMAND: Final = ("simulated",)


class TraceJobspecs:
    """Jobspecs by what decides them: needs, limit, queue, and how they share the machine."""

    def __init__(
        self, queues: Mapping[str | None, QueueConfig], default_queue: str | None, banks: Banks = ANY_BANK
    ) -> None:
        self._banks = banks
        self._queues = Queues(queues, default_queue) if queues else None
        self._asked: dict[Ask, Jobspec] = {}
        self._made: dict[JobspecKey, Jobspec | str] = {}

    def of(self, job: TraceJob) -> Jobspec | str:
        """Return the jobspec, or why an instance would not take the job."""
        key = (job.ask, job.limit_s, job.queue, job.bank, job.preemptible_after_s, job.requeue)
        known = self._made.get(key)
        if known is None:
            known = self._made[key] = self._make_or_refuse(job)
        return known

    def _make_or_refuse(self, job: TraceJob) -> Jobspec | str:
        try:
            return self._make(job)
        except (InvalidValue, Refused) as fault:
            return str(fault)

    def _make(self, job: TraceJob) -> Jobspec:
        base = self._asked.get(job.ask)
        if base is None:
            base = self._asked[job.ask] = _jobspec(job.ask)
        if job.limit_s:
            base = replace(base, duration_s=job.limit_s, raw=with_system(base, "duration", job.limit_s))
        base = _sharing(base, job)
        bank = self._banks.missing_in(base)
        if bank is not None:
            base = _sharing(base, job._replace(bank=bank))
        if self._queues is None:
            return base
        name = None if job.queue is None else str(job.queue)
        if name is not None and name in self._queues.names():
            base = replace(base, queue=name, raw=with_system(base, "queue", name))
        return self._queues.for_submit(base.queue).admit(base)


def _sharing(base: Jobspec, job: TraceJob) -> Jobspec:
    """With what the trace says of how the job shares the machine; it is not repeated in a whole jobspec."""
    said = {
        "bank": job.bank, "preemptible-after": job.preemptible_after_s, "fluxsched.requeue": job.requeue or None,
    }  # fmt: skip
    for key, value in said.items():
        if value is not None:
            base = replace(base, raw=with_system(base, key, value))
    if any(value is not None for value in said.values()):
        base = replace(base, sharing=parse_sharing(base.raw["attributes"]["system"]))
    return base


def _jobspec(ask: Ask) -> Jobspec:
    if ask.jobspec is not None:
        return Jobspec.parse(ask.jobspec)
    if ask.parts is not None:
        return _of_parts(ask, ask.parts)
    return Jobspec.from_command(
        COMMAND,
        ntasks=None if isinstance(ask.nodes, str) and ask.nslots == 1 else ask.nslots,  # one a node of a range
        cores_per_task=ask.cores,
        gpus_per_task=ask.gpus,
        nodes=ask.nodes,
        exclusive=ask.exclusive,
        constraint=None if ask.constraint is None else json.loads(ask.constraint),
        elastic=ask.elastic,
        max_hops=ask.max_hops,
    )


def _of_parts(ask: Ask, parts: str) -> Jobspec:
    raw = parts_jobspec(parts)
    system = raw["attributes"]["system"]
    if ask.constraint is not None:
        system["constraints"] = json.loads(ask.constraint)
    settled: dict[str, object] = {"elastic": ask.elastic or None, "max-hops": ask.max_hops}
    system["fluxsched"] = {key: value for key, value in settled.items() if value is not None}
    return Jobspec.parse(raw)


def with_system(jobspec: Jobspec, key: str, value: object) -> dict[str, Any]:
    """Return the raw jobspec with one key of `attributes.system` set."""
    return with_path(jobspec.raw, f"attributes.system.{key}", value)
