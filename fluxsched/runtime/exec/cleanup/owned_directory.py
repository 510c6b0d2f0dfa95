"""Directories of ours that go when their process is gone: a file in each says whose it is.

Law: the file `owner` says which process a directory belongs to, and that process holds a lock on it until it ends,
whatever ends it. The file appears in one step, written and locked: so a directory without it is one that is being made,
and one whose owner can be locked by another process has outlived its own.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from pathlib import Path

from fluxsched.runtime.system.paths import OWNER_NAME, PREFIX
from fluxsched.runtime.system.processes import boot_id, stat_of


def owned_prefix() -> str:
    """What the names of this user's directories begin with."""
    return f"{PREFIX}{os.getuid()}-"


def own(path: Path) -> int:
    """Make a new directory this process's; the descriptor whose closing gives it up."""
    draft = path / f".{OWNER_NAME}"
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        stat = stat_of(os.getpid())
        assert stat is not None, "this process is there"
        process = {"pid": os.getpid(), "start_ticks": stat.start_ticks}
        os.write(fd, json.dumps({**process, "boot_id": boot_id(), "host": os.uname().nodename}).encode())
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        draft.rename(path / OWNER_NAME)
    except BaseException:
        os.close(fd)
        raise
    return fd


def scratch_directory() -> tuple[Path, int]:
    """A new directory of this process below TMPDIR, since a run directory may be in memory, and be small; and the
    descriptor whose closing gives it up.
    """
    path = Path(tempfile.mkdtemp(prefix=owned_prefix(), dir=tempfile.gettempdir()))
    return path, own(path)
