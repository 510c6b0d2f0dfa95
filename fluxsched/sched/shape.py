"""Shapes: equal requests as one object with a number, so that what was worked out for one holds for all.

Where plugins are at work, jobs are of one shape only if what plugins read of them is equal, too (`labels`).

Law: equal requests get one shape for as long as it is remembered, and no number is given twice in a process. So a table
by number needs no more than a limit: it keeps no object alive, and an entry that is left behind is never mistaken.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any, TypeAlias

from fluxsched.core.jobspec import Request

SHAPES_MAX = 4096
"""Shapes that are remembered; some hundred bytes each. Beyond that, equal requests may get more than one."""

_numbers = count(1)


Labels: TypeAlias = tuple[tuple[str, Any], ...]
"""Names and values of what plugins read of a job; the values are hashable."""


class Shape:
    """A request, and the number by which tables know it and all its equals.

    `scope` says which plugins are asked about it: those of the queue of this name, empty for all queues that have none
    of their own; None where there are no plugins.
    """

    __slots__ = ("labels", "number", "request", "scope")

    def __init__(self, request: Request, labels: Labels = (), scope: str | None = None) -> None:
        self.request = request
        self.labels = labels
        self.scope = scope
        self.number = next(_numbers)

    def label(self, name: str) -> Any:
        """The value of a label; None if there is none."""
        for known, value in self.labels:
            if known == name:
                return value
        return None

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Shape)
            and self.scope == other.scope
            and self.labels == other.labels
            and self.request == other.request
        )

    def __hash__(self) -> int:
        return hash(self.request)

    def __repr__(self) -> str:
        return f"Shape({self.number}, {self.request}{f', {self.labels}' if self.labels else ''})"


class Shapes:
    """The shapes that a scheduler remembers. Unless it `resizes` jobs, the number of an elastic one's nodes is settled
    at its start, like that of any other.
    """

    __slots__ = ("_known", "_labelled", "_resizes")

    def __init__(self, *, resizes: bool = True) -> None:
        self._resizes = resizes
        self._known: dict[Request, Shape] = {}
        self._labelled: dict[tuple[Request, Labels, str], Shape] = {}

    def of(self, request: Request, labels: Labels = (), scope: str | None = None) -> Shape:
        """The shape of a request; of one with these labels, where the plugins of a `scope` are asked."""
        if scope is not None:
            return self._of_labelled(request, labels, scope)
        shape = self._known.get(request)
        if shape is None:
            if len(self._known) >= SHAPES_MAX:
                self._known.clear()
            shape = self._known[request] = self._made(request, (), None)
        return shape

    def _of_labelled(self, request: Request, labels: Labels, scope: str) -> Shape:
        key = (request, labels, scope)
        shape = self._labelled.get(key)
        if shape is None:
            if len(self._labelled) >= SHAPES_MAX:
                self._labelled.clear()
            shape = self._labelled[key] = self._made(request, labels, scope)
        return shape

    def _made(self, request: Request, labels: Labels, scope: str | None) -> Shape:
        return Shape(request if self._resizes else settled(request), labels, scope)


def settled(request: Request) -> Request:
    """The same for a job whose size is settled when it starts."""
    if not request.elastic:
        return request
    return replace(request, elastic=False, parts=tuple([settled(part) for part in request.parts]))
