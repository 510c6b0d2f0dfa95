"""Histories written by hand: what the tests of checkers give them to see."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.chaos.checkers.base import SPARE_GROUP, Judges, Site, Truth
from tests.chaos.observations import (
    EPOCH_S,
    Answered,
    Configured,
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
)
from tests.chaos.wire import idset

SITE = Site(
    cores={rank: frozenset(range(4)) for rank in range(4)},
    groups={0: "default", 1: "default", 2: "lab", 3: "lab"},
    queues={"batch": "default", "lab": "lab"},
    duration_max={"lab": 60.0},
    nodes_max={"lab": 1},
    running_max={"lab": 1},
)
HOSTS_SITE = replace(SITE, hosts=("node0", "node1", "node2", "node3"), kill_timeout_s=5.0)
"""The same with a keeper on each host."""
ALL_SITE = replace(
    HOSTS_SITE,
    cores={**HOSTS_SITE.cores, 4: frozenset(range(4)), 5: frozenset(range(2)), 6: frozenset(range(4))},
    groups={**HOSTS_SITE.groups, 4: SPARE_GROUP, 5: SPARE_GROUP, 6: SPARE_GROUP},
    prolog="host",
    epilog="host",
    health_timeout_s=2.0,
    is_checked_at_start=True,
)
"""The same with spares, one of which is smaller than the others, a prolog, an epilog and health checks."""
CLEAN = ("submit", "validate", "depend", "priority", "alloc", "start", "finish", "release", "free", "clean")


def resources(ranks: str, cores: str = "0-3") -> dict[str, Any]:
    """An R."""
    lite = [{"rank": ranks, "children": {"core": cores}}] if ranks else []
    return {"version": 1, "execution": {"R_lite": lite, "starttime": 0.0, "expiration": 0.0, "nodelist": [""]}}


def spec(
    queue: str = "batch", cores: int = 4, nodes: int = 0, duration_s: float = 60.0, **system: Any
) -> dict[str, Any]:
    """A jobspec as far as checkers read it."""
    chaos = {"cores": cores, "nodes": nodes}
    return {"attributes": {"system": {"queue": queue, "duration": duration_s} | system, "user": {"chaos": chaos}}}


def log(names: tuple[str, ...] = CLEAN, status: int = 0) -> list[dict[str, Any]]:
    """An eventlog of these events, a second apart."""
    contexts = {"finish": {"status": status}, "exception": {"type": "cancel", "severity": 0}}
    return [{"timestamp": float(at), "name": name, "context": contexts.get(name, {})} for at, name in enumerate(names)]


def online(at_s: float, ranks: str) -> dict[str, Any]:
    """An event of the journal."""
    return {"timestamp": EPOCH_S + at_s, "name": "online", "context": {"idset": ranks}}


def truth(
    eventlogs: dict[int, list[dict[str, Any]]] | None = None, *, drained: str = "", online: str = "0-3", **more: Any
) -> Truth:
    """What is read in the end."""
    eventlogs = eventlogs or {}
    values: dict[str, Any] = {
        "jobs": {jobid: {"id": jobid, "state": "INACTIVE"} for jobid in eventlogs},
        "status": {"online": online, "torpid": "", "drain": {drained: {}} if drained else {}},
        "groups": [
            {"name": "default", "targets": "0-1", "leaving": "", "incoming": ""},
            {"name": "lab", "targets": "2-3", "leaving": "", "incoming": ""},
        ],
        "journal": [],
    }
    return Truth(at_s=10_000.0, eventlogs=eventlogs, **(values | more))


class History:
    """Writes observations a second apart, or at a given time."""

    def __init__(self, judges: Judges) -> None:
        self._judges = judges
        self._tag = self._programs = 0
        self._asked: dict[int, Sent] = {}
        self.now_s = 0.0

    def _see(self, one: Observation) -> None:
        self._judges.see(one)

    def wait(self, delay_s: float) -> None:
        """Let time pass."""
        self.now_s += delay_s

    def ask(self, actor: str, topic: str, payload: Any = None, *, link: int = 1, streaming: bool = False) -> int:
        """A client asks; returns the matchtag."""
        self.now_s += 1
        self._tag += 1
        sent = Sent(self.now_s, actor, link, topic, payload, self._tag, streaming)
        self._asked[self._tag] = sent
        self._see(sent)
        return self._tag

    def answer(self, tag: int, payload: Any = None, errnum: int = 0) -> None:
        """The instance answers."""
        self.now_s += 1
        sent = self._asked[tag]
        self._see(Received(self.now_s, sent.actor, sent.link, sent.topic, payload, tag, errnum))

    def call(
        self, actor: str, topic: str, payload: Any, response: Any = None, *, link: int = 1, errnum: int = 0
    ) -> None:
        """Both."""
        self.answer(self.ask(actor, topic, payload, link=link), response, errnum)

    def acquire(self, actor: str, group: str, ranks: str, *, link: int = 1) -> int:
        """A stream with its first grow, all online; returns the matchtag."""
        tag = self.ask(actor, "resource.acquire", {"group": group}, link=link, streaming=True)
        self.answer(tag, {"type": "grow", "resources": resources(ranks), "online": ranks, "offline": ""})
        return tag

    def shrink(self, tag: int, targets: str) -> None:
        """The instance takes targets away."""
        self.answer(tag, {"type": "shrink", "targets": targets})

    def release(self, actor: str, group: str, targets: str, *, link: int = 1) -> int:
        """An acquirer gives them back."""
        return self.ask(actor, "resource.release", {"group": group, "targets": targets}, link=link)

    def submit(self, jobid: int, **wanted: Any) -> None:
        """A job that is acknowledged."""
        self.call("ann", "job-manager.submit", {"jobspec": spec(**wanted), "urgency": 16}, {"id": jobid})

    def place(self, actor: str, jobid: int, ranks: str, until_s: float = 0.0, behind_s: float = 0.0) -> None:
        """A scheduler grants a job its resources, until then, by a clock that is so much behind."""
        self.now_s += 1
        r = resources(ranks)
        r["execution"] |= {"starttime": EPOCH_S + self.now_s - behind_s, "expiration": until_s and EPOCH_S + until_s}
        payload = {"id": jobid, "type": 0, "R": r}
        self._see(Answered(self.now_s, actor, 9, "sched.alloc", payload, 0, 0))

    def begin(self, jobid: int, ranks: str = "0", cores: str = "0-3") -> None:
        """Its tasks run."""
        self.now_s += 1
        used = {
            rank: frozenset(SITE.cores[0]) if cores == "0-3" else frozenset({int(cores)})
            for rank in map(int, ranks.split(","))
        }
        self._see(TaskBegan(self.now_s, jobid, 0, used))

    def begin_on(self, rank: int, jobid: int, task: int = 0, recorded: str = "0-3") -> None:
        """A task of it runs on a host."""
        self.now_s += 1
        on_record = frozenset(f"node{one}" for one in idset(recorded))
        cores = {rank: SITE.cores[rank]}
        self._see(TasksBegan(self.now_s, f"node{rank}", jobid, frozenset({task}), cores, on_record))

    def end_on(self, rank: int, jobid: int, status: int = 0) -> None:
        """None is left there."""
        self.now_s += 1
        self._see(TasksEnded(self.now_s, f"node{rank}", jobid, rank, status))

    def program(self, jobid: int, what: str, rank: int, status: int | None = None) -> None:
        """A program runs for a job, and with a status has ended."""
        self.now_s += 1
        self._programs += 1
        cores = {rank: SITE.cores[rank]}
        self._see(ProgramBegan(self.now_s, self._programs, what, jobid, f"node{rank}", cores))
        if status is not None:
            self._see(ProgramEnded(self.now_s, self._programs, status))

    def connect(self, host: str) -> None:
        """The keeper of a host has connected."""
        self.now_s += 1
        self._see(KeeperConnected(self.now_s, host))

    def spread(self, jobid: int, ranks: str) -> None:
        """They run there, too."""
        self.now_s += 1
        self._see(TaskGrew(self.now_s, jobid, {rank: SITE.cores[rank] for rank in idset(ranks)}))

    def withdraw(self, jobid: int, ranks: str) -> None:
        """They have left these."""
        self.now_s += 1
        self._see(TaskShrank(self.now_s, jobid, idset(ranks)))

    def tell(self, actor: str, topic: str, payload: Any) -> None:
        """The instance tells a scheduler."""
        self.now_s += 1
        self._see(Received(self.now_s, actor, 9, topic, payload, 0, None))

    def end(self, jobid: int, status: int = 0) -> None:
        """They do not any more."""
        self.now_s += 1
        self._see(TaskEnded(self.now_s, jobid, 0, status))

    def configure(self, *outages: dict[str, Any]) -> None:
        """The configuration file names these."""
        self.now_s += 1
        self._see(Configured(self.now_s, outages))

    def cut(self, link: int = 1) -> None:
        """A connection ends."""
        self.now_s += 1
        self._see(LinkEnded(self.now_s, link, "cut"))

    def kill(self, process: str = "instance") -> None:
        """A process ends."""
        self.now_s += 1
        self._see(ProcessEnded(self.now_s, process, 1, "killed"))
