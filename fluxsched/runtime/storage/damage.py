"""Whether the store's file is sound when an instance starts, and what is done if it is not.

Law: a damaged file is never written to, removed or silently emptied. What it has is read into a new one; if nothing is
known to be lost, that takes its place, else only if the user has said so (`start --salvage`), and until then nothing is
changed. A file that shall take the place of another is complete on disk under the name `.next` before the damaged one
is renamed, so that an interrupted change is completed by the next start.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from fluxsched.errors import FluxschedError
from fluxsched.runtime.storage.salvage import LOG_SUFFIX, is_filled, open_read_only, salvage
from fluxsched.runtime.system.private_files import private_file

CHECKED_BYTES: Final = 256 << 20
"""Up to this size a file is checked at every start (0.3 s, a million jobs' logs take more); a larger one if the last
instance on it did not end in good order."""
INDEX_SUFFIX: Final = "-shm"
NEXT_SUFFIX: Final = ".next"
"""Of a complete file that is to take the place of a damaged one."""


def make_sound(path: Path, has_jobs: bool, *, accept_loss: bool = False) -> str | None:
    """See to it that the file can be used; what the user is to be told, None if nothing.

    `has_jobs`: jobs have run on this state. Raises FluxschedError for a damaged file of which something is lost, unless
    `accept_loss`.
    """
    following = _named(path, NEXT_SUFFIX)
    if following.exists():
        return _take_place(following, path)
    if has_jobs and not path.exists():
        return f"{path} is missing, though jobs have run on this state: it has no jobs, drains or groups any more"
    fault = _fault(path, has_jobs)
    if fault is None:
        return None
    draft = _named(path, ".draft")
    draft.unlink(missing_ok=True)
    private_file(draft)
    try:
        found = salvage(path, draft)
    except sqlite3.Error as exc:
        raise FluxschedError(f"{path} is damaged ({fault}), and what it has cannot be copied: {exc}") from exc
    if found.lost and not accept_loss:
        draft.unlink()
        raise FluxschedError(
            f"{path} is damaged: {fault}. {found}. Nothing was changed: restore a backup into a new directory "
            "(fluxsched restore), or start with --salvage to continue with what was read; the damaged file is kept"
        )
    sync(draft)
    draft.rename(following)
    sync(path.parent)
    return f"{_take_place(following, path)}: {fault}. {found}"


def fault_of(path: Path) -> str | None:
    """What is wrong with a file that is there, read without changing it; None if it is sound."""
    try:
        with closing(open_read_only(path)) as connection:
            found = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.Error as fault:
        return str(fault)
    return None if found == "ok" else " ".join(found.split()).removeprefix("*** in database main *** ")


def sync(path: Path) -> None:
    """Have a file, or the names in a directory, on disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _fault(path: Path, has_jobs: bool) -> str | None:
    """The same if it is due, and of a file that should have something in it."""
    unclean = is_filled(_named(path, LOG_SUFFIX))
    if not is_filled(path) and not unclean:
        return "it is empty, but jobs have run on this state" if has_jobs else None
    if not unclean and path.stat().st_size > CHECKED_BYTES:
        return None
    return fault_of(path)


def _take_place(following: Path, path: Path) -> str:
    """Rename the damaged file and its log, then have the next one take its place."""
    at = datetime.fromtimestamp(following.stat().st_mtime)
    aside = _named(path, f".damaged-{at:%Y%m%d-%H%M%S}")
    for suffix in (LOG_SUFFIX, ""):
        with suppress(FileNotFoundError):
            _named(path, suffix).rename(_named(aside, suffix))
    _named(path, INDEX_SUFFIX).unlink(missing_ok=True)
    sync(path.parent)
    following.rename(path)
    sync(path.parent)
    return f"the state was damaged and is kept as {aside}"


def _named(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
