"""The logs of the latest instances, kept when these have ended, and what they say of the end.

Law: a log is written where it is kept, so that no kind of end can lose it: in `logs/` of the state directory, else
below the user's state home; the run directory and, for a state directory elsewhere, the state home have links to it.
The instance holds a lock on its log: one that is not locked is of an instance that has ended, and it did so in good
order if the last line says so. Instances inside a job have a place of their own there, for they may be many.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

from fluxsched import __version__
from fluxsched.errors import Refused
from fluxsched.system.files import (
    LOG_NAME,
    PREFIX,
    base_directory,
    level_here,
    make_private,
    private_directory,
    private_file,
)
from fluxsched.system.log import logger

log = logger("instance")

LOGS_KEPT = 16
"""Logs of ended instances that are kept in one directory."""
TAIL_BYTES = 4096
"""Number of bytes read of a log's beginning and of its end."""
TOLD_NAME = "told"
"""The file that names the log of which it was last said that its instance ended unexpectedly."""
ENDED = "the instance has ended"
"""The last line of a log whose instance ended in good order."""
DATED = ("the instance was killed", "the instance ends: ")
"""Texts of a last line that was written when the instance ended; any other line is from before."""


def logs_directory(statedir: Path | None = None) -> Path:
    """Return the directory of the logs of this user's instances, or of the instances of a state directory."""
    if statedir is not None:
        return statedir.absolute() / "logs"
    home = Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()) / "fluxsched"
    if not home.is_absolute() or not _make(home):
        home = base_directory() / f"{PREFIX}{os.getuid()}-state"
    return home / ("logs/nested" if level_here() else "logs")


def keep_log(begun: ExitStack, run_directory: Path, statedir: Path | None, now_s: float) -> None:
    """Begin the log of this instance, at `run_directory / LOG_NAME`, and make room for it by removing the oldest.

    `begun` releases its lock. Where there is no place to keep it, it is removed with the run directory.
    """
    unique = run_directory.name.rpartition("-")[2]  # a program may start several in one second
    name = f"{datetime.fromtimestamp(now_s):%Y%m%d-%H%M%S}-{os.getpid()}-{unique}.log"
    places = [logs_directory(statedir)] if statedir is None else [logs_directory(statedir), logs_directory()]
    try:
        for place in places:
            private_directory(place.parent, "directory", lambda path: True)
            private_directory(place, "directory of logs")
        path = places[0] / name
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(OSError):  # a file system that has no locks
            fcntl.flock(fd, fcntl.LOCK_EX)
    except OSError as fault:
        log.warning("the log cannot be kept: %s: %s", fault.filename, fault.strerror)
        return
    except Refused as fault:
        log.warning("the log cannot be kept: %s", fault)
        return
    begun.callback(os.close, fd)
    (run_directory / LOG_NAME).symlink_to(path)
    for place in places[1:]:
        with contextlib.suppress(OSError):
            (place / name).symlink_to(path)
    for place in places:
        _prune(place)


def begin_line(uri: str, statedir: Path | None) -> str:
    """Return the first line of a log, which identifies the instance."""
    return f"fluxsched {__version__}, process {os.getpid()}, at {uri}, state directory {statedir or 'none'}"


def last_end(statedir: Path | None = None) -> str | None:
    """Return a sentence on the end of the last of this user's instances (or of a state directory's) that has ended, if
    it did not end regularly.
    """
    return _last_end(logs_directory(statedir))[1]


def untold_end(statedir: Path | None = None) -> str | None:
    """Return that sentence unless it was reported by this function before: instances may start for weeks until one ends
    regularly.
    """
    directory = logs_directory(statedir)
    path, said = _last_end(directory)
    if path is None or said is None:
        return None
    told = directory / TOLD_NAME
    with contextlib.suppress(OSError):  # not told, or it cannot be noted: then it is told again
        if told.read_text() == path.name:
            return None
    with contextlib.suppress(OSError):
        private_file(told)
        told.write_text(path.name)
    return said


def _last_end(directory: Path) -> tuple[Path | None, str | None]:
    path = next(_ended(directory), None)
    end = None if path is None else _end(path)
    return path, None if end is None else f"the last instance {end}"


def end_of(uri: str) -> str | None:
    """Return the fate of the instance that was at `uri`, as a text to follow "the instance"; None if no log has it."""
    path = _last_log(uri)
    return None if path is None else _end(path) or f"has ended: its log is {path.resolve()}"


def state_of(uri: str) -> Path | None:
    """Return the state directory of the instance that was at `uri`, if it had one: its log is there."""
    path = _last_log(uri)
    return path.resolve().parents[1] if path is not None and path.is_symlink() else None


def _last_log(uri: str) -> Path | None:
    """Return the log of the last instance at `uri` that has ended."""
    mark = f" at {uri}, ".encode()
    for path in _ended(logs_directory()):
        with contextlib.suppress(OSError), path.open("rb") as file:
            if mark in file.read(TAIL_BYTES):
                return path
    return None


def _make(home: Path) -> bool:
    try:
        make_private(home)
    except OSError:
        return False
    return os.access(home, os.W_OK)


def _ended(directory: Path) -> Iterator[Path]:
    """Yield logs of instances that have ended, the one that was written last first; a link to nowhere is the oldest."""
    try:
        paths = [directory / name for name in os.listdir(directory) if name.endswith(".log")]
    except OSError:
        return
    for path in sorted(paths, key=_written, reverse=True):
        if not _is_locked(path):
            yield path


def _written(path: Path) -> tuple[int, str]:
    """Return the sort key of a log: the time of its last line, since the last one to begin need not be the last to end.
    """
    try:
        return path.stat().st_mtime_ns, path.name
    except OSError:
        return 0, path.name


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def _end(path: Path) -> str | None:
    """Return a text on how the instance of a log ended; None: regularly, or unknown."""
    try:
        with path.open("rb") as file:
            at_s = os.fstat(file.fileno()).st_mtime
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    if not lines or lines[-1].rstrip('"}').endswith(ENDED):
        return None
    when = "at" if any(mark in line for line in lines for mark in DATED) else "after"
    return f"ended unexpectedly {when} {datetime.fromtimestamp(at_s):%b%d %H:%M}: its log is {path.resolve()}"


def _prune(directory: Path) -> None:
    for path in list(_ended(directory))[LOGS_KEPT:]:
        path.unlink(missing_ok=True)
