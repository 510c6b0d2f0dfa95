"""Whether the store's file is sound when an instance starts, and what is done if it is not.

Sound: SQLite finds nothing wrong with it, it has all tables, no transaction of its log (WAL) is hidden behind damage,
and it has the last transaction that is on record.

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
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Final, NamedTuple

from fluxsched.errors import FluxschedError
from fluxsched.runtime.storage.commit_record import recorded_commit, stored_commit
from fluxsched.runtime.storage.salvage import LOG_SUFFIX, is_filled, open_read_only, salvage
from fluxsched.runtime.storage.schema import tables_of_form
from fluxsched.runtime.storage.wal import examine_wal, frames_in_index
from fluxsched.runtime.system.private_files import COMMIT_SUFFIX, private_file

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
    if path.is_dir():
        raise FluxschedError(f"{path} is a directory, where the state was to be a file: move it away")
    fault = fault_at_start(path, has_jobs)
    if fault is None:
        if not accept_loss or not is_filled(path):
            return None
        fault = StateFault("some of its rows cannot be read")  # to be seen by reading all
        rows_only = True
    else:
        rows_only = False
    draft = _named(path, ".draft")
    draft.unlink(missing_ok=True)
    private_file(draft)
    try:
        found = salvage(path, draft)
    except sqlite3.Error as exc:
        raise FluxschedError(f"{path} is damaged ({fault.text}), and what it has cannot be copied: {exc}") from exc
    if fault.lost is not None:
        found.lost.append(fault.lost)
    if rows_only and not found.lost:
        draft.unlink()
        return None
    if found.lost and not accept_loss:
        draft.unlink()
        raise FluxschedError(
            f"{path} is damaged: {fault.text}. {found}. Nothing was changed: restore a backup into a new directory "
            "(fluxsched restore), or start with --salvage to continue with what was read; the damaged file is kept"
        )
    sync(draft)
    draft.rename(following)
    sync(path.parent)
    return f"{_take_place(following, path)}: {fault.text}. {found}"


class StateFault(NamedTuple):
    """What is wrong with a file, and what is lost of which the file itself knows nothing; in words."""

    text: str
    lost: str | None = None


def fault_at_start(path: Path, has_jobs: bool) -> StateFault | None:
    """Return what is wrong with the file that an instance is about to use; None if it is sound. Nothing is changed."""
    is_unclean = is_filled(_named(path, LOG_SUFFIX))
    recorded = recorded_commit(path)
    if not is_filled(path) and not is_unclean:
        if not path.exists():
            return None
        return StateFault("it is empty, but jobs have run on this state") if has_jobs else None
    text = fault_of(path) if is_unclean or path.stat().st_size <= CHECKED_BYTES else None
    if text is None:
        text = _missing_tables(path, has_jobs or bool(recorded))
    if text is not None:
        return StateFault(text)
    with closing(open_read_only(path)) as connection:
        missing = (recorded or 0) - stored_commit(connection)
    log_fault = _log_fault(path, recorded) if is_unclean else None
    if missing <= 0 and log_fault is None:
        return None
    text = log_fault or f"its log ({path.name}{LOG_SUFFIX}) {'ends too early' if is_unclean else 'is missing'}"
    count = f"{missing} " if missing > 0 else ""
    return StateFault(text, f"the last {count}transactions, so that jobs that ended in them run again")


def fault_of(path: Path) -> str | None:
    """What SQLite finds wrong with a file that is there, read without changing it; None if it is sound."""
    try:
        with closing(open_read_only(path)) as connection:
            found = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.Error as fault:
        return str(fault)
    return None if found == "ok" else " ".join(found.split()).removeprefix("*** in database main *** ")


def _missing_tables(path: Path, has_state: bool) -> str | None:
    """Return which tables a file lacks; one that was made and never used has none."""
    with closing(open_read_only(path)) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        found = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    wanted = tables_of_form(version)
    missing = [name for name in wanted if name not in found]
    if not missing or (not found and not has_state):
        return None
    if len(missing) == len(wanted):
        return f"it has no table of an instance{', though jobs have run on this state' if has_state else ''}"
    return f"it has no table {', '.join(missing)}"


def _log_fault(path: Path, recorded: int | None) -> str | None:
    """Return how the log hides transactions that were complete; None if it does not."""
    index = _named(path, INDEX_SUFFIX)
    frames = frames_in_index(index.read_bytes()) if index.exists() else None  # by the connection that looked before
    with _named(path, LOG_SUFFIX).open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        state = examine_wal(data, frames)
    if state.fault is None or (recorded is not None and not state.has_header):
        return None
    return f"its log ({path.name}{LOG_SUFFIX}) is damaged: {state.fault}"


def sync(path: Path) -> None:
    """Have a file, or the names in a directory, on disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _take_place(following: Path, path: Path) -> str:
    """Rename the damaged file with its log and the record of its commits, then have the next one take its place."""
    at = datetime.fromtimestamp(following.stat().st_mtime)
    aside = _named(path, f".damaged-{at:%Y%m%d-%H%M%S}")
    for suffix in (COMMIT_SUFFIX, LOG_SUFFIX, ""):
        with suppress(FileNotFoundError):
            _named(path, suffix).rename(_named(aside, suffix))
    _named(path, INDEX_SUFFIX).unlink(missing_ok=True)
    sync(path.parent)
    following.rename(path)
    sync(path.parent)
    return f"the state was damaged and is kept as {aside}"


def _named(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
