"""Size changes of a job, and its resources after each, derived from its stored events. Reads only.

Law: a target counts until the job is told to leave it, so what is said at last is what the job may go on to use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from fluxsched.core.idset import Idset
from fluxsched.core.rchanges import grown, shrunk
from fluxsched.core.resources import ResourceSet


class SizeChange(NamedTuple):
    """One change, at first what the job has `now`: `ranks` is what it is about, `left` what the job has then."""

    event: Literal["now", "grow", "shrink"]
    time_s: float
    ranks: Idset
    left: ResourceSet
    note: str = ""


class SizeChanges:
    """Of one job. `allocated` reads the R that it was started with, once it was."""

    def __init__(self, allocated: Callable[[], Mapping[str, Any] | None]) -> None:
        self._allocated = allocated
        self._left: ResourceSet | None = None
        self._is_told = False

    def take(self, events: Iterable[Mapping[str, Any]]) -> list[SizeChange]:
        """Return the size changes in further events; of the stored ones only the final resources."""
        found: list[SizeChange] = []
        for event in events:
            name, time_s = event["name"], event["timestamp"]
            if name == "alloc":
                given = self._allocated()
                if given is not None:
                    self._left = ResourceSet.parse(given)
                    found.append(SizeChange("now", time_s, self._left.ranks, self._left))
            elif name == "grow" and self._left is not None:
                added = ResourceSet.parse(event["context"]["R"])
                self._left = grown(self._left, added)
                found.append(SizeChange("grow", time_s, added.ranks, self._left))
            elif name == "shrink" and self._left is not None:
                ranks = Idset.parse(event["context"]["ranks"])
                self._left = shrunk(self._left, ranks)
                found.append(SizeChange("shrink", time_s, ranks, self._left, event["context"]["note"]))
            elif name == "clean":
                return []
        if not self._is_told and found:
            self._is_told = True
            return [found[-1]._replace(event="now", ranks=found[-1].left.ranks, note="")]
        return found
