"""What was set, by whom it may have been set, and what a read may therefore find.

Each thing that can be set is a register. A write may take effect at any time between request and answer; one whose
connection ended, until `LATEST_S` later or until the instance ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from math import inf

from tests.chaos.checkers.base import INSTANCE, Call
from tests.chaos.observations import ProcessEnded

LATEST_S = 60.0
"""How long after its connection ended a request may still be handled (seconds): more than any delay of a message."""
WRITES_KEPT = 32
"""Writes of one register that are looked through before those that are surely overwritten are forgotten."""


@dataclass(eq=False)
class Write:
    """One change; `end_s` is when it had surely happened, or surely never will."""

    value: Hashable
    asked_s: float
    end_s: float = inf
    is_sure: bool = False


@dataclass(eq=False)
class Register:
    """All writes that a read may still see."""

    writes: list[Write] = field(default_factory=list)

    def possible(self, asked_s: float, answered_s: float) -> set[Hashable]:
        """All values that it may have had at some time between these two."""
        latest_s = self._latest_s(asked_s)
        return {write.value for write in self.writes if write.asked_s <= answered_s and not write.end_s < latest_s}

    def forget(self, now_s: float) -> None:
        """Drop what no later read can see."""
        if len(self.writes) > WRITES_KEPT:
            latest_s = self._latest_s(now_s)
            self.writes = [write for write in self.writes if not write.end_s < latest_s]

    def _latest_s(self, before_s: float) -> float:
        """When the last write that had surely happened by then was asked for."""
        sure = (write.asked_s for write in self.writes if write.is_sure and write.end_s < before_s)
        return max(sure, default=-inf)


Key = tuple[str, Hashable]
WritesOf = Callable[[Call], Iterable[tuple[Key, Hashable]]]


class Registers:
    """Registers by what they are and of what; `writes_of` returns what a request sets."""

    def __init__(self, writes_of: WritesOf) -> None:
        self.all: dict[Key, Register] = defaultdict(Register)
        self._writes_of = writes_of
        self._open: dict[Call, list[tuple[Key, Write]]] = {}
        self._excluding: dict[Hashable, list[Write]] = defaultdict(list)
        """Undrains that come with the arrival in `exclude`, whenever that is."""

    def first(self, key: Key, value: Hashable, asked_s: float = -inf, end_s: float = -inf) -> None:
        """What it is before all writes."""
        self.all[key].writes.insert(0, Write(value, asked_s, end_s, True))

    def possible(self, key: Key, asked_s: float, answered_s: float) -> set[Hashable] | None:
        """What it may have been between these times; None if it is not known at all."""
        return self.all[key].possible(asked_s, answered_s) if key in self.all else None

    def asked(self, call: Call) -> None:
        """A write may happen from now on."""
        made = []
        for key, value in self._writes_of(call):
            register = self.all[key]
            register.forget(call.asked_s)
            write = Write(value, call.asked_s)
            register.writes.append(write)
            made.append((key, write))
            if key[0] == "group" and value == "exclude":
                self._exclude(key[1], call.asked_s)
        if made:
            self._open[call] = made

    def _exclude(self, rank: Hashable, asked_s: float) -> None:
        write = Write(False, asked_s)
        self.all["drain", rank].writes.append(write)
        self._excluding[rank].append(write)

    def answered(self, call: Call, errnum: int, now_s: float) -> None:
        """A write is sure, or has not happened."""
        for key, write in self._open.pop(call, ()):
            if errnum:
                self.all[key].writes.remove(write)
            else:
                write.end_s, write.is_sure = min(write.end_s, now_s), True
                if key[0] == "group" and write.value != "exclude":
                    for undrain in self._excluding.pop(key[1], ()):  # it went elsewhere, or has been there
                        undrain.end_s = now_s

    def given_up(self, call: Call, now_s: float) -> None:
        """It may have happened, or still may for a while."""
        for _, write in self._open.get(call, ()):
            write.end_s = min(write.end_s, now_s + LATEST_S)

    def process_ended(self, ended: ProcessEnded) -> None:
        """What the instance has not handled by now it never will."""
        if ended.process == INSTANCE:
            for made in self._open.values():
                for _, write in made:
                    write.end_s = min(write.end_s, ended.at_s)
