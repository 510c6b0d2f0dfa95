"""Runs one input and judges it: a crash is an exception that was not declared, a hang takes more than a second.

Law: the judge knows no target. Time is processor time, so that a busy machine is no hang.
"""

from __future__ import annotations

import hashlib
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_DATA, getrlimit, setrlimit
from types import FrameType

import fluxsched
from fluxsched.errors import FluxschedError, LocalProtocolError
from tests.fuzz.target import Target

HANG_S = 1.0
"""Processor time that one input may take."""
MEMORY_BYTES_MAX = 1 << 30
"""Memory that the process of a target may have: what needs more for an input of kilobytes ends with MemoryError."""
REPORT_LINES = 12
PACKAGE = f"{Path(fluxsched.__file__).parent}/"


class Hang(BaseException):
    """An input takes too long; no parser catches this."""


@dataclass(frozen=True)
class Defect:
    """What is wrong with a target, shown by an input; `place` tells one defect from another."""

    kind: str
    place: str
    report: str


def judge(target: Target, data: bytes) -> Defect | None:
    """Run one input. `limited` must be in force for hangs to be noticed."""
    try:
        return _judged(target, data)
    except Hang as fault:  # it came as the input had just ended
        return _defect("hang", fault)


def _judged(target: Target, data: bytes) -> Defect | None:
    signal.setitimer(signal.ITIMER_PROF, HANG_S)
    try:
        target.run(data)
    except LocalProtocolError as fault:
        return _defect("crash", fault)
    except Hang as fault:
        return _defect("hang", fault)
    except Exception as fault:
        return None if isinstance(fault, (FluxschedError, *target.errors)) else _defect("crash", fault)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return None


def _defect(kind: str, fault: BaseException) -> Defect:
    at = traceback.extract_tb(fault.__traceback__)
    ours = (
        [frame for frame in at if frame.filename.startswith(PACKAGE)]
        or [frame for frame in at if frame.filename != __file__]
        or at
    )
    place = f"{type(fault).__name__} at {Path(ours[-1].filename).name}:{ours[-1].name}"
    lines = traceback.format_exception(fault)
    return Defect(kind, place, "".join(lines[-REPORT_LINES:]))


@contextmanager
def limited(memory_bytes: int | None = None) -> Iterator[None]:
    """Hangs are noticed, and no more memory than this is had, if it is given."""
    former = signal.signal(signal.SIGPROF, _too_long)
    limits = getrlimit(RLIMIT_DATA)
    if memory_bytes is not None:
        setrlimit(RLIMIT_DATA, (memory_bytes, limits[1]))
    try:
        yield
    finally:
        signal.signal(signal.SIGPROF, former)
        if memory_bytes is not None and limits[0] == RLIM_INFINITY:
            setrlimit(RLIMIT_DATA, limits)


def _too_long(signum: int, frame: FrameType | None) -> None:
    raise Hang(f"more than {HANG_S:g} s of processor time")


def file_name(target: Target, defect: Defect, data: bytes) -> str:
    """Where an input is kept that shows a defect."""
    return f"{target.name}-{defect.kind}-{hashlib.sha256(data).hexdigest()[:12]}"
