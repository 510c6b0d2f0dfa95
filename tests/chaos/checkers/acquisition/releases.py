"""Each shrunk target is released exactly once, and only when no job of the scheduler runs there any more; the response
is empty.

A scheduler's releases are judged; of stand-alone acquirers, which are ours, the instance's answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.chaos.checkers.base import SCHEDULER_PREFIX, Call, Checker, Site, Truth
from tests.chaos.observations import LinkEnded, TaskBegan, TaskEnded, TaskGrew, TaskShrank
from tests.chaos.wire import cores_of, idset

RELEASE_S = 900.0
"""How long a scheduler may hold a shrunk target on which nothing runs (seconds)."""


@dataclass(eq=False)
class Stream:
    """One typed acquisition: what was given, and what is to be released."""

    actor: str
    held: set[int] = field(default_factory=set)
    leaving: dict[int, float] = field(default_factory=dict)
    """Since when (seconds)."""


class Releases(Checker):
    """Follows shrinks and releases of each stream."""

    name = "releases"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._streams: dict[tuple[int, str], Stream] = {}
        self._running: dict[int, frozenset[int]] = {}

    def asked(self, call: Call) -> None:
        """A release names what was shrunk, once, and free of tasks."""
        if call.is_over:
            return
        if call.topic == "resource.acquire" and call.payload and "group" in call.payload:
            self._streams[call.link, call.payload["group"]] = Stream(call.actor)
        elif call.topic == "resource.release" and call.actor.startswith(SCHEDULER_PREFIX):
            self._released(call)
        elif call.topic == "resource.release":
            stream = self._streams.get((call.link, call.payload["group"]))
            for target in idset(call.payload["targets"]) if stream else ():
                assert stream is not None
                stream.leaving.pop(target, None)

    def _released(self, call: Call) -> None:
        stream = self._streams.get((call.link, call.payload["group"]))
        targets = idset(call.payload["targets"])
        for target in targets:
            if stream is None or stream.leaving.pop(target, None) is None:
                raise self.broken(f"{call.actor} released target {target}, which was not shrunk or is released already")
        for jobid, ranks in self._running.items():
            if ranks & targets:
                raise self.broken(f"{call.actor} released {sorted(ranks & targets)} while job {jobid} runs there")

    def answered(self, call: Call, payload: Any, errnum: int) -> None:
        """Grows and shrinks, and answers to releases."""
        if call.is_over:
            return
        if call.topic == "resource.release" and errnum:
            if (call.link, call.payload["group"]) in self._streams:
                raise self.broken(f"{call.actor}: release {call.payload} was refused ({errnum}): {payload}")
        elif call.topic == "resource.release" and payload:
            raise self.broken(f"{call.actor}: the response to release {call.payload} is not empty: {payload}")
        elif call.topic == "resource.acquire" and call.payload and "group" in call.payload:
            self._changed(call, payload, errnum)

    def _changed(self, call: Call, payload: Any, errnum: int) -> None:
        key = call.link, call.payload["group"]
        stream = self._streams.get(key)
        if errnum:
            self._streams.pop(key, None)
        elif stream is not None and payload["type"] == "grow":
            granted = set(cores_of(payload["resources"]))
            early = granted & stream.leaving.keys()
            if early:
                raise self.broken(f"{call.actor} was given {sorted(early)} again before it released them")
            stream.held |= granted
        elif stream is not None and payload["type"] == "shrink":
            targets = idset(payload["targets"])
            if not targets <= stream.held:
                raise self.broken(
                    f"{call.actor} was to release {sorted(targets - stream.held)}, which it does not have"
                )
            stream.held -= targets
            stream.leaving |= dict.fromkeys(targets, self.now_s)

    def link_ended(self, ended: LinkEnded) -> None:
        """Nothing is to be released any more."""
        for key in [key for key in self._streams if key[0] == ended.link]:
            del self._streams[key]

    def given_up(self, call: Call) -> None:
        """The stream is over."""
        if call.topic == "resource.acquire":
            self._streams.pop((call.link, (call.payload or {}).get("group", "")), None)

    def began(self, task: TaskBegan) -> None:
        """Its ranks are in use."""
        self._running[task.jobid] = frozenset(task.cores)

    def grew(self, task: TaskGrew) -> None:
        """So are those that it has grown by."""
        self._running[task.jobid] = self._running.get(task.jobid, frozenset()) | frozenset(task.cores)

    def shrank(self, task: TaskShrank) -> None:
        """And these are free."""
        self._running[task.jobid] = self._running.get(task.jobid, frozenset()) - task.ranks

    def ended(self, task: TaskEnded) -> None:
        """And free."""
        self._running.pop(task.jobid, None)

    def settled(self, truth: Truth) -> None:
        """Nothing is left to be released."""
        for (_, group), stream in self._streams.items():
            if stream.leaving:
                raise self.broken(f"{stream.actor} has not released {sorted(stream.leaving)} of group {group}")
