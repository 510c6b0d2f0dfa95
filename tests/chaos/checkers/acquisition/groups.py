"""Law 5, targets and groups: a target has at most one acquirer, so has a group, and no other group's job runs there.

An acquisition lasts from the first grow that arrives until the acquirer gives it up (cancel) or its connection ends on
either side. A target is the acquirer's from the grow that has it until the release is sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.chaos.checkers.base import Call, Checker, Site
from tests.chaos.observations import LinkEnded, TaskBegan, TaskEnded, TaskGrew, TaskShrank
from tests.chaos.wire import cores_of, idset


@dataclass(eq=False)
class Acquisition:
    """What one stream has been given."""

    actor: str
    group: str
    held: set[int] = field(default_factory=set)


class Groups(Checker):
    """Follows who has acquired what."""

    name = "groups"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._acquired: dict[Call, Acquisition] = {}
        self._job_groups: dict[int, str] = {}
        self._running: dict[int, frozenset[int]] = {}

    def asked(self, call: Call) -> None:
        """Releases and cancels give up what is held."""
        if call.topic == "resource.release":
            targets = idset(call.payload["targets"])
            for stream, acquired in self._acquired.items():
                if stream.link == call.link and acquired.group == call.payload["group"]:
                    acquired.held -= targets
        elif call.topic == "resource.acquire-cancel":
            self._drop([stream for stream in self._acquired if stream.link == call.link])

    def answered(self, call: Call, payload: Any, errnum: int) -> None:
        """Grows are compared with all that others have."""
        if call.topic == "job-manager.submit" and not errnum:
            queue = call.payload["jobspec"]["attributes"]["system"].get("queue", "")
            self._job_groups[payload["id"]] = self.site.queues.get(queue, "default")
        elif call.topic == "resource.acquire" and not call.is_over:
            if errnum:
                self._drop([call])
            else:
                self._changed(call, payload)

    def _changed(self, call: Call, payload: dict[str, Any]) -> None:
        acquired = self._acquired.get(call)
        if acquired is None:
            if call.answers > 1:  # given up: what was under way does not count
                return
            is_typed = bool(call.payload and "group" in call.payload)
            group = call.payload["group"] if is_typed else "default"
            for other in self._acquired.values():
                if other.group == group:
                    raise self.broken(f"group {group} is acquired by {other.actor} and by {call.actor}")
            acquired = self._acquired[call] = Acquisition(call.actor, group)
        if "resources" in payload:
            self._granted(acquired, set(cores_of(payload["resources"])))
        if "shrink" in payload:
            acquired.held -= idset(payload["shrink"])

    def _granted(self, acquired: Acquisition, targets: set[int]) -> None:
        for other in self._acquired.values():
            twice = other.held & targets
            if twice and other is not acquired:
                raise self.broken(f"targets {sorted(twice)} belong to {other.actor} and to {acquired.actor}")
        for jobid, ranks in self._running.items():
            group = self._job_groups.get(jobid, acquired.group)
            if group != acquired.group and ranks & targets:
                raise self.broken(
                    f"targets {sorted(ranks & targets)} came to group {acquired.group} "
                    f"while job {jobid} of {group} runs there"
                )
        acquired.held |= targets

    def given_up(self, call: Call) -> None:
        """What the acquirer held is no longer its own."""
        self._drop([call])

    def link_ended(self, ended: LinkEnded) -> None:
        """The same, of streams that had no answer yet."""
        self._drop([stream for stream in self._acquired if stream.link == ended.link])

    def _drop(self, streams: list[Call]) -> None:
        for stream in streams:
            self._acquired.pop(stream, None)

    def began(self, task: TaskBegan | TaskGrew) -> None:
        """No task runs on what another group's acquirer has."""
        ranks = frozenset(task.cores)
        group = self._job_groups.get(task.jobid)
        for acquired in self._acquired.values():
            if group is not None and acquired.group != group and acquired.held & ranks:
                raise self.broken(
                    f"job {task.jobid} of group {group} began on {sorted(acquired.held & ranks)}, "
                    f"which {acquired.actor} holds"
                )
        self._running[task.jobid] = self._running.get(task.jobid, frozenset()) | ranks

    def grew(self, task: TaskGrew) -> None:
        """Nor do those of a job that has got more."""
        self.began(task)

    def shrank(self, task: TaskShrank) -> None:
        """These targets are free."""
        self._running[task.jobid] = self._running.get(task.jobid, frozenset()) - task.ranks

    def ended(self, task: TaskEnded) -> None:
        """Its targets are free."""
        self._running.pop(task.jobid, None)
