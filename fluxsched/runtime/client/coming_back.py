"""Where an instance is again that a client has lost: at its address after `fluxsched restart`, or wherever a later
start has taken its state directory.

Law: an instance that ended in good order, or leaves no state, does not come back; others are looked for within a limit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fluxsched.runtime.system.clock import SystemClock, sleep
from fluxsched.runtime.system.live_instances import live_instances
from fluxsched.runtime.system.logs.kept_logs import end_of, state_of
from fluxsched.runtime.system.paths import INFO_NAME
from fluxsched.runtime.system.processes import stat_of

RECONNECT_S = 60.0
"""How long a client looks for an instance that it has lost (seconds): as long as keepers wait for it."""
LOOK_S = 0.05
"""How often (seconds)."""


def may_come_back(uri: str) -> bool:
    """Whether to look for it at all."""
    return next(places(uri, 0.0), None) is not None


def places(uri: str, within_s: float = RECONNECT_S) -> Iterator[str]:
    """Addresses to try, one after the other, with pauses; the end says that it will not be back, or not in time."""
    until_s = SystemClock.monotonic_s() + within_s
    info = written_at(uri)
    while (place := place_now(uri, info)) is not None:
        yield place
        if SystemClock.monotonic_s() >= until_s:
            return
        sleep(LOOK_S)


def place_now(uri: str, info: dict[str, Any] | None) -> str | None:
    """Where to try now, by what the instance wrote while it was there (`written_at`); None: it will not be back."""
    if info is not None:
        stat = stat_of(int(info["pid"]))
        if stat is not None and stat.alive:
            return uri
        statedir = info.get("statedir")
    elif _is_local(uri):
        statedir = state_of(uri)  # a later start may have removed what it wrote before we looked
    else:
        return uri
    if statedir is None or "unexpectedly" not in (end_of(uri) or ""):
        return None
    return next((str(one["uri"]) for one in live_instances() if _is_same(one.get("statedir"), statedir)), uri)


def _is_same(one: str | None, other: str | Path) -> bool:
    return one is not None and os.path.realpath(one) == os.path.realpath(other)


def _is_local(uri: str) -> bool:
    return "://" not in uri or uri.startswith(("ipc://", "local://"))


def written_at(uri: str) -> dict[str, Any] | None:
    """What a local instance wrote into its run directory, which is there until it ends in good order."""
    try:
        found = json.loads((Path(uri.partition("://")[2]).parent / INFO_NAME).read_text())
        return found if isinstance(found, dict) and "pid" in found else None
    except (OSError, ValueError):
        return None
