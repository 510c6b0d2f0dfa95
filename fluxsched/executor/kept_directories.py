"""Directories that jobs have left as they got them, kept for later jobs: a rename costs a file system next to nothing,
while new directories and files cost more than a process.

Law: nothing of one job reaches another. A directory is kept only if it is as if new: ours, with the mode and attributes
of a new one, with its files alone, all empty and none open for writing anywhere. It has no name of a job meanwhile. The
caller rules out that a process is left in it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import stat
from collections.abc import Sequence

KEPT_NAME = ".kept"
"""Directory, beside those of jobs, of directories that no job has: no id of a job begins with a dot."""
KEPT_MAX = 256
"""Directories kept at a time: as many as jobs that end and start in one go."""
KERNELS_OWN = "security."
"""Prefix of extended attributes that files get without a job's doing."""


class KeptDirectories:
    """Kept directories of one kind, those of earlier processes among them."""

    def __init__(self, files: Sequence[str] = ()) -> None:
        """`files` are the names of the files in such a directory."""
        self._files = frozenset(files)
        self._kept: dict[str, list[str]] = {}
        """Paths of what is kept, by the directory that those of jobs are in."""
        signal.signal(signal.SIGIO, signal.SIG_IGN)  # who opens a file that is being looked at would end us

    def take(self, path: str) -> bool:
        """Have a kept directory at this path; return False if there is none, so that one has to be made."""
        kept = self._kept_in(path.rpartition("/")[0])
        while kept:
            try:
                os.rename(kept.pop(), path)
            except OSError:  # removed meanwhile, or taken by another keeper
                continue
            return True
        return False

    def keep(self, path: str) -> bool:
        """Keep a job's directory if it is as if new; return whether it was kept."""
        parent, _, name = path.rpartition("/")
        kept = self._kept_in(parent)
        if len(kept) >= KEPT_MAX or not self._is_as_new(path):
            return False
        place = f"{parent}/{KEPT_NAME}"
        try:
            try:
                os.rename(path, f"{place}/{name}")
            except FileNotFoundError:  # the first one there
                os.mkdir(place, 0o700)
                os.rename(path, f"{place}/{name}")
        except OSError:
            return False
        kept.append(f"{place}/{name}")
        return True

    def _kept_in(self, parent: str) -> list[str]:
        """Return the paths of the directories that are kept for jobs of this parent directory."""
        if parent not in self._kept:
            place = f"{parent}/{KEPT_NAME}"
            try:
                self._kept[parent] = [f"{place}/{name}" for name in os.listdir(place)]
            except OSError:
                self._kept[parent] = []
        return self._kept[parent]

    def _is_as_new(self, path: str) -> bool:
        try:
            found = os.lstat(path)
            if not _is_ours(found, stat.S_IFDIR | 0o700) or _has_attributes(path):
                return False
            return set(os.listdir(path)) == self._files and all(map(_is_untouched, self._paths_in(path)))
        except OSError:
            return False

    def _paths_in(self, path: str) -> list[str]:
        return [f"{path}/{name}" for name in self._files]


def _is_ours(found: os.stat_result, mode: int) -> bool:
    return found.st_uid == os.geteuid() and found.st_mode == mode


def _has_attributes(path: str) -> bool:
    """Return whether a job has set an access list or another attribute, which what is made inside may inherit."""
    return any(not name.startswith(KERNELS_OWN) for name in os.listxattr(path, follow_symlinks=False))


def _is_untouched(path: str) -> bool:
    """Return whether a file is empty and as if new, and no process can write into it. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if found.st_size or found.st_nlink != 1 or not _is_ours(found, stat.S_IFREG | 0o600):
            return False
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)  # granted only if nobody has it open for writing (fcntl(2))
        return True
    finally:
        os.close(fd)
