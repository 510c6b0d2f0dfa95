"""What a checker is: it hears of what outsiders see, in order, and raises a Violation where a law is broken.

Law: a checker rebuilds the truth from observations alone, with plain dicts and sets; it imports nothing of fluxsched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import floor
from typing import Any, NamedTuple

from tests.chaos.observations import (
    Answered,
    Configured,
    HostStopped,
    KeeperConnected,
    LinkEnded,
    Observation,
    ProcessEnded,
    ProgramBegan,
    ProgramEnded,
    Received,
    Sent,
    TaskBegan,
    TaskEnded,
    TaskGrew,
    TasksBegan,
    TasksEnded,
    TaskShrank,
    TasksWait,
)
from tests.chaos.wire import idset

EIO, ENODATA = 5, 61
INSTANCE = "instance"
DRAIN_REASON = "tests"
"""Reason of all drains by administrators."""
OUTAGE_REASON = "outage"
"""Reason of all planned outages."""
HEALTH_USER = "fluxsched:health"
"""The user of drains that health checks make."""
OUTAGE_SET = ("resource.outage-add", "resource.outage-update")
SPARE_GROUP = "spares"
SCHEDULER_PREFIX = "sched-"


def reasons_of(line: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """All reasons of a drain in a status, each with its user."""
    return line.get("reasons") or [line]


def drained_for(status: Mapping[str, Any], reason: str) -> set[int]:
    """The targets that are drained for this reason, perhaps for others, too."""
    lines = status["drain"].items()
    found = [ranks for ranks, line in lines if reason in [each.get("reason") for each in reasons_of(line)]]
    return {rank for ranks in found for rank in idset(ranks)}


def names_parts(payload: Mapping[str, Any]) -> bool:
    """Whether a request to drain or undrain is about parts of targets."""
    return bool(payload.get("cores") or payload.get("gpus"))


class Violation(AssertionError):
    """A law is broken."""

    def __init__(self, checker: str, text: str, at_s: float = 0.0) -> None:
        super().__init__(f"{checker} at {at_s:.6f} s: {text}")
        self.checker = checker
        self.text = text
        self.at_s = at_s

    def __reduce__(self) -> tuple[type[Violation], tuple[str, str, float]]:
        return Violation, (self.checker, self.text, self.at_s)


class Outage(NamedTuple):
    """A planned outage, in seconds since the epoch; `every_s` from begin to begin, if it recurs. `ends_jobs`: what
    crosses it ends when it begins.
    """

    targets: frozenset[int]
    from_s: float
    until_s: float
    every_s: float = 0.0
    ends_jobs: bool = False
    queue: str = ""
    """The queue to which it is dedicated: an outage for the jobs of all other groups."""
    reservation: str = ""
    """Its name if it is one: an outage for all jobs but those that name it."""
    is_others: bool = False
    """Whether it is a reservation for other users than those of the tests."""

    def at(self, at_s: float) -> Outage | None:
        """The occurrence that is on then, or comes next."""
        if self.until_s > at_s:
            return self
        if not self.every_s:
            return None
        later_s = (floor((at_s - self.until_s) / self.every_s) + 1) * self.every_s
        return self._replace(from_s=self.from_s + later_s, until_s=self.until_s + later_s)


@dataclass(frozen=True)
class Site:
    """What is known of the simulated site beforehand."""

    cores: Mapping[int, frozenset[int]]
    """Of each target by rank."""
    groups: Mapping[int, str]
    """The configured group of each target."""
    queues: Mapping[str, str]
    """The group of each queue."""
    duration_max: Mapping[str, float] = field(default_factory=dict)
    """The longest duration of a queue's jobs, where there is a limit (seconds)."""
    nodes_max: Mapping[str, int] = field(default_factory=dict)
    running_max: Mapping[str, int] = field(default_factory=dict)
    """How many jobs of a queue may run at once, where there is a limit."""
    outages: tuple[Outage, ...] = ()
    """Those of the configuration."""
    steps_s: float = 0.0
    """By how much the clocks are stepped in all (seconds)."""
    prolog: str = ""
    """On which hosts of a job the prolog runs, `host` for each or `job` for the first one; empty without one."""
    epilog: str = ""
    """The same of the epilog."""
    health_timeout_s: float = 0.0
    """The time limit of health checks; 0 without any (seconds)."""
    is_checked_at_start: bool = False
    """Whether a host is checked before it goes online."""
    is_slow: bool = False
    """Whether it may take long until the instance is told of something, so that any check may have been too late, or
    cannot be started.
    """
    hosts: tuple[str, ...] = ()
    """The host of each rank, where each has a keeper of its own."""
    kill_timeout_s: float = 0.0
    """Time after which tasks that were asked to end are killed (seconds)."""

    def nodes_of(self, queue: str) -> int:
        """How many targets its group has by the configuration."""
        return list(self.groups.values()).count(self.queues[queue])

    @property
    def spares(self) -> frozenset[int]:
        """The targets that stand by to replace others."""
        return frozenset(rank for rank, group in self.groups.items() if group == SPARE_GROUP)


@dataclass(eq=False)
class Call:
    """One request of a client, and how far it has come."""

    actor: str
    link: int
    topic: str
    payload: Any
    asked_s: float
    is_streaming: bool
    is_awaited: bool = True
    """Whether it has a matchtag, so that it is answered."""
    answers: int = 0
    is_over: bool = False
    """Whether its connection is over; answers that were under way may arrive nevertheless."""


@dataclass
class Truth:
    """What was read when all had settled."""

    at_s: float
    jobs: Mapping[int, Mapping[str, Any]]
    """As `job-manager.list` shows them."""
    eventlogs: Mapping[int, list[dict[str, Any]]]
    status: Mapping[str, Any]
    groups: list[dict[str, Any]]
    journal: list[dict[str, Any]]
    specs: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    allocated: frozenset[int] = frozenset()
    """Targets that the instance counts as allocated."""
    schedulers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The figures of each scheduler module."""
    accounts: Mapping[str, Any] | None = None
    """The total of `history.report`."""
    resources: Mapping[int, Mapping[str, Any] | None] = field(default_factory=dict)
    """R of each job, as it was at last."""


class Checker:
    """One law. What is not overridden is not looked at."""

    name = "?"

    def __init__(self, site: Site) -> None:
        self.site = site
        self.now_s = 0.0

    def broken(self, text: str) -> Violation:
        """What to raise."""
        return Violation(self.name, text, self.now_s)

    def asked(self, call: Call) -> None:
        """A client has sent a request."""

    def answered(self, call: Call, payload: Any, errnum: int) -> None:
        """A response has arrived; `errnum` other than 0 is the last."""

    def given_up(self, call: Call) -> None:
        """The connection of an open call is over: only answers that are under way may still come."""

    def told(self, message: Received) -> None:
        """A request of the instance has arrived at a scheduler."""

    def replied(self, message: Answered) -> None:
        """A scheduler has sent a response to such a request."""

    def link_ended(self, ended: LinkEnded) -> None:
        """A connection is over; after `given_up` of its calls."""

    def began(self, task: TaskBegan) -> None:
        """Tasks run."""

    def ended(self, task: TaskEnded) -> None:
        """Tasks no longer run."""

    def grew(self, task: TaskGrew) -> None:
        """Tasks run on further targets."""

    def shrank(self, task: TaskShrank) -> None:
        """Tasks have left targets."""

    def tasks_wait(self, tasks: TasksWait) -> None:
        """Tasks wait behind their gate on one of several hosts."""

    def tasks_began(self, tasks: TasksBegan) -> None:
        """They run there."""

    def tasks_ended(self, tasks: TasksEnded) -> None:
        """They are gone from there."""

    def program_began(self, program: ProgramBegan) -> None:
        """A program of the site runs."""

    def program_ended(self, program: ProgramEnded) -> None:
        """It does not any more."""

    def host_stopped(self, stopped: HostStopped) -> None:
        """A host does nothing for a while."""

    def keeper_connected(self, connected: KeeperConnected) -> None:
        """The keeper of a host is connected."""

    def process_ended(self, ended: ProcessEnded) -> None:
        """A process is gone."""

    def configured(self, one: Configured) -> None:
        """The file has other outages."""

    def quiet(self, status: Mapping[str, Any], groups: list[dict[str, Any]]) -> None:
        """Nothing has been done for a while: what all should know by now."""

    def settled(self, truth: Truth) -> None:
        """All has ended: what must hold then."""


HOOKS = (
    "asked", "answered", "given_up", "told", "replied", "link_ended", "began", "ended", "grew", "shrank",
    "tasks_wait", "tasks_began", "tasks_ended", "program_began", "program_ended", "host_stopped",
    "keeper_connected", "process_ended", "configured",
)  # fmt: skip


class Judges:
    """All checkers, and the calls that they are told of."""

    def __init__(self, checkers: Iterable[Checker]) -> None:
        self.checkers = list(checkers)
        self._hooks = {name: self._that_look_at(name) for name in HOOKS}
        self._open: dict[tuple[int, int], Call] = {}
        self._over: set[int] = set()

    def see(self, one: Observation) -> None:
        """Tell all checkers; raises the first Violation."""
        for checker in self.checkers:
            checker.now_s = one.at_s
        match one:
            case Sent():
                self._sent(one)
            case Received(errnum=None):
                self._each("told", one)
            case Received():
                self._received(one)
            case Answered():
                self._each("replied", one)
            case LinkEnded():
                self._link_ended(one)
            case TaskBegan():
                self._each("began", one)
            case TaskEnded():
                self._each("ended", one)
            case TaskGrew():
                self._each("grew", one)
            case TaskShrank():
                self._each("shrank", one)
            case TasksWait():
                self._each("tasks_wait", one)
            case TasksBegan():
                self._each("tasks_began", one)
            case TasksEnded():
                self._each("tasks_ended", one)
            case ProgramBegan():
                self._each("program_began", one)
            case ProgramEnded():
                self._each("program_ended", one)
            case HostStopped():
                self._each("host_stopped", one)
            case KeeperConnected():
                self._each("keeper_connected", one)
            case ProcessEnded():
                self._each("process_ended", one)
            case Configured():
                self._each("configured", one)

    def quiet(self, at_s: float, status: Mapping[str, Any], groups: list[dict[str, Any]]) -> None:
        """Nothing has been done for a while."""
        for checker in self.checkers:
            checker.now_s = at_s
            checker.quiet(status, groups)

    def settled(self, truth: Truth) -> None:
        """All has ended."""
        for checker in self.checkers:
            checker.now_s = truth.at_s
            checker.settled(truth)

    def _that_look_at(self, name: str) -> list[Callable[..., None]]:
        """The hooks of this name that do something."""
        mine = [checker for checker in self.checkers if getattr(type(checker), name) is not getattr(Checker, name)]
        return [getattr(checker, name) for checker in mine]

    def _each(self, hook: str, *values: Any) -> None:
        for call in self._hooks[hook]:
            call(*values)

    def _sent(self, one: Sent) -> None:
        call = Call(one.actor, one.link, one.topic, one.payload, one.at_s, one.is_streaming, bool(one.matchtag))
        if one.matchtag:
            self._open[one.link, one.matchtag] = call
        call.is_over = one.link in self._over  # it will notice soon
        self._each("asked", call)
        if call.is_over:
            self._each("given_up", call)

    def _received(self, one: Received) -> None:
        assert one.errnum is not None
        call = self._open.get((one.link, one.matchtag))
        if call is None:
            raise Violation("answers", f"{one.actor} was sent an answer to no open call: {one}", one.at_s)
        call.answers += 1
        if one.errnum or not call.is_streaming:
            del self._open[one.link, one.matchtag]
        self._each("answered", call, {} if one.payload is None else one.payload, one.errnum)

    def _link_ended(self, one: LinkEnded) -> None:
        self._over.add(one.link)
        for call in [call for (link, _), call in self._open.items() if link == one.link]:
            call.is_over = True
            self._each("given_up", call)
        self._each("link_ended", one)
