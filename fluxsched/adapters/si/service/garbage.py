"""Collection of the garbage that ended registrations leave behind.

Law: the interpreter's own full collections are off (`own_process.settle`), since each looks through all that is alive;
the tables of a resource manager refer to each other in circles, so one is made after registrations have ended: when
nothing is to be done, or before too much has gathered.
"""

from __future__ import annotations

import gc
from typing import Final

from fluxsched.system.processes import GC_THRESHOLDS

IDLE_S: Final = 1.0
"""Without a turn for so long (seconds), nothing is to be done."""

GARBAGE_OBJECTS_MAX = 4_000_000
"""Objects made since the last collection, some hundred bytes each, of which some may be garbage."""


class Garbage:
    """Of registrations that have ended."""

    def __init__(self) -> None:
        self._is_there = False

    def add(self) -> None:
        """Take note that a registration has ended."""
        self._is_there = True

    @property
    def is_there(self) -> bool:
        """Return whether there is some garbage."""
        return self._is_there

    @property
    def is_much(self) -> bool:
        """Return whether there may be too much garbage to wait."""
        return self._is_there and gc.get_count()[1] * GC_THRESHOLDS[0] >= GARBAGE_OBJECTS_MAX

    def collect(self) -> None:
        """Takes as long as all that is alive is large: 50,000 allocations take 0.1 s."""
        self._is_there = False
        gc.collect()
