"""Elastic jobs keep their minima; what they are to leave they release; their tasks run on what they hold alone.

What a scheduler was answered, and what the log says in the end, must be the same story.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.chaos.checkers.base import ENODATA, Call, Checker, Site, Truth
from tests.chaos.observations import Answered, Received, TaskBegan, TaskEnded, TaskGrew, TaskShrank
from tests.chaos.wire import cores_of, idset

GROW, SHRINK = "job-manager.sched-grow", "job-manager.sched-shrink"
Ranks = frozenset[int]
GOING_S = 120.0
"""How long a job may take to leave targets (seconds): its tasks may be killed late, by an instance that was away."""

COMING_S = 60.0
"""How long its tasks may take to come to targets (seconds), likewise."""


class Sizes(Checker):
    """Follows what each job was given, and where its tasks are."""

    name = "sizes"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._given: dict[int, set[int]] = {}
        """All targets that a scheduler ever gave to a job."""
        self._labels: dict[int, dict[int, str]] = {}
        self._tasks: dict[int, Ranks] = {}
        self._ever: dict[int, Ranks] = {}
        self._again: dict[int, Ranks] = {}
        """What a job was given a second time: it may have left that before its tasks came there."""
        self._stored: list[tuple[int, str, Ranks]] = []
        self._told: dict[Call, list[tuple[str, Ranks]]] = {}
        self._first: dict[int, Ranks] = {}
        """What jobs held at first."""
        self._to_the_end: set[Call] = set()
        """Those that were told of all until the job had ended."""

    # ---- what is said

    def replied(self, message: Answered) -> None:
        """A scheduler places a job."""
        if message.topic == "sched.alloc" and message.payload["type"] == 0:
            self._give(message.payload["id"], message.payload["R"])

    def asked(self, call: Call) -> None:
        """Or has it grow: that may be stored from now on."""
        if call.topic == GROW:
            self._give(call.payload["id"], call.payload["R"])

    def _give(self, jobid: int, resources: dict[str, Any]) -> None:
        given, ranks = self._given.setdefault(jobid, set()), frozenset(cores_of(resources))
        self._again[jobid] = self._again.get(jobid, frozenset()) | ranks & given
        given |= ranks
        for label, ranks in ((resources.get("scheduling") or {}).get("parts") or {}).items():
            self._labels.setdefault(jobid, {}).update(dict.fromkeys(idset(ranks), label))

    def answered(self, call: Call, payload: Any, errnum: int) -> None:
        """What is answered well is stored for ever; who follows a job is told of what is stored."""
        if errnum == ENODATA and call.topic == "job-manager.changes":
            self._to_the_end.add(call)
        if errnum:
            return
        if call.topic == GROW:
            self._stored.append((call.payload["id"], "grow", frozenset(cores_of(call.payload["R"]))))
        elif call.topic == SHRINK:
            self._stored.append((call.payload["id"], "shrink", idset(call.payload["ranks"])))
        elif call.topic == "job-manager.changes":
            told = self._told.setdefault(call, [])
            if (payload["event"] == "now") != (not told):
                raise self.broken(f"{call.actor} was told of job {payload['id']}: {payload['event']} after {told}")
            told.append((payload["event"], idset(payload["ranks"])))
        elif call.topic == "job-manager.watch":
            for jobid, _, name, context in payload["events"]:
                if name == "release" and not context["final"]:
                    again = self._again.get(jobid, frozenset())  # the news may be older than that
                    self._is_left(jobid, idset(context["ranks"]) - again, "its release was announced")

    def told(self, message: Received) -> None:
        """A scheduler hears that targets are free."""
        if message.topic == "sched.free":
            ranks = frozenset(cores_of(message.payload["R"]))
            self._is_left(message.payload["id"], ranks, f"{message.actor} was told that they are free")

    def _is_left(self, jobid: int, ranks: Ranks, why: str) -> None:
        still = self._tasks.get(jobid, frozenset()) & ranks
        if still:
            raise self.broken(f"tasks of job {jobid} run on {sorted(still)} though {why}")

    # ---- what happens

    def began(self, task: TaskBegan) -> None:
        """Tasks run."""
        self._runs(task.jobid, frozenset(task.cores))

    def grew(self, task: TaskGrew) -> None:
        """They run on more, which the job was given before."""
        jobid, ranks = task.jobid, frozenset(task.cores)
        self._runs(jobid, ranks)
        if not ranks <= self._given.get(jobid, set()):
            raise self.broken(f"tasks of job {jobid} run on {sorted(ranks)}; it was given {self._given.get(jobid)}")

    def _runs(self, jobid: int, ranks: Ranks) -> None:
        self._tasks[jobid] = self._tasks.get(jobid, frozenset()) | ranks
        self._ever[jobid] = self._ever.get(jobid, frozenset()) | ranks

    def shrank(self, task: TaskShrank) -> None:
        """They have left targets."""
        self._tasks[task.jobid] = self._tasks.get(task.jobid, frozenset()) - task.ranks

    def ended(self, task: TaskEnded) -> None:
        """They have left all."""
        self._tasks.pop(task.jobid, None)

    # ---- in the end

    def settled(self, truth: Truth) -> None:
        """Each log is a story that may be."""
        changes = {jobid: self._story(jobid, truth) for jobid in truth.eventlogs}
        for jobid, events in truth.eventlogs.items():
            self._check_leaving(jobid, events)
            self._check_coming(jobid, events)
        for (jobid, name, ranks), times in Counter(self._stored).items():
            if jobid in changes and changes[jobid].count((name, ranks)) < times:
                what = f"{name} of job {jobid} by {set(ranks)} was answered {times} times"
                raise self.broken(f"{what}; its log has {changes[jobid]}")
        for call, told in self._told.items():
            jobid = call.payload["id"]
            if jobid in changes and not self._may_be_told(told, jobid, changes[jobid], call in self._to_the_end):
                raise self.broken(f"{call.actor} was told of job {jobid}: {told}; its log has {changes[jobid]}")

    def _may_be_told(
        self, told: list[tuple[str, Ranks]], jobid: int, logged: list[tuple[str, Ranks]], is_whole: bool
    ) -> bool:
        """At first what the job had at some time, then what came after that; if it is `is_whole`, to the end."""
        (_, now), *said = told
        staying = set(self._first.get(jobid, ()))
        for at in range(len(logged) + 1):
            left = logged[at:]
            if staying == now and (left == said if is_whole else left[: len(said)] == said):
                return True
            for name, ranks in left[:1]:
                staying = staying | ranks if name == "grow" else staying - ranks
        return False

    def _story(self, jobid: int, truth: Truth) -> list[tuple[str, Ranks]]:
        """By what a job has grown and shrunk; what it held is followed from the last to the first, and back."""
        events = _while_it_ran(truth.eventlogs[jobid])
        resources = truth.resources.get(jobid)
        held = set(cores_of(dict(resources))) if resources else set[int]()
        for name, ranks in reversed(events):
            if name == "release":
                held |= ranks
            elif name == "grow":
                held -= ranks
        self._first[jobid] = frozenset(held)
        self._check(jobid, held, events, truth)
        return [one for one in events if one[0] != "release"]

    def _check(self, jobid: int, held: set[int], events: list[tuple[str, Ranks]], truth: Truth) -> None:
        spec = truth.specs.get(jobid) or {}
        parts = spec.get("attributes", {}).get("user", {}).get("chaos", {}).get("parts")
        if events and not parts:
            raise self.broken(f"job {jobid} is not elastic, and changed its size: {events}")
        going, ever = set[int](), set(held)
        if held:
            self._check_minima(jobid, parts, held)
        for name, ranks in events:
            right = {"grow": not ranks & held, "shrink": ranks <= held - going, "release": ranks <= going}[name]
            if not right:
                raise self.broken(f"job {jobid} held {held}, was leaving {going}: {name} {sorted(ranks)} in {events}")
            if name == "grow":
                held |= ranks
                ever |= ranks
            elif name == "shrink":
                going |= ranks
            else:
                held -= ranks
                going -= ranks
            self._check_minima(jobid, parts, held - going)
        if jobid in truth.resources and not self._ever.get(jobid, frozenset()) <= ever:
            raise self.broken(f"tasks of job {jobid} ran on {set(self._ever[jobid])}; its log gives it {ever}")

    def _check_leaving(self, jobid: int, events: list[dict[str, Any]]) -> None:
        """What a job is to leave it has left soon, if it does not end before."""
        since: dict[int, float] = {}
        for event in events:
            name, at_s, context = event["name"], event["timestamp"], event.get("context") or {}
            if name == "shrink":
                since |= dict.fromkeys(idset(context["ranks"]), at_s)
            late = [rank for rank, from_s in since.items() if at_s > from_s + GOING_S + self.site.steps_s]
            if late:
                raise self.broken(f"job {jobid} was to leave {late} since {since}; at {at_s} it had not: {name}")
            if name == "release":
                left = context.get("ranks", "all")
                gone = since.keys() if left == "all" else idset(left)
                since = {rank: from_s for rank, from_s in since.items() if rank not in gone}

    def _check_coming(self, jobid: int, events: list[dict[str, Any]]) -> None:
        """A job's tasks, if it has any, come soon to what it has grown by, unless it ends or leaves that before."""
        since: dict[int, float] = {}
        for event in events if jobid in self._ever else ():
            name, at_s, context = event["name"], event["timestamp"], event.get("context") or {}
            due = {rank for rank, from_s in since.items() if at_s > from_s + COMING_S + self.site.steps_s}
            if missing := due - self._ever[jobid]:
                raise self.broken(f"no task of job {jobid} came to {missing} since {since}; it is {at_s}: {name}")
            if name == "grow":
                since |= dict.fromkeys(cores_of(context["R"]), at_s)
            elif name == "shrink":
                since = {rank: from_s for rank, from_s in since.items() if rank not in idset(context["ranks"])}
            elif name == "finish" or (name == "exception" and context["severity"] == 0):
                return

    def _check_minima(self, jobid: int, parts: dict[str, list[int]] | None, staying: set[int]) -> None:
        labels = self._labels.get(jobid, {})
        for label, (least, most) in (parts or {}).items():
            count = sum(len(parts or ()) == 1 or labels.get(rank) == label for rank in staying)
            if not least <= count <= most:
                raise self.broken(f"part {label} of job {jobid} has {count} of {least} to {most} nodes: {staying}")


def _while_it_ran(log: list[dict[str, Any]]) -> list[tuple[str, Ranks]]:
    """The changes of its size that a log has, in order."""
    found: list[tuple[str, Ranks]] = []
    for event in log:
        name, context = event["name"], event.get("context") or {}
        if name == "finish" or (name == "exception" and context["severity"] == 0):
            break
        if name == "grow":
            found.append((name, frozenset(cores_of(context["R"]))))
        elif name in ("shrink", "release"):
            found.append((name, idset(context["ranks"])))
    return found
