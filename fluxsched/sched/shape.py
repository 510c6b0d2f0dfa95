"""Shapes: equal requests as one object with a number, so that what was worked out for one holds for all.

Law: equal requests get one shape for as long as it is remembered, and no number is given twice in a process. So a table
by number needs no more than a limit: it keeps no object alive, and an entry that is left behind is never mistaken.
"""

from __future__ import annotations

from itertools import count

from fluxsched.core.jobspec import Request

SHAPES_MAX = 4096
"""Shapes that are remembered; some hundred bytes each. Beyond that, equal requests may get more than one."""

_numbers = count(1)


class Shape:
    """A request, and the number by which tables know it and all its equals."""

    __slots__ = ("number", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.number = next(_numbers)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Shape) and self.request == other.request)

    def __hash__(self) -> int:
        return hash(self.request)

    def __repr__(self) -> str:
        return f"Shape({self.number}, {self.request})"


class Shapes:
    """The shapes that a scheduler remembers."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[Request, Shape] = {}

    def of(self, request: Request) -> Shape:
        """The shape of a request."""
        shape = self._known.get(request)
        if shape is None:
            if len(self._known) >= SHAPES_MAX:
                self._known.clear()
            shape = self._known[request] = Shape(request)
        return shape
