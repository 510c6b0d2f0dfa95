"""When to look again for an instance that was lost, and for how long: one rule for both clients and all helpers.

Law: an instance with a state directory has one address (`runtime.instance.run_directory`), so it is looked for there.
One that ended in good order, or leaves no state, does not come back; others are looked for within a limit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fluxsched.runtime.system.clock import SystemClock
from fluxsched.runtime.system.logs.kept_logs import end_of, state_of
from fluxsched.runtime.system.paths import INFO_NAME
from fluxsched.runtime.system.processes import stat_of

RECONNECT_S = 60.0
"""How long a client looks for an instance that it has lost (seconds): as long as keepers wait for it."""
RETRY_S, RETRY_MAX_S = 0.05, 2.0
"""Pause before the first attempt, and the longest one; each is twice as long as the one before (seconds)."""


def delays() -> Iterator[float]:
    """Pauses between attempts (seconds), without an end."""
    delay_s = RETRY_S
    while True:
        yield delay_s
        delay_s = min(2 * delay_s, RETRY_MAX_S)


def attempts(uri: str, within_s: float = RECONNECT_S, *, also_stopped: bool = False) -> Iterator[float]:
    """The pause before each attempt (seconds); the end says that the instance will not be back, or not in time.

    `also_stopped`: an instance with a state directory that ended in good order is looked for, too.
    """
    until_s = SystemClock.monotonic_s() + within_s
    for delay_s in delays():
        if not may_come_back(uri, also_stopped=also_stopped):
            return
        yield delay_s
        if SystemClock.monotonic_s() >= until_s:
            return


def may_come_back(uri: str, *, also_stopped: bool = False) -> bool:
    """Return whether an instance may be at `uri` again, by what it has written; of one elsewhere nothing is known."""
    if not _is_local(uri):
        return True
    info = _written_at(uri)
    if info is not None:  # it lives, or was killed: what ends in good order removes this
        stat = stat_of(int(info["pid"]))
        return (stat is not None and stat.alive) or info.get("statedir") is not None
    return state_of(uri) is not None and (also_stopped or "unexpectedly" in (end_of(uri) or ""))


def _is_local(uri: str) -> bool:
    return "://" not in uri or uri.startswith(("ipc://", "local://"))


def _written_at(uri: str) -> dict[str, Any] | None:
    """What a local instance wrote into its run directory, which is there until it ends in good order."""
    try:
        found = json.loads((Path(uri.partition("://")[2]).parent / INFO_NAME).read_text())
        return found if isinstance(found, dict) and "pid" in found else None
    except (OSError, ValueError):
        return None
