"""Whose line it was: what a policy does wrong is shown at the line of the policy, not at ours that noticed it.

Law: nothing is hidden. A fault that we find in a decision is raised out of the very `yield` that made it, so that its
traceback goes through the policy; whoever catches it there goes no further either.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

OURS = Path(__file__).parents[2]
"""The engine: frames in here are not the policy's."""

POLICIES = OURS / "sched" / "policies"
"""But those in here are."""


def raise_at(decisions: Iterator[object] | None, fault: Exception) -> None:
    """Raises the fault where the policy stands; returns if that cannot be, or if the policy swallows it."""
    throw = getattr(decisions, "throw", None)
    if throw is not None:
        with suppress(StopIteration):
            throw(fault)


def policy_line(fault: BaseException) -> str | None:
    """`mine.py:12`, the innermost line of the policy that the fault came through; None if it came through none.

    The policy's file is that of the first frame outside of the engine: what it calls may lie deeper.
    """
    lines = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(fault.__traceback__)]
    own = next((file for file, _ in lines if _is_policy(Path(file))), None)
    found = [f"{Path(file).name}:{line}" for file, line in lines if file == own]
    return found[-1] if found else None


def _is_policy(file: Path) -> bool:
    if str(file).startswith("<frozen "):  # Python's own importing, between our call and the policy's first line
        return False
    return OURS not in file.parents or POLICIES in file.parents
