"""Traces: jobs with their times and requests, and the lines of the file that could not be used.

Law: what a trace does not say stays unknown (None), never a guess; every line that is not simulated is counted, and the
first ones are kept with the reason, so that an incomplete trace is not taken for a complete one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from reprlib import repr as shortened
from typing import NamedTuple

from fluxsched.core.sharing import REQUEUE_MAX, check_name
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.sim.traces.parts import check_parts

JOBS_MAX = 20_000_000
"""Jobs in one trace: ten times the longest of the public archives; some 600 bytes each."""

TIME_MAX_S = 1e12
"""The longest and the last time in a trace, 30,000 years: a slip of the pen that would make tables unreadable."""

URGENCY_MAX = 31
"""RFC 14's largest urgency."""

BANKS = ("user", "group", "queue")
"""What of a job may stand for the bank that its trace does not name."""

FAULTS_KEPT_MAX = 100
"""Lines that were not used, kept with their reason; the rest are counted."""

FAULT_CHARS_MAX = 60
"""How much of such a line is repeated."""


class Ask(NamedTuple):
    """What a job needs: `nslots` slots of `cores` and `gpus`, over `nodes` if given, a number or a range (`4-10`).

    `constraint` is the RFC 31 object as JSON text; `jobspec`, also JSON text, replaces all other fields. `parts`, the
    same, replace those before it. An `elastic` job may change its number of nodes, within the range, while it runs;
    at most `max_hops` are between any two of them.
    """

    nslots: int = 1
    cores: int = 1
    gpus: int = 0
    nodes: int | str | None = None
    exclusive: bool = False
    constraint: str | None = None
    jobspec: str | None = None
    elastic: bool = False
    max_hops: int | None = None
    parts: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether `nslots` times `cores` is just what the job gets."""
        return self.nodes is None and not self.exclusive and self.jobspec is None and self.parts is None


class TraceJob(NamedTuple):
    """One job. Times are seconds since the trace began; `run_s` is how long it would run, `limit_s` what it asked for.

    `job` is its name in the trace, `wait_s` how long it waited where the trace was recorded. With feedback it is
    submitted `think_s` after the end of the job named `preceding`. Without a `bank` it is charged to the default one;
    it may be preempted once it has run for `preemptible_after_s` (None: never), and is then submitted again, `requeue`
    times at most. With `work`, in core seconds, it runs until it has had them instead, whatever its size.
    """

    job: int | str
    submit_s: float
    run_s: float
    limit_s: float | None
    ask: Ask
    user: int | str | None = None
    queue: int | str | None = None
    group: int | str | None = None
    wait_s: float | None = None
    urgency: int = 16
    preceding: int | str | None = None
    think_s: float | None = None
    bank: str | None = None
    preemptible_after_s: float | None = None
    requeue: int = 0
    work: float | None = None


class UnusedLine(NamedTuple):
    """A line that was not used: `line` counts from 1, `is_bad` tells what cannot be read from what lacks something."""

    line: int
    why: str
    text: str
    is_bad: bool


class Machine(NamedTuple):
    """Equal targets."""

    targets: int
    cores: int = 1
    gpus: int = 0


@dataclass(slots=True, repr=False)
class Trace:
    """Jobs in order of submission, those of one instant in the order of the file. `header` has the file's own keys."""

    name: str
    jobs: Sequence[TraceJob]
    header: dict[str, str] = field(default_factory=dict)
    machine: Machine | None = None
    faults: tuple[UnusedLine, ...] = ()
    bad: int = 0
    left_out: int = 0

    def __repr__(self) -> str:
        """In a line: there may be a million jobs."""
        return f"<Trace {self.name}: {len(self.jobs)} jobs>"

    @classmethod
    def of(cls, jobs: Iterable[TraceJob], name: str = "jobs", machine: Machine | None = None) -> Trace:
        """A trace out of jobs in any order. Raises InvalidValue for a job that cannot be simulated."""
        found, asks = list(jobs), dict[Ask, Ask]()
        for at, job in enumerate(found):
            if not isinstance(job, TraceJob):
                raise InvalidValue(f"{shortened(job)} is not a TraceJob")
            check_job(job)
            ask = asks.setdefault(job.ask, job.ask)
            if ask is not job.ask:
                found[at] = job._replace(ask=ask)  # equal ones are one object: what it takes is worked out once
        return cls(name, in_order(found), machine=machine)


def machine_of(
    procs: int | None,
    nodes: int | None,
    cores: int | None = None,
    gpus: int | None = None,
    r_path: object = None,
) -> Machine | None:
    """`procs` one-core targets, or `nodes` of `cores` (1) and `gpus` (0); None if neither is given.

    Raises InvalidValue for counts that are none, and when several of `procs`, `nodes` and `r_path` are given.
    """
    given = [name for name, value in (("procs", procs), ("nodes", nodes), ("R", r_path)) if value is not None]
    if len(given) > 1:
        raise InvalidValue(f"{' and '.join(given)} are mutually exclusive: each defines the machine")
    if nodes is None and (cores, gpus) != (None, None):
        raise InvalidValue("cores and gpus are per node: give the number of nodes")
    for name, value, least in (("procs", procs, 1), ("nodes", nodes, 1), ("cores", cores, 1), ("gpus", gpus, 0)):
        if value is not None:
            check_count(name, value, least)
    if nodes is not None:
        return Machine(nodes, 1 if cores is None else cores, gpus or 0)
    return None if procs is None else Machine(procs)


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raises InvalidValue for what is no whole number, or a smaller one."""
    if not isinstance(value, int) or value < least:
        raise InvalidValue(f"{name} {value!r} is not a count of at least {least}")


class Collector:
    """Gathers jobs and faults while a file is read."""

    def __init__(self, name: str, limit: int = JOBS_MAX) -> None:
        self.jobs: list[TraceJob] = []
        self.header: dict[str, str] = {}
        self.machine: Machine | None = None
        self._name = name
        self._limit = limit
        self._faults: list[UnusedLine] = []
        self._counts = {True: 0, False: 0}

    def add(self, job: TraceJob) -> None:
        """Raises LimitExceeded when there are too many."""
        if len(self.jobs) >= self._limit:
            raise LimitExceeded(f"{self._name} has more than {self._limit} jobs: the limit of one trace")
        self.jobs.append(job)

    def fault(self, line: int, why: str, text: str, is_bad: bool) -> None:
        """A line that is not used."""
        self._counts[is_bad] += 1
        if len(self._faults) < FAULTS_KEPT_MAX:
            shown = " ".join(text[: 4 * FAULT_CHARS_MAX].split())[:FAULT_CHARS_MAX]
            self._faults.append(UnusedLine(line, why, shown, is_bad))

    def trace(self) -> Trace:
        """What was gathered."""
        return Trace(
            self._name, in_order(self.jobs), self.header, self.machine, tuple(self._faults), self._counts[True],
            self._counts[False],
        )  # fmt: skip


def in_order(jobs: list[TraceJob]) -> list[TraceJob]:
    """By time of submission; a stable sort, so the file's order decides among equals."""
    jobs.sort(key=attrgetter("submit_s"))
    return jobs


def check_job(job: TraceJob) -> None:
    """Raises InvalidValue, naming the job, for times that are negative or too long, for a job that needs nothing, and
    for an urgency, a bank or a number of times that is none."""
    for what, value in (("submit", job.submit_s), ("run", job.run_s), ("limit", job.limit_s),
                        ("think", job.think_s), ("preemptible-after", job.preemptible_after_s),
                        ("work", job.work)):  # fmt: skip
        if value is not None and not 0 <= value <= TIME_MAX_S:
            most = f"{TIME_MAX_S:,.0f}"
            raise InvalidValue(f"job {job.job}: {what} time {value} is not a number of seconds of 0 or more, to {most}")
    if min(job.ask.nslots, job.ask.cores) < 1 or job.ask.gpus < 0:
        raise InvalidValue(f"job {job.job}: {job.ask.nslots} slots of {job.ask.cores} cores: it needs at least one")
    if job.work is not None and job.run_s:
        raise InvalidValue(f"job {job.job}: it has a run time and work: leave out one of them")
    if job.ask.parts is not None:
        check_parts(job.ask.parts)
    if not 0 <= job.urgency <= URGENCY_MAX:
        allowed = f"0 (held) to {URGENCY_MAX} (expedited)"
        raise InvalidValue(f"job {job.job}: urgency {job.urgency} is not {allowed}: leave it out for 16")
    if job.bank is not None:
        check_name(job.bank, f"job {job.job}: bank")
    if not 0 <= job.requeue <= REQUEUE_MAX:
        raise InvalidValue(f"job {job.job}: requeue {job.requeue} is not a number within 0-{REQUEUE_MAX}")


def with_banks(trace: Trace, by: str) -> Trace:
    """The trace with the `user`, `group` or `queue` (one of BANKS) of each job as its bank, where it names none itself.

    Jobs whose name is unknown stay without one. Raises InvalidValue for a name that cannot be a bank's.
    """
    if by not in BANKS:
        raise InvalidValue(f"bank {by!r} is not one of {', '.join(BANKS)}")
    names = {getattr(job, by) for job in trace.jobs}
    banks = {name: None if name is None else check_name(str(name), f"{by} as bank") for name in names}
    jobs = [job if job.bank is not None else job._replace(bank=banks[getattr(job, by)]) for job in trace.jobs]
    return replace(trace, jobs=jobs)


def followers(jobs: Sequence[TraceJob]) -> dict[int, list[int]]:
    """The places of the jobs that follow each job, by its place."""
    places: dict[int | str, int] = {}
    found: dict[int, list[int]] = {}
    for at, job in enumerate(jobs):
        before = None if job.preceding is None else places.get(job.preceding)
        if before is not None:
            found.setdefault(before, []).append(at)
        places[job.job] = at
    return found
