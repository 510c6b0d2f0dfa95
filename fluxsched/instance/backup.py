"""Backups of an instance's state, made while it runs, and the survey of all instances of this user on this machine.

Law: a backup is what one moment had on disk, and it was checked before it has its name; nothing that exists is
overwritten. It has jobs, drains, groups, queues and the history of accounts, but not what jobs have printed. The
instance takes no part in it: another process reads its file, as SQLite allows, so it answers as fast as before. A
survey never waits long for an instance that hangs.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fluxsched.client.blocking import Handle
from fluxsched.client.find import find_uri, live_instances
from fluxsched.core.text import is_text, printable
from fluxsched.errors import Disconnected, FluxschedError, InvalidValue, Refused, RPCError
from fluxsched.executor.cleanup import DISOWNED, PROGRAM
from fluxsched.instance.instance import lock_state
from fluxsched.store.integrity import add_function
from fluxsched.store.repair import INDEX_SUFFIX, LOG_SUFFIX, NEXT_SUFFIX, fault_of, open_read_only, salvage, sync
from fluxsched.store.schema import refuse_newer
from fluxsched.system.files import DATABASE_NAME, new_private_file, private_file, private_state, user_name


@dataclass(frozen=True, slots=True)
class Backup:
    """Content of a backup file."""

    path: Path
    size: int
    """Size of the file (bytes)."""
    jobs: int


def backup(uri: str | None, path: Path) -> Backup:
    """Write the state of the instance at `uri`, else of this user's only one, to a new file. Raises FluxschedError."""
    if not is_text(str(path)):
        raise InvalidValue(f"backup {printable(str(path))} is not UTF-8 text, as SQLite requires of names")
    _refuse_existing(path)
    source = database_of(uri, "a backup")
    draft = path.with_name(f".{path.name}.draft")
    try:
        new_private_file(draft)
        with closing(open_read_only(source)) as connection:
            connection.execute("VACUUM INTO ?", (str(draft),))
        found = _checked(draft)
        sync(draft)
        os.link(draft, path)  # unlike a rename it overwrites nothing
        sync(path.absolute().parent)
    except sqlite3.Error as fault:
        raise FluxschedError(f"{source} cannot be written to {path}: {fault}") from fault
    except OSError as fault:
        raise Refused(f"backup {path} cannot be written: {fault.strerror}", fault.errno) from fault
    finally:
        draft.unlink(missing_ok=True)
    return Backup(path, found.size, found.jobs)


def database_of(uri: str | None, reader: str) -> Path:
    """Return the file of the instance at `uri`, else of this user's only one. Raises FluxschedError."""
    where = find_uri(uri, only=True)
    if where.startswith("tcp:"):
        raise Refused(
            f"{where} may be on another machine, and {reader} reads the instance's file: run it there, with the URI "
            "that `fluxsched uri` prints",
            errno.EINVAL,
        )
    with Handle(where) as handle:
        info = handle.rpc("instance.info")
    return Path(info.get("statedir") or info["rundir"]) / DATABASE_NAME


def restore(path: Path, statedir: Path) -> Backup:
    """Make a backup the state of a directory that has none: its tables and columns that this version knows.

    Its jobs will run as this user, so a file that another user owns or may write is refused: the file that is open, of
    which a copy is read, and not what may take its name meanwhile. Raises FluxschedError.
    """
    _checked(path)
    target = statedir / DATABASE_NAME
    with ExitStack() as ends:
        opened = list(_open_own(path, ends))
        private_state(statedir)
        ends.enter_context(lock_state(statedir))
        for name in (target, *(target.with_name(target.name + suffix) for suffix in (LOG_SUFFIX, NEXT_SUFFIX))):
            _refuse_existing(name)
        draft, copy = (target.with_name(target.name + suffix) for suffix in (".draft", ".copy"))
        ends.callback(_remove, copy)
        try:
            for suffix, fd in opened:
                _copy(fd, copy.with_name(copy.name + suffix))
            size = copy.stat().st_size
            draft.unlink(missing_ok=True)
            private_file(draft)
            read = salvage(copy, draft)
            if read.lost:
                draft.unlink()
                raise FluxschedError(f"backup {path} is damaged: {read}: take an earlier one")
            _disown_processes(draft)
            sync(draft)
            draft.rename(target)
            sync(statedir)
        except sqlite3.Error as fault:
            raise FluxschedError(f"{path} cannot be restored: {fault}") from fault
        except OSError as fault:
            raise Refused(f"state directory {statedir} cannot be written: {fault.strerror}", fault.errno) from fault
    return Backup(target, size, read.jobs)


def _disown_processes(draft: Path) -> None:
    """Have it find none of the processes on record: they are those of the instance that was saved, which may live."""
    with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
        connection.execute("DELETE FROM process WHERE jobid = ?", (PROGRAM,))
        add_function(connection)
        value = json.dumps(DISOWNED)
        connection.execute("UPDATE process SET value = ?, crc = row_checksum(jobid, ?)", (value, value))


def _checked(path: Path) -> Backup:
    """Return the content of a file that is a sound state of a supported form. Raises FluxschedError."""
    if not path.is_file():
        raise Refused(f"backup {path} does not exist", errno.ENOENT)
    fault = fault_of(path)
    if fault is not None:
        raise FluxschedError(f"backup {path} is damaged: {fault}: take an earlier one")
    try:
        with closing(open_read_only(path)) as connection:
            refuse_newer(connection, str(path))
            jobs = connection.execute("SELECT count(DISTINCT jobid) FROM job_log").fetchone()[0]
    except sqlite3.Error as error:
        raise FluxschedError(f"{path} is no backup of an instance: {error}") from error
    return Backup(path, path.stat().st_size, jobs)


def _open_own(path: Path, ends: ExitStack) -> Iterator[tuple[str, int]]:
    """Open a backup, and the log beside it if there is one: suffixes and descriptors, which `ends` closes."""
    for suffix in ("", LOG_SUFFIX):
        name = path.with_name(path.name + suffix)
        try:
            fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # it may have become a FIFO
        except FileNotFoundError:
            if not suffix:
                raise Refused(f"backup {path} does not exist", errno.ENOENT) from None
        else:
            ends.callback(os.close, fd)
            _refuse_foreign(name, os.fstat(fd))
            yield suffix, fd


def _copy(fd: int, copy: Path) -> None:
    new_private_file(copy)
    with open(fd, "rb", closefd=False) as source, copy.open("wb") as file:
        shutil.copyfileobj(source, file)


def _remove(copy: Path) -> None:
    for suffix in ("", LOG_SUFFIX, INDEX_SUFFIX):
        copy.with_name(copy.name + suffix).unlink(missing_ok=True)


def _refuse_foreign(path: Path, found: os.stat_result) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        why = f"belongs to {user_name(found.st_uid)}"
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        why = f"can be written by others (mode {stat.S_IMODE(found.st_mode):04o})"
    else:
        return
    raise Refused(
        f"backup {path} {why}, and the jobs in it would run as {user_name(os.geteuid())}: if you trust its contents, "
        "restore a copy of your own",
        errno.EPERM,
    )


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise Refused(f"{path} exists, and nothing is overwritten: name a new one, or move this one away", errno.EEXIST)


# ---- survey of a state directory

ANSWER_S = 0.5
"""Maximum time until an instance must answer, after which it counts as one that does not (seconds)."""
SILENT = "silent"
"""The state of an instance whose process is there and does not answer."""


def survey() -> list[dict[str, Any]]:
    """Return each instance as in `instance.info`, the oldest first; of a silent one the record written at its start."""
    found = []
    for written in reversed(live_instances()):
        try:
            with contextlib.closing(Handle(str(written["uri"]))) as handle:
                info = handle.rpc("instance.info", timeout_s=ANSWER_S)
        except Disconnected:  # it ends just now
            continue
        except RPCError as error:
            if error.errnum != errno.ETIMEDOUT:
                raise
            info = {**written, "state": SILENT}
        found.append(info)
    return found
