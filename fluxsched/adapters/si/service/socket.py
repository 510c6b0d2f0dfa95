"""The local socket of a service, which its owner alone can reach: the directory is 0700.

Law: what exists is never changed; a directory that is open to others is refused.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from fluxsched.errors import Refused
from fluxsched.system.files import DIRECTORY_MODE, OTHERS, make_private, user_name


@contextlib.contextmanager
def local_socket(path: Path) -> Iterator[None]:
    """Makes the directory if it is missing, and removes what it made. Raises Refused where others could get in."""
    directory = path.parent
    is_new = not directory.exists()
    if is_new:
        make_private(directory)
    _check_directory(directory)
    _check_free(path)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        if is_new:
            with contextlib.suppress(OSError):  # others use it meanwhile
                directory.rmdir()


def _check_directory(directory: Path) -> None:
    found = directory.stat()
    if found.st_uid != os.geteuid():
        raise Refused(f"{directory} belongs to {user_name(found.st_uid)}: name a directory of your own", errno.EPERM)
    if found.st_mode & OTHERS:
        raise Refused(
            f"{directory} is open to others (mode {stat.S_IMODE(found.st_mode):04o}), who could reach a socket in it: "
            f"name one that does not exist yet, or one with mode {DIRECTORY_MODE:04o}",
            errno.EPERM,
        )


def _check_free(path: Path) -> None:
    """A socket that no process listens on is what a killed service left, and may be replaced."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise Refused(f"{path} exists and is not a socket: name another path", errno.EEXIST)
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return
    raise Refused(f"another service listens at unix:{path}: stop it, or name another path", errno.EADDRINUSE)
