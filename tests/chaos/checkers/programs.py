"""Prolog and epilog: no task of a job runs before its prolog has ended well on all its hosts, nothing else of it runs
beside a program, and nobody else has its cores before its epilog has ended. A host where one fails is drained.

What a job's log must say follows from what it says otherwise: a program that was interrupted runs again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.chaos.checkers.base import Call, Checker, Site, Truth
from tests.chaos.observations import (
    Answered,
    ProcessEnded,
    ProgramBegan,
    ProgramEnded,
    TaskBegan,
    TaskEnded,
    TaskGrew,
    TasksBegan,
    TasksEnded,
    TaskShrank,
)
from tests.chaos.wire import cores_of, idset

PROLOG, EPILOG = "prolog", "epilog"
RETRIES = 2
"""How often a job waits again because its prolog has failed."""
NOT_RUN = 255 << 8
"""The status of a program that was lost with its keeper, which says nothing of the host."""
DRAINED_S = 30.0
"""How long after the end of a program its host may be drained (seconds)."""


class Programs(Checker):
    """Follows the programs of each job, and what runs beside them."""

    name = "programs"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._granted: dict[int, frozenset[int]] = {}
        """The ranks on which each job was to begin."""
        self._running: dict[int, ProgramBegan] = {}
        self._good: set[tuple[int, str]] = set()
        """Jobs and hosts where the last prolog has ended well."""
        self._cleaned: set[int] = set()
        self._unclean: set[tuple[int, int]] = set()
        """Jobs and ranks that they were shrunk by, where no epilog has ended since."""
        self._tasks: dict[int, dict[int, frozenset[int]]] = {}
        """The cores on each rank where tasks of each job run."""
        self._begun: set[int] = set()
        self._excluded: set[int] = set()

    def replied(self, message: Answered) -> None:
        """A job is to begin there."""
        if message.topic == "sched.alloc" and message.payload["type"] == 0:
            self._granted[message.payload["id"]] = frozenset(cores_of(message.payload["R"]))

    def asked(self, call: Call) -> None:
        """What is excluded is not drained."""
        if call.topic == "resource.assign" and call.payload["group"] == "exclude":
            self._excluded |= idset(call.payload["targets"])

    # ---- programs

    def program_began(self, program: ProgramBegan) -> None:
        """Once at a time on a host, a prolog before all tasks of its job, an epilog after them."""
        if program.what not in (PROLOG, EPILOG):
            return  # checkers/health.py
        for other in self._running.values():
            if (other.jobid, other.what, other.host) == (program.jobid, program.what, program.host):
                raise self.broken(f"the {program.what} of job {program.jobid} runs twice on {program.host}")
        tasks = self._tasks.get(program.jobid, {}).keys()
        if tasks if program.what == PROLOG else tasks & program.cores.keys():  # an elastic job is cleaned up in parts
            raise self.broken(f"the {program.what} of job {program.jobid} began on {program.host} beside its tasks")
        if program.what == PROLOG and program.jobid in self._begun:
            raise self.broken(f"the prolog of job {program.jobid} began on {program.host} after its tasks")
        self._check_alone(program.jobid, program.cores, program.what)
        self._good.discard((program.jobid, program.host))
        self._running[program.number] = program

    def program_ended(self, program: ProgramEnded) -> None:
        """Well, or not."""
        began = self._running.pop(program.number, None)
        if began is None:
            return
        if began.what == PROLOG and not program.status:
            self._good.add((began.jobid, began.host))
        elif began.what == EPILOG:
            left = self._unclean & {(began.jobid, rank) for rank in began.cores}
            self._unclean -= left
            if not left:
                self._cleaned.add(began.jobid)

    def _check_alone(self, jobid: int, cores: Mapping[int, frozenset[int]], what: str) -> None:
        """Nothing of others runs on these cores, and an elastic job that has left them is cleaned up."""
        for other, rank in self._unclean:
            if other != jobid and rank in cores:
                raise self.broken(f"{what} of job {jobid} began on {rank}, which job {other} left without an epilog")
        programs = [(one.jobid, one.what, one.cores) for one in self._running.values()]
        tasks = [(other, "tasks", used) for other, used in self._tasks.items()] if what in (PROLOG, EPILOG) else []
        for other, other_what, used in (*programs, *tasks):
            for rank in used.keys() & cores.keys() if other != jobid else ():
                if used[rank] & cores[rank]:
                    raise self.broken(
                        f"{what} of job {jobid} began on {sorted(used[rank] & cores[rank])} of {rank} beside "
                        f"{other_what} of job {other}"
                    )

    # ---- tasks

    def began(self, task: TaskBegan) -> None:
        """After the prolog."""
        self._begin(task.jobid, task.cores)

    def grew(self, task: TaskGrew) -> None:
        """A job that grows has no prolog there."""
        self._check_alone(task.jobid, task.cores, "tasks")
        self._tasks.setdefault(task.jobid, {}).update(task.cores)

    def shrank(self, task: TaskShrank) -> None:
        """None runs there any more."""
        for rank in task.ranks:
            self._tasks.get(task.jobid, {}).pop(rank, None)
            if self.site.epilog == "host":
                self._unclean.add((task.jobid, rank))

    def process_ended(self, ended: ProcessEnded) -> None:
        """A program that a keeper could not run to its end is not run again."""
        if ended.process.startswith("keeper"):
            self._unclean.clear()

    def tasks_began(self, tasks: TasksBegan) -> None:
        """On one of several hosts."""
        self._begin(tasks.jobid, tasks.cores)

    def _begin(self, jobid: int, cores: Mapping[int, frozenset[int]]) -> None:
        for one in self._running.values():
            if one.jobid == jobid:
                raise self.broken(f"tasks of job {jobid} began beside its {one.what} on {one.host}")
        ranks = self._granted.get(jobid, frozenset()) & cores.keys()
        prepared = {rank for rank in ranks if (jobid, f"node{rank}") in self._good}
        is_enough = any(good == jobid for good, _ in self._good) if self.site.prolog == "job" else prepared == ranks
        if self.site.prolog and ranks and not is_enough:
            raise self.broken(f"tasks of job {jobid} began on {sorted(ranks)}, its prolog has ended well on {prepared}")
        self._check_alone(jobid, cores, "tasks")
        self._begun.add(jobid)
        self._tasks.setdefault(jobid, {}).update(cores)

    def ended(self, task: TaskEnded) -> None:
        """None runs any more."""
        self._tasks.pop(task.jobid, None)

    def tasks_ended(self, tasks: TasksEnded) -> None:
        """None runs there any more."""
        self._tasks.get(tasks.jobid, {}).pop(tasks.rank, None)

    # ---- in the end

    def settled(self, truth: Truth) -> None:
        """Logs have what there was, what failed is drained, and jobs wait again as often as they may."""
        if self._running:
            raise self.broken(f"programs still run: {self._running}")
        drains = [event for event in truth.journal if event["name"] == "drain"]
        for jobid, log in truth.eventlogs.items():
            if "test" not in truth.specs[jobid]["attributes"]["system"].get("exec", {}):
                self._log(jobid, log)
                if not truth.journal or truth.journal[0]["name"] != "truncate":
                    for what in (PROLOG, EPILOG):
                        self._drained(jobid, what, log, drains)
        before = {job["requeue_of"]: jobid for jobid, job in truth.jobs.items() if job.get("requeue_of")}
        for jobid, job in truth.jobs.items():
            if not job.get("requeue_of"):
                self._attempts(jobid, before, truth)

    def _log(self, jobid: int, log: list[dict[str, Any]]) -> None:
        names = [event["name"] for event in log]
        if self.site.prolog and "start" in names and "prolog-finish" not in names[: names.index("start")]:
            raise self.broken(f"the log of job {jobid} has no prolog before its start: {names}")
        is_due = "prolog-start" in names or "finish" in names
        is_due = is_due and bool(self.site.epilog) and "free" in names
        ends = [one for one in log[: names.index("free")] if one["name"] == "epilog-finish"] if is_due else []
        is_lost = any(one["context"]["status"] == NOT_RUN for one in ends)  # its keeper, perhaps before it began
        if is_due and (not ends or (jobid not in self._cleaned and not is_lost)):
            raise self.broken(f"job {jobid} was free without an epilog: {names}")

    def _drained(self, jobid: int, what: str, log: list[dict[str, Any]], drains: list[dict[str, Any]]) -> None:
        """One of its hosts is, unless the job was to end, or all of them were drained or excluded before."""
        for at, event in enumerate(log):
            status = event["context"].get("status", 0) if event["name"] == f"{what}-finish" else 0
            if not status or status == NOT_RUN:
                continue
            if what == PROLOG and any(earlier["name"] == "exception" for earlier in log[:at]):
                continue
            grown = {rank for one in log if one["name"] == "grow" for rank in cores_of(one["context"]["R"])}
            ranks = (self._granted.get(jobid, frozenset()) | grown) - self._excluded
            late_s = event["timestamp"] + DRAINED_S
            named = {rank for one in drains if one["timestamp"] < late_s for rank in idset(one["context"]["idset"])}
            if ranks and not ranks & named:
                raise self.broken(f"the {what} of job {jobid} failed ({event}), and no host of {ranks} was drained")

    def _attempts(self, jobid: int, after: Mapping[int, int], truth: Truth) -> None:
        """How often its prolog has failed, and what became of it then."""
        failed, at = 0, jobid
        while True:
            exceptions = [event["context"]["type"] for event in truth.eventlogs[at] if event["name"] == "exception"]
            is_unprepared = exceptions[:1] == [PROLOG]
            failed += is_unprepared
            if is_unprepared and (at in after) != (failed <= RETRIES) and exceptions == [PROLOG]:
                raise self.broken(f"the prolog of job {at} has failed {failed} times; what follows is {after.get(at)}")
            if at not in after:
                return
            at = after[at]
