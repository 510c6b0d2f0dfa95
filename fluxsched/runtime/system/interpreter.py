"""The interpreter's own habits, set for a process that is one loop, with one writer thread beside it in an instance."""

from __future__ import annotations

import gc
import sys

GC_THRESHOLDS = (20_000, 1_000_000)
"""New objects before a collection, and how many of these before the older ones are looked through, too. New ones take
6 ms. What survives is jobs, perhaps millions, which would stop all for seconds; and nothing of ours makes cycles."""
SWITCH_S = 0.001
"""How long the loop may keep the writer thread waiting for the interpreter (seconds): a transaction asks for it a dozen
times, and every answer waits for a transaction. With Python's 5 ms they take several times as long under load."""


def settle() -> None:
    """To be called once all that lasts as long as the process is made."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_S)
