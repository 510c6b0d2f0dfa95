"""No job runs twice, none is forgotten: every acknowledged submit is known for ever, and a canceled job does not begin.

Also: a job's tasks have ended before its end is announced, and what is said of its end is what happened.
"""

from __future__ import annotations

from typing import Any

from tests.chaos.checkers.base import Call, Checker, Site, Truth
from tests.chaos.observations import ProcessEnded, TaskBegan, TaskEnded

ENOENT = 2
START_S = 30.0
"""How long a start that was decided before a cancel was stored may be under way (seconds)."""
KEEPER = "keeper"
OVER = frozenset({"release", "free", "clean"})
"""Events that follow on the end of all tasks."""


class Jobs(Checker):
    """Follows each job from its submit to its end."""

    name = "jobs"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._submitted: set[int] = set()
        self._open: set[Call] = set()
        """Submits that were not answered, so there may be jobs of theirs."""
        self._canceled: dict[int, float] = {}
        self._began: dict[int, TaskBegan] = {}
        self._ended: dict[int, TaskEnded] = {}
        self._has_keeper_ended = False
        self._attempts: dict[int, int] = {}
        """Of each attempt after the first, the job that it continues."""

    # ---- what clients are promised

    def asked(self, call: Call) -> None:
        """A submit may succeed from now on."""
        if call.topic == "job-manager.submit":
            self._open.add(call)

    def answered(self, call: Call, payload: Any, errnum: int) -> None:
        """Submits and cancels are promises; other answers must not forget a job."""
        match call.topic:
            case "job-manager.submit":
                self._open.discard(call)
                if not errnum:
                    if payload["id"] in self._submitted:
                        raise self.broken(f"job id {payload['id']} was given twice")
                    self._submitted.add(payload["id"])
            case "job-manager.cancel" if not errnum:
                self._canceled.setdefault(payload.get("last") or call.payload["id"], self.now_s)
            case "job-manager.list" if not errnum:
                for job in payload["jobs"]:
                    if job.get("requeue_of"):
                        self._attempts[job["id"]] = job["requeue_of"]
            case "job-manager.watch" if not errnum:
                for jobid, _, name, context in payload["events"]:
                    self._event(jobid, name, context)
            case "job-manager.lookup" | "job-manager.wait" | "job-manager.urgency" | "job-manager.cancel":
                if errnum == ENOENT and call.payload["id"] in self._submitted:
                    raise self.broken(f"{call.topic} does not know job {call.payload['id']}, which was acknowledged")

    def _event(self, jobid: int, name: str, context: dict[str, Any]) -> None:
        if name == "release" and not context["final"]:
            return  # of a part of its targets (checkers/sizes.py)
        if name in OVER and jobid in self._began and jobid not in self._ended:
            raise self.broken(f"event {name} of job {jobid} was announced while its tasks run")
        if name == "clean" and context.get("requeued_as"):
            self._attempts[context["requeued_as"]] = jobid

    # ---- what happens

    def began(self, task: TaskBegan) -> None:
        """Once a job, and not long after a cancel was acknowledged."""
        if task.jobid in self._began:
            raise self.broken(f"job {task.jobid} began a second time; the first was at {self._began[task.jobid].at_s}")
        self._began[task.jobid] = task
        canceled_s = self._canceled.get(task.jobid)
        if canceled_s is not None and task.at_s > canceled_s + START_S:
            raise self.broken(f"job {task.jobid} began though its cancel was acknowledged at {canceled_s}")

    def ended(self, task: TaskEnded) -> None:
        """Once a job as well."""
        if task.jobid not in self._began or task.jobid in self._ended:
            raise self.broken(f"tasks of job {task.jobid} ended, which did not run")
        self._ended[task.jobid] = task

    def process_ended(self, ended: ProcessEnded) -> None:
        """Jobs outlive all processes but the keeper of their tasks."""
        self._has_keeper_ended |= ended.process.startswith(KEEPER)

    # ---- in the end

    def settled(self, truth: Truth) -> None:
        """All jobs are known, and each log tells what happened."""
        forgotten = self._submitted - truth.jobs.keys()
        if forgotten:
            raise self.broken(f"acknowledged jobs are not known any more: {sorted(forgotten)}")
        for jobid, job in truth.jobs.items():
            if job.get("requeue_of"):
                self._attempts[jobid] = job["requeue_of"]
        more = truth.jobs.keys() - self._submitted - self._attempts.keys()
        if len(more) > len(self._open):
            raise self.broken(f"jobs {sorted(more)} exist; only {len(self._open)} submits had no answer")
        invented = self._began.keys() - truth.jobs.keys()
        if invented:
            raise self.broken(f"jobs {sorted(invented)} ran, and are not known")
        running = self._began.keys() - self._ended.keys()
        if running:
            raise self.broken(f"tasks of jobs {sorted(running)} still run")
        continued: dict[int, int] = {}
        for attempt, of in self._attempts.items():
            if of in continued:
                raise self.broken(f"job {of} was submitted again twice, as {continued[of]} and {attempt}")
            continued[of] = attempt
        for jobid in truth.jobs:
            self._log(jobid, truth)

    def _log(self, jobid: int, truth: Truth) -> None:
        events = truth.eventlogs[jobid]
        names = [event["name"] for event in events]
        for name in ("submit", "alloc", "start", "finish", "clean"):
            if names.count(name) > 1:
                raise self.broken(f"the log of job {jobid} has {name} {names.count(name)} times: {names}")
        if not self._has_keeper_ended:
            for event in events:
                if event["name"] == "exception" and "restarted" in event["context"].get("note", ""):
                    raise self.broken(f"job {jobid} was lost at a restart: {event}")
        ended = self._ended.get(jobid)
        if ended is not None:
            if "alloc" not in names:
                raise self.broken(f"job {jobid} ran without an alloc event: {names}")
            self._finish(jobid, ended, events)
        canceled = any(event["name"] == "exception" and event["context"]["type"] == "cancel" for event in events)
        if jobid in self._canceled and not canceled:
            raise self.broken(f"the cancel of job {jobid} was acknowledged; its log has none: {names}")

    def _finish(self, jobid: int, ended: TaskEnded, events: list[dict[str, Any]]) -> None:
        finish = next((event for event in events if event["name"] == "finish"), None)
        if finish is None and self._has_keeper_ended:
            return  # it took the tasks with it
        if finish is None:
            raise self.broken(f"the tasks of job {jobid} ended; its log has no finish: {events}")
        if finish["context"]["status"] != ended.status:
            raise self.broken(
                f"tasks of job {jobid} ended with status {ended.status}; its log says {finish['context']['status']}"
            )
