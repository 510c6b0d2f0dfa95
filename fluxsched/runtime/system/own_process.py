"""Settings of this process itself: its interpreter, and its death together with the process that started it."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

GC_THRESHOLDS = (20_000, 1_000_000)
"""New objects before a collection, and how many of these before the older ones are looked through, too. New ones take
6 ms. What survives are jobs, perhaps millions, whose collection would take seconds; and our objects make no cycles."""
SWITCH_S = 0.001
"""How long the loop may keep the writer thread waiting for the interpreter (seconds): a transaction asks for it a dozen
times, and every answer waits for a transaction. With Python's 5 ms they take several times as long under load."""
PR_SET_PDEATHSIG = 1
"""prctl(2)."""


@contextmanager
def uncollected() -> Iterator[None]:
    """What is made meanwhile is kept and not searched for cycles, which for restored jobs takes as long as all else."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def settle() -> None:
    """To be called once all that lasts as long as the process is made."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_S)


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def die_with(parent: int) -> None:
    """Have the kernel kill this process when the thread of process `parent` that started it ends; at once if it has."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it was gone before we asked
        os.kill(os.getpid(), signal.SIGKILL)
