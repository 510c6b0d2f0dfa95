"""The clients of a run: users who submit, an administrator, watchers and stand-alone acquirers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tests.chaos.wire import cores_of, idset, text_of
from tests.chaos.workload.actions import Action, jobspec
from tests.chaos.workload.user import LOST, Surroundings, User

LOOK_S = 2.0
"""How often one watcher asks for the state of all targets (seconds)."""
ACQUIRE_AGAIN_S = 5.0
"""How long an acquirer waits before it asks again for a group that another has (seconds)."""


class JobIds:
    """The ids of the jobs of each submit action, as far as they were acknowledged."""

    def __init__(self) -> None:
        self._ids: dict[int, list[int]] = {}

    def add(self, action: int, jobid: int) -> None:
        """One more is known."""
        self._ids.setdefault(action, []).append(jobid)

    def find(self, action: int, nth: int) -> int | None:
        """The nth job of that action, counted around; None if there is none."""
        found = self._ids.get(action)
        return found[nth % len(found)] if found else None

    def all(self) -> list[int]:
        """Every job."""
        return [jobid for ids in self._ids.values() for jobid in ids]


class Submitter:
    """A user, who submits and acts on the jobs."""

    def __init__(self, world: Surroundings, name: str, jobs: JobIds) -> None:
        self.user = User(world, name)
        self._jobs = jobs

    def act(self, number: int, verb: str, arguments: dict[str, Any]) -> None:
        """Do one action; `number` is its place in the plan."""
        if verb == "submit":
            self._submit(number, **arguments)
            return
        if verb == "hang-up":
            self.user.hang_up()
            return
        if verb == "list":
            self.user.call("job-manager.list", {"max_entries": 1000})
            return
        jobid = self._jobs.find(arguments.pop("of"), arguments.pop("nth"))
        if jobid is not None and verb == "cancel-at":
            self.user.world.when(arguments["step"], partial(self._cancel, jobid))
        elif jobid is not None:
            streaming = verb in ("eventlog", "changes")
            self.user.call(f"job-manager.{verb}", {"id": jobid} | arguments, streaming=streaming)

    def _submit(
        self,
        number: int,
        count: int,
        urgency: int,
        after: tuple[str, int, int] | None = None,
        cancel_s: float | None = None,
        **wanted: Any,
    ) -> None:
        if after is not None:
            scheme, of, nth = after
            earlier = self._jobs.find(of, nth)
            wanted["after"] = None if earlier is None else f"{scheme}:{earlier}"
        payload = {"jobspec": jobspec(**wanted), "urgency": urgency}

        def done(response: Any, errnum: int) -> None:
            if not errnum:
                self._jobs.add(number, response["id"])
                if cancel_s is not None:
                    self.user.world.at(self.user.world.now_s + cancel_s, partial(self._cancel, response["id"]))

        for _ in range(count):
            self.user.call("job-manager.submit", payload, done)

    def _cancel(self, jobid: int) -> None:
        self.user.call("job-manager.cancel", {"id": jobid})


class Administrator:
    """Drains, moves, stops and asks."""

    def __init__(self, world: Surroundings, name: str) -> None:
        self.user = User(world, name)

    def act(self, number: int, verb: str, arguments: dict[str, Any]) -> None:
        """The verb is the topic; or the file is written, and read."""
        if verb != "configure":
            self.user.call(verb, arguments or None)
        elif self.user.is_connected:
            self.user.world.configure(arguments["outages"])
            self.user.call("config.reload", {})


class Watcher:
    """Follows all jobs' events and the journal, and looks at all there is, anew with each connection."""

    def __init__(self, world: Surroundings, name: str, history: bool) -> None:
        self._world = world
        self._history = history
        self.user = User(world, name, self._watch)
        if history:
            self._look()

    def _look(self) -> None:
        """Now and then, at what administrators change."""
        self.user.call("resource.status")
        self.user.call("resource.groups")
        self.user.call("resource.outage-list")
        self._world.at(self._world.now_s + LOOK_S, self._look)

    def _watch(self) -> None:
        self.user.call("job-manager.watch", {"history": self._history}, streaming=True)
        self.user.call("resource.journal", None, streaming=True)
        self.user.call("resource.status")
        self.user.call("resource.groups")
        self.user.call("job-manager.list", {"max_entries": 1000})

    def act(self, number: int, verb: str, arguments: dict[str, Any]) -> None:
        """It can only hang up and begin anew."""
        self.user.hang_up()


class Acquirer:
    """Acquires a group by itself, as a scheduler of another make would, and releases what it is to, after a while."""

    def __init__(self, world: Surroundings, name: str, group: str, release_s: float) -> None:
        self.world = world
        self._group = group
        self._release_s = release_s
        self._tag = 0
        self._wants = True
        self.held: set[int] = set()
        self.user = User(world, name, self._acquire)

    def _acquire(self) -> None:
        self.held.clear()
        if self._wants:
            tag = self.user.call("resource.acquire", {"group": self._group}, self._told, streaming=True)
            self._tag = tag

    def _told(self, payload: Any, errnum: int) -> None:
        if errnum == LOST:
            return
        if errnum:
            self._tag = 0
            self.world.at(self.world.now_s + ACQUIRE_AGAIN_S, self._again)
        elif payload["type"] == "grow":
            self.held |= set(cores_of(payload["resources"]))
        elif payload["type"] == "shrink":
            targets, tag = idset(payload["targets"]), self._tag
            self.held -= targets
            self.world.at(self.world.now_s + self._release_s, lambda: self._release(targets, tag))

    def _again(self) -> None:
        if self._tag == 0 and self.user.is_connected:
            self._acquire()

    def _release(self, targets: frozenset[int], tag: int) -> None:
        if tag == self._tag and self.user.is_connected:
            self.user.call("resource.release", {"group": self._group, "targets": text_of(targets)})

    def act(self, number: int, verb: str, arguments: dict[str, Any]) -> None:
        """Give the group up, or want it again."""
        if verb == "give-up":
            self._wants = False
            if self._tag:
                self.user.tell("resource.acquire-cancel", {"matchtag": self._tag})
                self._tag = -1
        elif verb == "acquire":
            self._wants = True
            if self._tag <= 0 and self.user.is_connected:
                self._acquire()
        else:
            self.user.hang_up()


Act = Callable[[int, str, dict[str, Any]], None]


def schedule(world: Surroundings, actions: Sequence[tuple[int, Action]], actors: dict[str, Act]) -> None:
    """Have each action done at its time."""
    for number, action in actions:
        act = actors[action.actor]

        def do(number: int = number, action: Action = action, act: Act = act) -> None:
            act(number, action.verb, dict(action.arguments))

        world.at(action.at_s, do)
