"""Jobs get what they asked for, no more; limits of queues hold; only what may be preempted is, and when it may be.
None starts before its begin time, or so late that it would not be over by its deadline; none is given up before that.

What a job asked for stands in its jobspec under `attributes.user.chaos`, put there by the workload: cores and nodes, or
the least and the most nodes of each part of an elastic one (`parts`).
"""

from __future__ import annotations

from math import inf
from typing import Any

from tests.chaos.checkers.base import SCHEDULER_PREFIX, Call, Checker, Site, Truth
from tests.chaos.observations import Answered, TaskBegan, TaskEnded

EARLY_S = 1e-3
"""By how much times that are rounded may differ (seconds)."""
LATE_S = 90.0
"""How long a job's tasks may outlast its time limit (seconds): clocks step, and a killed instance ends no job."""


class Limits(Checker):
    """Compares jobs with what was asked for."""

    name = "limits"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._specs: dict[int, dict[str, Any]] = {}
        self._began: dict[int, TaskBegan] = {}
        self._granted_s: dict[int, float] = {}
        """When each job was granted what it has: its age counts from there, as its time limit does."""

    def replied(self, message: Answered) -> None:
        """A scheduler grants."""
        if message.topic == "sched.alloc" and message.payload["type"] == 0:
            self._granted_s[message.payload["id"]] = message.at_s

    def asked(self, call: Call) -> None:
        """A scheduler preempts."""
        payload = call.payload
        if call.topic != "job-manager.raise" or not call.actor.startswith(SCHEDULER_PREFIX):
            return
        if payload["type"] == "preempt" and payload["id"] in self._specs:
            after_s = self._specs[payload["id"]]["system"].get("preemptible-after")
            if after_s is None:
                raise self.broken(f"{call.actor} preempts job {payload['id']}, which is not preemptible: {payload}")
            age_s = self.now_s - self._granted_s.get(payload["id"], -inf)
            if age_s < after_s - self.site.steps_s - 1.0:
                raise self.broken(f"{call.actor} preempts job {payload['id']} after {age_s} s: {payload}")

    def answered(self, call: Call, payload: Any, errnum: int) -> None:
        """A submit is refused if it is beyond the limits of its queue."""
        if call.topic == "job-manager.submit" and not errnum:
            attributes = self._specs[payload["id"]] = call.payload["jobspec"]["attributes"]
            system, asked = attributes["system"], attributes["user"]["chaos"]
            queue = system.get("queue", "")
            if system["duration"] > self.site.duration_max.get(queue, system["duration"]):
                raise self.broken(f"job {payload['id']} of {system['duration']} s was accepted in queue {queue}")
            if asked["nodes"] > self.site.nodes_max.get(queue, asked["nodes"]):
                raise self.broken(f"job {payload['id']} of {asked['nodes']} nodes was accepted in queue {queue}")

    def began(self, task: TaskBegan) -> None:
        """As many cores and nodes as asked for."""
        self._began[task.jobid] = task
        attributes = self._specs.get(task.jobid)
        if attributes is not None:
            asked = attributes["user"]["chaos"]
            cores, nodes = sum(map(len, task.cores.values())), len(task.cores)
            if "parts" in asked:
                least, most = (sum(values) for values in zip(*asked["parts"].values(), strict=True))
                if not least <= nodes <= most:
                    raise self.broken(f"job {task.jobid} asked for {asked}, and has {nodes} nodes")
            elif cores != asked["cores"] or (asked["nodes"] and nodes != asked["nodes"]):
                raise self.broken(f"job {task.jobid} asked for {asked}, and has {cores} cores on {nodes} nodes")

    def ended(self, task: TaskEnded) -> None:
        """Not long after the time limit."""
        attributes, began = self._specs.get(task.jobid), self._began.get(task.jobid)
        if attributes is not None and began is not None:
            limit_s = attributes["system"]["duration"]
            if limit_s and task.at_s - began.at_s > limit_s + LATE_S + self.site.steps_s:
                raise self.broken(f"job {task.jobid} ran for {task.at_s - began.at_s} s; its limit is {limit_s} s")

    def settled(self, truth: Truth) -> None:
        """What was preempted, has lost a target, or has ended with exit code 1 where that is to be retried is submitted
        again, as often as was asked for, and nothing else is.
        """
        for jobid, events in truth.eventlogs.items():
            spec = truth.specs.get(jobid)
            if spec is not None:
                self._times(jobid, spec["attributes"]["system"], events)
            fatal = [event for event in events if event["name"] == "exception" and event["context"]["severity"] == 0]
            job = truth.jobs.get(jobid)
            if spec is None or job is None or job["state"] != "INACTIVE":
                continue
            again = spec["attributes"]["system"].get("fluxsched", {}).get("requeue", 0)
            kinds = [event["context"]["type"] for event in fatal]
            is_retried = kinds[:1] in ([], ["exec"]) and job.get("status") == 1 << 8
            is_unfinished = kinds[:1] == ["preempt"] and job.get("status") != 0  # a lost host may have no status
            wanted = (
                job.get("attempt", 0) < again
                and (is_retried or is_unfinished or kinds[:1] == ["node-failure"])
                and "cancel" not in kinds
            )
            if wanted != bool(job.get("requeued_as")) and "return" not in kinds and kinds[:1] != ["prolog"]:
                raise self.broken(f"job {jobid} ended by {kinds or 'itself'}; requeue {again}, but its record is {job}")

    def _times(self, jobid: int, system: dict[str, Any], events: list[dict[str, Any]]) -> None:
        """Begin and deadline, by a clock that is stepped."""
        begins = [one["value"] for one in system.get("dependencies", ()) if one["scheme"] == "begin-time"]
        deadline_s = system.get("fluxsched", {}).get("deadline")
        latest_s = inf if deadline_s is None else deadline_s - system["duration"]
        slack_s = self.site.steps_s + EARLY_S
        for event in events:
            at_s, name = event["timestamp"], event["name"]
            if name == "alloc" and any(at_s < float(begin_s) - slack_s for begin_s in begins):
                raise self.broken(f"job {jobid} has begun at {at_s}, before {begins}")
            if name == "alloc" and at_s > latest_s + slack_s:
                raise self.broken(f"job {jobid} has begun at {at_s}, and its deadline is {deadline_s}: {system}")
            is_given_up = name == "exception" and event["context"]["type"] == "deadline"
            if is_given_up and (at_s < latest_s - slack_s or any(one["name"] == "alloc" for one in events)):
                raise self.broken(f"job {jobid} was given up at {at_s} for its deadline {deadline_s}: {events}")
