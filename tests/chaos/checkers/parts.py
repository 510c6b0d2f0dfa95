"""Drained cores and GPUs: what was acknowledged survives, schedulers are told of it, and no job is placed on it.

A part may be drained for a while; then it is not known when exactly it comes back, but that it has in the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.chaos.checkers.base import Call, Checker, Site, names_parts
from tests.chaos.checkers.registers import Key, Registers
from tests.chaos.observations import Answered, LinkEnded, ProcessEnded
from tests.chaos.wire import idset, parts_of

LAPSING = "lapsing"
"""Drained, or not any more: its time may be over."""
EFFECTIVE_S = 30.0
"""How long it may take until a drain that is stored is heeded (seconds): processes hang."""
QUIET_S = 10.0
"""How long after all faults a drain whose time is over may last (seconds)."""
Part = tuple[int, str, int]
"""Rank, `core` or `gpu`, and number."""


class Parts(Checker):
    """Compares placements and reads with what was drained."""

    name = "parts"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._told: dict[int, dict[int, set[tuple[str, int]]]] = {}
        """Of each connection that understands parts, those that it knows to be drained."""
        self._set = Registers(self._writes_of)
        self._known: dict[int, set[tuple[str, int]]] = {}
        """All that anybody has asked to drain."""
        self._ends_s: dict[Part, float] = {}
        """When those at the latest come back that are drained for a while, and were not touched since."""
        self._timed: set[Part] = set()

    def _parts(self, payload: Mapping[str, Any]) -> Iterator[Part]:
        for rank in idset(payload["targets"]):
            for kind in ("core", "gpu"):
                for number in idset(payload.get(f"{kind}s") or ""):
                    yield rank, kind, number

    def _writes_of(self, call: Call) -> Iterator[tuple[Key, bool | str]]:
        for part in self._parts(call.payload):
            if call.topic == "resource.undrain":
                yield ("part", part), False
            elif call.payload.get("for"):
                yield ("part", part), LAPSING
            else:
                yield ("part", part), LAPSING if part in self._timed and call.payload.get("mode") == "update" else True

    # ---- what is drained

    def asked(self, call: Call) -> None:
        """Parts may be drained or undrained from now on. No job grows by drained ones."""
        if call.topic in ("resource.drain", "resource.undrain") and names_parts(call.payload):
            for part in self._parts(call.payload):
                rank, *place = part
                if (known := self._known.setdefault(rank, set())) is not None and tuple(place) not in known:
                    known.add((part[1], part[2]))
                    self._set.first(("part", part), False)
                self._ends_s.pop(part, None)
                if call.payload.get("for"):
                    self._timed.add(part)
            self._set.asked(call)
        elif call.topic == "job-manager.sched-grow":
            self._placed(call.actor, call.link, call.payload)

    def answered(self, call: Call, payload: Any, errnum: int) -> None:
        """It has happened or not; a scheduler is told; what is read must be possible."""
        self._set.answered(call, errnum, self.now_s)
        if call.topic == "resource.acquire" and "parts" in (call.payload or {}).get("accept", ()):
            if errnum or call.is_over:
                self._told.pop(call.link, None)
            elif call.answers == 1 or payload.get("parts") is not None:
                self._told[call.link] = parts_of(payload.get("parts") or [])
        elif call.topic == "resource.drain" and not errnum and call.payload.get("for"):
            end_s = self.now_s + call.payload["for"] + self.site.steps_s
            self._ends_s |= dict.fromkeys(self._parts(call.payload), end_s)
        elif call.topic == "resource.status" and not errnum:
            self._compare(call, drained_parts(payload))

    def given_up(self, call: Call) -> None:
        """It may have happened."""
        self._set.given_up(call, self.now_s)

    def process_ended(self, ended: ProcessEnded) -> None:
        """Requests may have died with it."""
        self._set.process_ended(ended)

    def _compare(self, call: Call, read: dict[int, set[tuple[str, int]]]) -> None:
        for rank in self._known.keys() | read.keys():
            for kind, number in self._known.get(rank, set()) | read.get(rank, set()):
                possible = self._set.possible(("part", (rank, kind, number)), call.asked_s, self.now_s) or {False}
                value = (kind, number) in read.get(rank, ())
                if value not in possible and LAPSING not in possible:
                    raise self.broken(
                        f"{call.actor} read {value} for the drain of {kind} {number} of {rank}; "
                        f"possible is {sorted(map(repr, possible))}"
                    )

    # ---- placements

    def link_ended(self, ended: LinkEnded) -> None:
        """What is sent there is not received any more."""
        self._told.pop(ended.link, None)

    def replied(self, message: Answered) -> None:
        """A scheduler places a job on no part that it was told of, or that has been drained for a while."""
        if message.topic == "sched.alloc" and message.payload["type"] == 0:
            self._placed(message.actor, message.link, message.payload)

    def _placed(self, actor: str, link: int, payload: dict[str, Any]) -> None:
        told = self._told.get(link)
        if told is None or not (told or self._known):
            return
        for rank, parts in parts_of(payload["R"]["execution"]["R_lite"]).items():
            if drained := parts & told.get(rank, set()):
                raise self.broken(f"{actor} placed job {payload['id']} on {sorted(drained)} of {rank}, drained parts")
            for kind, number in parts & self._known.get(rank, set()):
                key = "part", (rank, kind, number)
                if self._set.possible(key, self.now_s - EFFECTIVE_S, self.now_s) == {True}:
                    text = f"{actor} placed job {payload['id']} on {kind} {number} of {rank}"
                    raise self.broken(f"{text}, long after its drain")

    # ---- when nothing is done

    def quiet(self, status: Mapping[str, Any], groups: list[dict[str, Any]]) -> None:
        """All schedulers know what is drained, and drains whose time is over have ended."""
        drained = drained_parts(status)
        for link, told in self._told.items():
            if told != drained:
                raise self.broken(f"connection {link} was told that {told} are drained: {drained} are")
        for part, end_s in self._ends_s.items():
            if end_s < self.now_s - QUIET_S and part[1:] in drained.get(part[0], ()):
                raise self.broken(f"{part} is drained still: its time was over at {end_s} s")


def drained_parts(status: Mapping[str, Any]) -> dict[int, set[tuple[str, int]]]:
    """The drained parts of each target, as a status shows them."""
    found: dict[int, set[tuple[str, int]]] = {}
    for line in status.get("parts") or ():
        ids = {(kind, one) for kind in ("core", "gpu") for one in idset(line.get(f"{kind}s") or "")}
        for rank in idset(line["targets"]):
            found.setdefault(rank, set()).update(ids)
    return found
