"""The running instances of this user, and the one that a client connects to.

An instance describes itself in `instance.json` of its run directory. A client looks at `FLUXSCHED_URI` first and then
for the newest live instance of this user.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any

from fluxsched.core.text import is_text, printable
from fluxsched.errors import FluxschedError, InvalidValue, Refused
from fluxsched.runtime.system.paths import INFO_NAME, PREFIX, URI_VARIABLE, base_directory
from fluxsched.runtime.system.processes import stat_of


def write_info(run_directory: Path, info: dict[str, Any]) -> None:
    """Describe a running instance for `find_uri`; the file is replaced atomically."""
    draft = run_directory / f".{INFO_NAME}"
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        json.dump(info, file)
    draft.replace(run_directory / INFO_NAME)


def read_info(run_directory: Path) -> dict[str, Any] | None:
    """What a running instance wrote; None when there is none or its process is gone."""
    try:
        info = json.loads((run_directory / INFO_NAME).read_text())
        stat = stat_of(int(info["pid"]))
        if stat is None or not stat.alive:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return info if isinstance(info, dict) else None


def live_instances() -> list[dict[str, Any]]:
    """What this user's live instances wrote (InstanceInfo), the newest first."""
    found = []
    for path in base_directory().glob(f"{PREFIX}{os.getuid()}-*"):
        with contextlib.suppress(FileNotFoundError):  # just removed
            if path.stat().st_uid == os.getuid() and (info := read_info(path)) is not None and "uri" in info:
                found.append(info)
    return sorted(found, key=lambda info: float(info.get("starttime", 0.0)), reverse=True)


def live_uris() -> list[str]:
    """This user's live instances that are in no other one, the newest first."""
    return [str(info["uri"]) for info in live_instances() if not info.get("level")]


def find_uri(uri: str | None = None, *, only: bool = False) -> str:
    """The instance to talk to: `uri`, else FLUXSCHED_URI, else this user's newest live instance that is not a job.

    `only`: a caller that is about to change something must not guess. Raises Refused naming all, if there are several,
    and InvalidValue for an address that is not text.
    """
    if uri or (uri := os.environ.get(URI_VARIABLE)):
        if not is_text(uri):
            raise InvalidValue(f"{URI_VARIABLE} or --uri: '{printable(uri)}' is not UTF-8 text")
        return uri
    found = live_uris()
    if only and len(found) > 1:
        listed = "".join(f"\n  {each}" for each in found)
        raise Refused(
            f"{len(found)} instances of yours are running: name one with --uri or {URI_VARIABLE}{listed}",
            errno.ENOTUNIQ,
        )
    if not found:
        from fluxsched.runtime.system.logs.kept_logs import last_end

        said = last_end()
        raise FluxschedError(
            "no fluxsched instance found: start one with `fluxsched start`, "
            f"or name a running one with --uri or {URI_VARIABLE}" + (f" ({said})" if said else ""),
            errno.ENOENT,
        )
    return found[0]
