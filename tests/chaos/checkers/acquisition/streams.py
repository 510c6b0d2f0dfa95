"""What a stream of `resource.acquire` says follows from what it said before, and in the end it is the truth.

Law: a grow comes first and brings only what the acquirer does not have, online and offline share it out; online is said
of what was offline, offline of what was online; about a target that leaves nothing more is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.checkers.base import Call, Checker, Site, Truth
from tests.chaos.checkers.parts import drained_parts
from tests.chaos.wire import cores_of, idset


@dataclass(eq=False)
class Told:
    """What an acquirer knows."""

    actor: str
    group: str
    online: set[int] = field(default_factory=set)
    offline: set[int] = field(default_factory=set)


class AcquireStreams(Checker):
    """Follows each typed stream."""

    name = "acquire streams"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._told: dict[Call, Told] = {}

    def answered(self, call: Call, payload: Any, errnum: int) -> None:
        """One more response."""
        if call.topic != "resource.acquire" or not call.payload or "group" not in call.payload or call.is_over:
            return
        if errnum:
            self._told.pop(call, None)
            return
        if call.answers == 1:
            if payload["type"] != "grow":
                raise self.broken(f"the first response to {call.actor} is {payload}")
            self._told[call] = Told(call.actor, call.payload["group"])
        told = self._told[call]
        if payload["type"] == "grow":
            self._grow(told, payload)
        elif payload["type"] != "update":
            self._change(told, payload["type"], idset(payload["targets"]), payload)

    def _grow(self, told: Told, payload: dict[str, Any]) -> None:
        targets = set(cores_of(payload["resources"]))
        online, offline = idset(payload["online"]), idset(payload["offline"])
        if online & offline or online | offline != targets:
            raise self.broken(f"{told.actor}: online and offline do not share out the targets: {payload}")
        if targets & (told.online | told.offline):
            raise self.broken(f"{told.actor} has some of these targets already: {payload}")
        told.online |= online
        told.offline |= offline

    def _change(self, told: Told, kind: str, targets: frozenset[int], payload: dict[str, Any]) -> None:
        online, offline = told.online, told.offline
        before = {"online": offline, "offline": online, "shrink": online | offline}[kind]
        if not targets or not targets <= before:
            raise self.broken(f"{told.actor}: {payload} does not follow from online {online}, offline {offline}")
        online -= targets
        offline -= targets
        if kind != "shrink":
            (online if kind == "online" else offline).update(targets)

    def given_up(self, call: Call) -> None:
        """No more is said."""
        self._told.pop(call, None)

    def quiet(self, status: Mapping[str, Any], groups: list[dict[str, Any]]) -> None:
        """Each acquirer knows what is usable in its group."""
        usable = idset(status["online"]) - idset(status["torpid"])
        for ranks in status["drain"]:
            usable -= idset(ranks)
        drained = drained_parts(status)
        usable -= {
            rank for rank in drained if self.site.cores[rank] <= {at for kind, at in drained[rank] if kind == "core"}
        }
        for group in groups:
            for told in self._told.values():
                if told.group == group["name"]:
                    stays = idset(group["targets"]) - idset(group["leaving"])
                    self._compare(told, "online", told.online, stays & usable)
                    self._compare(told, "offline", told.offline, stays - usable)

    def settled(self, truth: Truth) -> None:
        """The same in the end."""
        self.quiet(truth.status, truth.groups)

    def _compare(self, told: Told, what: str, said: set[int], true: frozenset[int]) -> None:
        if said != true:
            raise self.broken(
                f"{told.actor} was told that {sorted(said)} are {what} in {told.group}: {sorted(true)} are"
            )
