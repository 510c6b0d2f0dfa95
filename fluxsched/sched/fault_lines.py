"""Where a fault of foreign code lies, a policy's or a plugin's: its file and line, as its author needs them."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

OURS = Path(__file__).parents[1]
"""Frames of files in here are not the policy's."""

FOREIGN_LIKE: Final = (OURS / "sched" / "policies", OURS / "sched" / "plugins")
"""Except those of files in here."""


def raise_at(decisions: Iterator[object] | None, fault: Exception) -> None:
    """Raises the fault out of the policy's own `yield`, so that its traceback goes through the policy.

    Returns if that cannot be done, or if the policy swallows it: the caller raises it then.
    """
    throw = getattr(decisions, "throw", None)
    if throw is not None:
        with suppress(StopIteration):
            throw(fault)


def policy_line(fault: BaseException) -> str | None:
    """`mine.py:12`, the innermost line of the policy that the fault came through; None if it came through none.

    The policy's file is that of the first frame outside of fluxsched: what it calls may lie deeper.
    """
    lines = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(fault.__traceback__)]
    own = next((file for file, _ in lines if _is_foreign(Path(file))), None)
    found = [f"{Path(file).name}:{line}" for file, line in lines if file == own]
    return found[-1] if found else None


def _is_foreign(file: Path) -> bool:
    if str(file).startswith("<frozen "):  # Python's own importing, between our call and the policy's first line
        return False
    file = OURS.parent / file  # compiled code names its files from there
    return OURS not in file.parents or any(folder in file.parents for folder in FOREIGN_LIKE)
