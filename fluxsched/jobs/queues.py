"""Job queues (RFC 33): their configuration, whether they accept and schedule jobs, and which jobs wait; and banks.

Laws: a queue decides at submission (unknown, disabled, limits: refused; defaults and requirements: put into the
jobspec); after that it only orders and holds back. Whether a job may be charged to a bank (RFC 14) is decided at its
submission, too; it stays accepted, whatever becomes of its bank.

`PriorityHeap` has the first job in O(log n), with lazy deletion in O(1). The heap may hold stale entries, the
dictionary never does; an entry counts only if the dictionary holds an equal one. The heap is made of the dictionary
when the first job is asked for, and made anew before stale entries outnumber the live ones by much: a scheduler that
takes all that wait needs none.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, Final

from fluxsched.core.constraint import Constraint
from fluxsched.core.jobfields import DEFAULT_BANK
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.quantities import format_duration
from fluxsched.core.text import shown, some_of, with_path
from fluxsched.errors import InvalidValue, Refused

PriorityKey = tuple[float, ...]
_Entry = tuple[PriorityKey, int]

STALE_SLACK = 64
"""Stale entries that are not worth a new heap."""


class PriorityHeap:
    """Job ids by ascending key; pushing an id again gives it its new place."""

    __slots__ = ("_heap", "_live")

    def __init__(self) -> None:
        self._heap: list[_Entry] | None = None
        self._live: dict[int, _Entry] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, jobid: int) -> bool:
        return jobid in self._live

    def push(self, jobid: int, key: PriorityKey) -> None:
        """Add the job, or give it another key."""
        entry = (key, jobid)
        self._live[jobid] = entry
        heap = self._heap
        if heap is not None:
            heappush(heap, entry)
            if len(heap) > 2 * len(self._live) + STALE_SLACK:
                self._heap = None

    def discard(self, jobid: int) -> None:
        """Remove the job, wherever it is; nothing happens if it is not there."""
        self._live.pop(jobid, None)
        if not self._live:
            self._heap = None

    def head(self) -> _Entry | None:
        """Key and id of the first job, or None."""
        heap, live = self._made(), self._live
        while heap:
            entry = heap[0]
            if live.get(entry[1]) == entry:
                return entry
            heappop(heap)
        return None

    def drain(self) -> list[_Entry]:
        """Take out all jobs, in no order: keys and ids."""
        entries = list(self._live.values())
        self._live.clear()
        self._heap = None
        return entries

    def pop(self) -> int:
        """Take out the first job. Raises IndexError when there is none."""
        heap, live = self._made(), self._live
        while True:
            entry = heappop(heap)
            if live.get(entry[1]) == entry:
                del live[entry[1]]
                return entry[1]

    def _made(self) -> list[_Entry]:
        if self._heap is None:
            self._heap = list(self._live.values())
            heapify(self._heap)
        return self._heap


# ---- queues

DEFAULT_GROUP: Final = "default"
"""The group of targets that serves a queue which names none."""

REASON_CHARS_MAX = 512
"""A reason is one line for people."""

MISSING_REASON: Final = "the queue is not in the configuration"


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """Configuration of one queue (RFC 33); 0 and None mean no limit.

    Name None is the anonymous queue. `requires` is the constraint on its jobs: the configured properties, or with
    `hosts`, which names its members (RFC 29, or `all`), the property `+NAME` that these get. `policy` orders it, with
    options; None: that of its group's scheduler. `others` are further groups, of the same scheduler, in which its jobs
    may run.
    """

    name: str | None = None
    group: str = DEFAULT_GROUP
    requires: Constraint | None = None
    duration_limit_s: float = 0.0
    default_duration_s: float = 0.0
    nodes_min: int | None = None
    nodes_max: int | None = None
    cores_max: int | None = None
    gpus_max: int | None = None
    hosts: str | None = None
    policy: str | None = None
    others: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        """All groups in which its jobs may run."""
        return (self.group, *self.others)


class JobQueue:
    """One queue: its configuration, its switches, and the jobs that wait to be sent to the scheduler."""

    __slots__ = (
        "_admitted", "active", "config", "enable_reason", "enabled", "pending", "running", "start_reason", "started",
        "waiting",
    )  # fmt: skip

    def __init__(self, config: QueueConfig) -> None:
        self.config = config
        self.waiting = PriorityHeap()
        self.enabled = self.started = True
        self.enable_reason = self.start_reason = ""
        self.active = 0
        self.running = 0
        self.pending: dict[int, None] = {}
        """Ids of its active jobs that have had no resources yet, in the order of their arrival."""
        self._admitted: tuple[Jobspec, str | None, QueueConfig, Jobspec] | None = None
        """The last jobspec, bank and configuration of `admit`, and the result: equal jobs that come together share
        both jobspecs.
        """

    @property
    def name(self) -> str | None:
        """Its name; None for the anonymous queue."""
        return self.config.name

    @property
    def group(self) -> str:
        """The group of targets that serves it; the first of several, which one scheduler serves."""
        return self.config.group

    @property
    def groups_text(self) -> str:
        """All groups in which its jobs may run: `default,gpu`."""
        return ",".join(self.config.groups)

    @property
    def title(self) -> str:
        """Return the name of the queue in messages."""
        return f"queue {self.config.name}" if self.config.name else "the queue"

    def state(self) -> dict[str, Any]:
        """Return the switches of the queue, as stored."""
        return {
            "enable": self.enabled,
            "enable_reason": self.enable_reason,
            "start": self.started,
            "start_reason": self.start_reason,
        }

    @property
    def is_missing(self) -> bool:
        """Return whether the queue has jobs though it is not configured."""
        return self.enable_reason == MISSING_REASON

    def set_missing(self, is_missing: bool) -> None:
        """Hold its jobs back while it is not configured, and no longer."""
        self.enabled = self.started = not is_missing
        self.enable_reason = self.start_reason = MISSING_REASON if is_missing else ""

    def admit(self, jobspec: Jobspec, bank: str | None = None) -> Jobspec:
        """Return the jobspec with the queue's defaults and requirements, and a bank to be added, if any.

        Raises Refused when the queue does not accept it.
        """
        if not self.enabled:
            raise Refused(f"{self.title} accepts no jobs: {self.enable_reason}", errno.EINVAL)
        last, config = self._admitted, self.config
        if last is not None and last[0] is jobspec and last[1] == bank and last[2] is config:
            return last[3]
        asked, raw = jobspec, jobspec.raw
        if config.name is not None and jobspec.queue is None:
            raw = with_path(raw, "attributes.system.queue", config.name)
        if config.default_duration_s and not jobspec.duration_s:
            raw = with_path(raw, "attributes.system.duration", config.default_duration_s)
        if bank is not None:
            raw = with_path(raw, "attributes.system.bank", bank)
        if config.requires is not None:
            raw = with_path(raw, "attributes.system.constraints", _both(raw, config.requires.to_json()))
        if raw is not jobspec.raw:
            jobspec = Jobspec.parse(raw)
        if config.duration_limit_s:
            self.check_duration(jobspec.duration_s)
        self._check_size(jobspec)
        self._admitted = asked, bank, config, jobspec
        return jobspec

    def check_duration(self, duration_s: float) -> None:
        """Raise Refused when a job of this duration (0: without end) is too long for the queue."""
        limit_s = self.config.duration_limit_s
        if limit_s and not 0 < duration_s <= limit_s:
            asked = format_duration(duration_s) if duration_s else "infinity (none was asked for)"
            limit = format_duration(limit_s)
            raise Refused(f"duration {asked}, limit of {self.title} {limit}: ask for at most {limit}", errno.EINVAL)

    def _check_size(self, jobspec: Jobspec) -> None:
        config = self.config
        if (config.nodes_min, config.nodes_max, config.cores_max, config.gpus_max) == (None, None, None, None):
            return
        request = jobspec.request
        nodes = request.nodes.min if request.nodes is not None else None
        for what, asked, least, most in (
            ("nodes", nodes, config.nodes_min, config.nodes_max),
            ("cores", request.least_cores, None, config.cores_max),
            ("gpus", request.least_gpus, None, config.gpus_max),
        ):
            if asked is not None and most is not None and asked > most:
                raise Refused(f"{asked} {what}, limit of {self.title} {most}: ask for fewer", errno.EINVAL)
            if asked is not None and least is not None and asked < least:
                raise Refused(f"{asked} {what}, {self.title} asks for at least {least}: ask for more", errno.EINVAL)


class Queues:
    """All queues by name: either the anonymous one, or named ones."""

    def __init__(self, configs: Mapping[str | None, QueueConfig], default: str | None = None) -> None:
        self._queues: dict[str | None, JobQueue] = {}
        for name, config in configs.items():
            self._queues[name] = JobQueue(config)
        if not configs:
            self._queues[None] = JobQueue(QueueConfig())
        self._unnamed = None in self._queues  # for good: a restored job's queue may join under that name
        self.default = next(iter(self._queues)) if len(self._queues) == 1 else default
        if self.default is not None and self.default not in self._queues:
            raise InvalidValue(f"the default queue {self.default!r} is not configured: use one of {self.names()}")

    def __iter__(self) -> Iterator[JobQueue]:
        return iter(self._queues.values())

    def names(self) -> list[str]:
        """Return the names of the named queues."""
        return [name for name in self._queues if name is not None]

    def for_submit(self, name: str | None) -> JobQueue:
        """Return the queue for a new job. Raises Refused naming what there is."""
        wanted = self.default if name is None else name
        queue = self._queues.get(wanted)
        if queue is not None and (wanted is not None or self._unnamed):
            return queue
        if self._unnamed:
            raise Refused(f"queue {name!r} does not exist: this instance has one queue without a name", errno.EINVAL)
        known = ", ".join(self.names())
        if wanted is None:
            raise Refused(f"there is no default queue: name one of {known}", errno.EINVAL)
        raise Refused(f"queue {wanted!r} does not exist: use one of {known}", errno.EINVAL)

    def for_restored(self, name: str | None) -> JobQueue:
        """Return the queue of a stored job; one that is no longer configured is made anew and holds its jobs back."""
        if name is None:
            name = self.default
        if name not in self._queues:
            queue = self._queues[name] = JobQueue(QueueConfig(name))
            queue.set_missing(True)
        return self._queues[name]

    def faults(self, configs: Mapping[str | None, QueueConfig]) -> list[str]:
        """Return the obstacles to other configurations while jobs are active, a sentence each."""
        found = []
        for name, queue in self._queues.items():
            have = f"{queue.title} has {queue.active} active job{'s' * (queue.active > 1)}"
            if queue.active and name is None and any(configs):
                found.append(f"{have}: queues can have names once no job is in it, or after a restart")
            elif queue.active and name in configs and configs[name].groups != queue.config.groups:
                found.append(f"{have}: its groups can change once no job is in it, or at a restart")
        return found

    def reconfigure(
        self, configs: Mapping[str | None, QueueConfig], default: str | None
    ) -> tuple[list[JobQueue], list[JobQueue]]:
        """Other configurations for queues, which keep their switches and their jobs: those that are new, and those that
        are gone and have jobs, which they hold back from now on.
        """
        before, self._queues = self._queues, {}
        new, gone = [], []
        for name, config in (configs or {None: QueueConfig()}).items():
            queue = before.pop(name, None)
            if queue is None:
                queue = JobQueue(config)
                new.append(queue)
            elif queue.is_missing:
                queue.set_missing(False)
            queue.config = config
            self._queues[name] = queue
        self._unnamed = None in self._queues
        self.default = next(iter(self._queues)) if len(self._queues) == 1 else default
        for name, queue in before.items():
            if queue.active:
                queue.set_missing(True)
                gone.append(queue)
                self._queues[name] = queue
        return new, gone

    def select(self, name: str | None, all_queues: bool, verb: str) -> list[JobQueue]:
        """Return the queues that an admin wants to `verb`; of a name and all it is the name, as in Flux.

        Raises Refused with the verb, which Flux's commands mistake: ENOENT for an unknown one, EINVAL if none is named.
        """
        if name is None:
            if all_queues or len(self._queues) == 1:
                return list(self._queues.values())
            raise Refused(f"name the queue to {verb} ({', '.join(self.names())}) or give --all", errno.EINVAL)
        if name not in self._queues:
            known = ", ".join(self.names())
            known = f"use {known}" if known else "this instance has one queue, without a name; leave the name out"
            raise Refused(f"cannot {verb} queue {name!r}, which does not exist: {known}", errno.ENOENT)
        return [self._queues[name]]

    def served_by(self, groups: tuple[str, ...]) -> list[JobQueue]:
        """Return the queues whose group is one of these. Raises Refused if one of them has other groups, too."""
        served = [queue for queue in self._queues.values() if not set(groups).isdisjoint(queue.config.groups)]
        for queue in served:
            if missing := set(queue.config.groups).difference(groups):
                raise Refused(
                    f"{queue.title} has groups {', '.join(queue.config.groups)}, which need one scheduler: acquire "
                    f"{', '.join(sorted(missing))}, too",
                    errno.EINVAL,
                )
        return served


def checked_reason(reason: str | None, default: str) -> str:
    """Return a reason as an admin gave it, or the default. Raises InvalidValue when it is too long."""
    if reason is not None and len(reason) > REASON_CHARS_MAX:
        raise InvalidValue(f"the reason has {len(reason)} characters, limit {REASON_CHARS_MAX}: shorten it")
    return reason or default


def _both(raw: Mapping[str, Any], requires: Any) -> Any:
    """Return the constraint of the job and that of the queue, joined (RFC 31 `and`)."""
    own = raw.get("attributes", {}).get("system", {}).get("constraints")
    return {"and": [own, requires]} if own else requires


# ---- banks


@dataclass(frozen=True, slots=True)
class Banks:
    """`default` is for jobs that name none (None: these are charged to DEFAULT_BANK); `known` None: any bank counts."""

    default: str | None = None
    known: Collection[str] | None = None

    def missing_in(self, jobspec: Jobspec) -> str | None:
        """Return the bank that is to be added to a new job; None if it stays as it is. Raises Refused for an unknown
        one.
        """
        own = jobspec.sharing.bank
        bank = own or self.default or DEFAULT_BANK
        if self.known is not None and bank not in self.known:
            known = some_of(list(self.known))
            if own is None and self.default is None:
                raise Refused(f"the job names no bank, and there is no default: name one of {known}", errno.EINVAL)
            raise Refused(f"bank {shown(bank)} does not exist: use one of {known}", errno.EINVAL)
        return self.default if own is None else None


ANY_BANK: Final = Banks()
"""Banks where none are configured: any bank is accepted."""
