"""Every request is answered, once, and never with a fault of the instance (EIO)."""

from __future__ import annotations

from typing import Any

from tests.chaos.checkers.base import EIO, Call, Checker, Site, Truth

UNHURRIED = frozenset({"job-manager.wait", "instance.ready"})
"""Requests that wait for more than the disk."""


class Answers(Checker):
    """Follows requests that are not streams."""

    name = "answers"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._open: set[Call] = set()

    def asked(self, call: Call) -> None:
        """An answer is owed, if there is a matchtag (Judges knows)."""
        if call.is_awaited:
            self._open.add(call)

    def answered(self, call: Call, payload: Any, errnum: int) -> None:
        """No fault of ours."""
        if errnum == EIO and "a fault of fluxsched" in str(payload):
            raise self.broken(f"{call.topic} {call.payload} of {call.actor}: {payload}")
        if errnum or not call.is_streaming:
            self._open.discard(call)

    def given_up(self, call: Call) -> None:
        """Nothing is owed any more."""
        self._open.discard(call)

    def settled(self, truth: Truth) -> None:
        """Nothing is left open but streams."""
        for call in self._open:
            if not call.is_streaming and call.topic not in UNHURRIED and call.asked_s < truth.at_s - 60.0:
                raise self.broken(f"{call.topic} {call.payload} of {call.actor} at {call.asked_s} s has no answer")
