"""What an instance keeps is its owner's alone: directories 0700, files 0600, whatever the umask, whatever stood there.

Law: what is ours and was open to others is closed, with a warning; what belongs to another user, or may be there for
others to use, is refused and left as it is. Files of a job's own choice are none of this module's.
"""

from __future__ import annotations

import contextlib
import errno
import getpass
import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path

from fluxsched.errors import Refused
from fluxsched.runtime.system.log import logger
from fluxsched.runtime.system.paths import ADDRESS_NAME, DATABASE_NAME, PAGE_NAME

log = logger("instance")

DIRECTORY_MODE, FILE_MODE = 0o700, 0o600
OTHERS = 0o077
"""Permissions of all users but the owner."""
SPOOL_NAME = "jobs"
COMMIT_SUFFIX = "-commit"
"""Of the file with the number of the last transaction (`storage.commit_record`)."""
STATE_NAMES = (
    *(DATABASE_NAME + suffix for suffix in ("", "-wal", "-shm", COMMIT_SUFFIX)),
    "lock", "logs", ADDRESS_NAME, PAGE_NAME, SPOOL_NAME,
)  # fmt: skip
"""What is ours in a state directory."""


def private_directory(path: Path, what: str, is_ours: Callable[[Path], bool] = lambda path: True) -> None:
    """Make a directory that is its owner's alone, or make the one that is there so.

    Raises Refused (EPERM) for one of another user, or behind a link of another user, and for one that is open to others
    unless it is empty or `is_ours` knows it; OSError as the system has it.
    """
    with contextlib.suppress(FileExistsError):
        make_private(path.parent)
        path.mkdir(mode=DIRECTORY_MODE)
        path.chmod(DIRECTORY_MODE)
        return
    link = path.lstat()
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (0, os.geteuid()):
        whose = f"{what} {path} is a symbolic link of {user_name(link.st_uid)}"
        raise Refused(f"{whose}: name the directory itself, or remove the link", errno.EPERM)
    found = path.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise Refused(f"{what} {path} is not a directory: name another one", errno.ENOTDIR)
    if found.st_uid != os.geteuid():
        whose = f"{what} {path} belongs to {user_name(found.st_uid)}, who could read and change what is kept there"
        raise Refused(f"{whose}: name one of your own", errno.EPERM)
    if found.st_mode & OTHERS:
        mode = stat.S_IMODE(found.st_mode)
        if not is_ours(path) and os.listdir(path):
            raise Refused(
                f"{what} {path} is open to others (mode {mode:04o}) and has other files in it: "
                f"name a new one, or close this one with chmod {DIRECTORY_MODE:o}",
                errno.EPERM,
            )
        path.chmod(DIRECTORY_MODE)
        log.warning("%s %s was open to others (mode %04o), now it is yours alone (0700)", what, path, mode)


def make_private(path: Path) -> None:
    """Make a directory and those above it that are missing, each its owner's alone: who may write to one could rename
    what is in it. One that is there is left as it is.
    """
    if not path.exists():
        make_private(path.parent)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=DIRECTORY_MODE)


def private_state(state: Path) -> None:
    """Make a state directory, or take over one that is there: it and all of ours in it is closed to others.

    Raises Refused as `private_directory` does.
    """
    try:
        private_directory(state, "state directory", lambda path: (path / DATABASE_NAME).exists())
    except OSError as fault:
        raise Refused(f"state directory {state} cannot be used: {fault.strerror}", fault.errno) from fault
    for name in STATE_NAMES:
        close_to_others(state / name)
    private_directory(state / SPOOL_NAME, "spool directory")


def close_to_others(path: Path) -> None:
    """Remove all permissions but the owner's from a file or directory, if it exists; a link is left alone."""
    with contextlib.suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if mode & OTHERS and not stat.S_ISLNK(mode):
            path.chmod(DIRECTORY_MODE if stat.S_ISDIR(mode) else FILE_MODE)


def private_file(path: Path) -> None:
    """Make sure that a file exists and is its owner's alone, before code that follows the umask opens it."""
    close_to_others(path)
    with contextlib.suppress(FileExistsError):
        _create(path)


def new_private_file(path: Path) -> None:
    """Make an empty file that is its owner's alone in place of what is at `path`, and never through a link there.

    Raises OSError, also if another process makes one at that moment.
    """
    path.unlink(missing_ok=True)
    _create(path)


def _create(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    os.fchmod(fd, FILE_MODE)  # an umask may take permissions from the owner, too
    os.close(fd)


def replace_private_text(path: Path, text: str) -> None:
    """Replace a file's text atomically; it is its owner's alone, whatever stood there. Raises OSError."""
    draft = path.with_name(f".{path.name}")
    new_private_file(draft)
    draft.write_text(text, "utf-8")
    draft.replace(path)


def user_name(userid: int) -> str:
    """A user's name for people to read; the number when the machine does not know it."""
    try:
        return pwd.getpwuid(userid).pw_name
    except KeyError:
        return getpass.getuser() if userid == os.getuid() else str(userid)
