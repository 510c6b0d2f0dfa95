"""Jobs over several hosts: a task runs once, after the processes of all hosts are on record, and none once its job
has ended or its target is free, whatever becomes of hosts and of what lies between them. A host on which a keeper has
left tasks is offline until they are gone.

A host that was stopped is spared for a while: what runs on it cannot know how late it is before it has looked.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

from tests.chaos.checkers.base import Call, Checker, Site, Truth
from tests.chaos.observations import (
    EPOCH_S,
    Answered,
    HostStopped,
    KeeperConnected,
    ProcessEnded,
    Received,
    TasksBegan,
    TasksEnded,
    TasksWait,
)
from tests.chaos.wire import cores_of, idset

KEEPER = "keeper-"
JUDGE = "judge"
OVER = frozenset({"finish", "free", "clean"})
"""Events of a job that has no tasks."""
SPARED_S = 10.0
"""Time for which a host may have tasks after it was stopped, besides the kill timeout (seconds)."""
TURN_S = 0.1
"""Events of one turn have one time: more than it lasts (seconds)."""
LATE_S = 120.0
"""How long tasks may outlast the time limit (seconds): a host may be away, and an instance that is dead ends none."""


class Hosts(Checker):
    """Follows the tasks on each host."""

    name = "hosts"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._placed: dict[int, frozenset[int]] = {}
        self._ran: dict[int, set[int]] = {}
        self._there: dict[tuple[int, int], TasksWait | TasksBegan] = {}
        """What is on each target, by job and target: running, or behind a gate."""
        self._spared_until_s: dict[str, float] = {}
        self._stopped_s = 0.0
        self._lasted: list[tuple[int, float]] = []
        self._statuses: dict[int, list[int]] = {}
        self._without_keeper: set[str] = set()
        """Hosts whose keeper has ended at some time."""
        self._left: dict[tuple[int, int], float | None] = {}
        """What keepers that have ended have left, by job and target: when the next one had connected, if it has."""
        self._unusable: list[tuple[int, float, float]] = []
        """Targets, and from when to when they must not have been online."""
        self._tried: set[int] = set()

    # ---- what happens

    def replied(self, message: Answered) -> None:
        """A scheduler places a job."""
        if message.topic == "sched.alloc" and message.payload["type"] == 0:
            self._placed[message.payload["id"]] = frozenset(cores_of(message.payload["R"]))

    def tasks_wait(self, tasks: TasksWait) -> None:
        """They are processes, which must not be left."""
        self._there[tasks.jobid, tasks.rank] = tasks

    def tasks_began(self, tasks: TasksBegan) -> None:
        """For the first time, and all hosts of the job are on record if these are its first ones."""
        again = self._ran.get(tasks.jobid, set()) & tasks.tasks
        if again:
            raise self.broken(f"tasks {sorted(again)} of job {tasks.jobid} run a second time, on {tasks.host}")
        if tasks.jobid not in self._ran:
            missing = {self.site.hosts[rank] for rank in self._placed.get(tasks.jobid, ())} - tasks.recorded
            if missing:
                raise self.broken(f"job {tasks.jobid} runs on {tasks.host}, and {missing} are not on record")
        self._ran.setdefault(tasks.jobid, set()).update(tasks.tasks)
        self._there[tasks.jobid, next(iter(tasks.cores))] = tasks

    def tasks_ended(self, tasks: TasksEnded) -> None:
        """Nothing is left there."""
        connected_s = self._left.pop((tasks.jobid, tasks.rank), None)
        if connected_s is not None:
            self._unusable.append((tasks.rank, connected_s, tasks.at_s))
        began = self._there.pop((tasks.jobid, tasks.rank), None)
        if isinstance(began, TasksBegan):
            self._statuses.setdefault(tasks.jobid, []).append(tasks.status)
            self._lasted.append((tasks.jobid, tasks.at_s - began.at_s))

    def host_stopped(self, stopped: HostStopped) -> None:
        """It is spared."""
        until_s = stopped.until_s + self.site.kill_timeout_s + SPARED_S
        self._spared_until_s[stopped.host] = max(until_s, self._spared_until_s.get(stopped.host, 0.0))
        self._stopped_s += stopped.until_s - stopped.at_s

    def process_ended(self, ended: ProcessEnded) -> None:
        """A host may have lost what it ran, or have it left."""
        if ended.process.startswith(KEEPER):
            host = ended.process.removeprefix(KEEPER)
            self._without_keeper.add(host)
            left = [key for key, tasks in self._there.items() if tasks.host == host]
            self._left = dict.fromkeys(left) | self._left

    def keeper_connected(self, connected: KeeperConnected) -> None:
        """A keeper finds what one before it has left."""
        for key, connected_s in self._left.items():
            if connected_s is None and self._there[key].host == connected.host:
                self._left[key] = connected.at_s

    # ---- fencing

    def told(self, message: Received) -> None:
        """A scheduler hears that targets are free."""
        if message.topic == "sched.free":
            jobid = message.payload["id"]
            for rank in cores_of(message.payload["R"]):
                self._is_gone(jobid, rank, f"{message.actor} was told that it is free")

    def answered(self, call: Call, payload: Any, errnum: int) -> None:
        """A job's end is announced; the judge's own jobs try each host in the end."""
        if errnum:
            return
        if call.topic == "job-manager.watch":
            for jobid, _, name, _ in payload["events"]:
                if name in OVER:
                    for rank in [rank for other, rank in self._there if other == jobid]:
                        self._is_gone(jobid, rank, f"its {name} was announced")
        elif call.topic == "job-manager.submit" and call.actor == JUDGE:
            self._tried.add(payload["id"])

    def _is_gone(self, jobid: int, rank: int, why: str) -> None:
        found = self._there.get((jobid, rank))
        if isinstance(found, TasksBegan) and self.now_s > self._spared_until_s.get(found.host, 0.0):
            raise self.broken(f"tasks of job {jobid} run on {found.host}, target {rank}, though {why}")

    # ---- in the end

    def settled(self, truth: Truth) -> None:
        """Nothing is left anywhere, what was said of the jobs is what happened, and all hosts are used again."""
        if self._there:
            raise self.broken(f"processes of jobs that have ended are left: {sorted(self._there)}")
        for jobid, lasted_s in self._lasted:
            duration_s = truth.specs[jobid]["attributes"]["system"]["duration"]
            most_s = duration_s + LATE_S + self.site.kill_timeout_s + self._stopped_s + self.site.steps_s
            if duration_s and lasted_s > most_s:
                raise self.broken(f"tasks of job {jobid}, whose limit is {duration_s} s, ran for {lasted_s} s")
        for jobid, events in truth.eventlogs.items():
            is_elastic = "parts" in truth.specs[jobid]["attributes"]["user"]["chaos"]
            self._story(jobid, events, is_elastic=is_elastic)
        self._offline(truth)
        if len(self._tried) < (hosts := len(self.site.hosts) - len(self.site.spares)):
            raise self.broken(f"{len(self._tried)} jobs tried {hosts} hosts")
        for jobid in self._tried:
            if truth.jobs[jobid].get("result") != "COMPLETED":
                raise self.broken(f"a host that is back does not run job {jobid}: {truth.eventlogs[jobid]}")

    def _offline(self, truth: Truth) -> None:
        """A host whose keeper is connected is not online before the tasks are gone that one before it has left."""
        for rank, online_s, offline_s in _online(truth.journal):
            for other, connected_s, gone_s in self._unusable:
                if rank == other and min(offline_s, gone_s) - max(online_s, connected_s) > TURN_S:
                    left = f"tasks that a keeper had left there until {gone_s} s"
                    raise self.broken(f"target {rank} was online from {online_s} s on, in spite of {left}")

    def _story(self, jobid: int, events: list[dict[str, Any]], *, is_elastic: bool) -> None:
        exceptions = [event["context"] for event in events if event["name"] == "exception"]
        for one in exceptions:
            note = one.get("note", "")
            for host in self.site.hosts:
                if f"host {host} was lost" in note and host not in self._without_keeper:
                    raise self.broken(f"job {jobid} was given up, and the keeper of {host} lives: {note}")
        if exceptions or is_elastic or jobid not in self._ran:  # an elastic one goes on where a part has failed
            return
        statuses = self._statuses.get(jobid, [0])
        if not any(event["name"] == "finish" and event["context"]["status"] == max(statuses) for event in events):
            raise self.broken(f"tasks of job {jobid} ended with {statuses}; its log says {events}")


def _online(journal: list[dict[str, Any]]) -> Iterator[tuple[int, float, float]]:
    """Each time that a target was online: the target, and from when to when."""
    since_s: dict[int, float] = {}
    for event in journal:
        at_s, context = event["timestamp"] - EPOCH_S, event.get("context", {})
        came, gone = frozenset[int](), frozenset[int]()
        match event["name"]:
            case "restart":
                came, gone = idset(context["online"]), frozenset(since_s)
            case "online":
                came = idset(context["idset"]) - since_s.keys()
            case "offline":
                gone = idset(context["idset"]) & since_s.keys()
        for rank in gone:
            yield rank, since_s.pop(rank), at_s
        since_s |= dict.fromkeys(came, at_s)
    for rank, at_s in since_s.items():
        yield rank, at_s, inf
