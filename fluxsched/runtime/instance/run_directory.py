"""The run directory of an instance, from its making to its sweeping.

Law: only what certainly has no owner is removed, and a start never fails or waits long for it. The file `owner`
says which process a directory belongs to, and that process holds a lock on it until it ends, whatever ends it. The file
appears in one step, written and locked: so a directory without it is one that is being made, and one whose owner can be
locked by another process has outlived its instance. The sweeper holds that lock: of several starts, one removes it.
A keeper (exec/keeper.py) inherits the lock and clears the directory itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fluxsched.core.text import is_text, printable
from fluxsched.errors import FluxschedError
from fluxsched.runtime.exec.cleanup.leftovers import clear
from fluxsched.runtime.system.clock import Clock
from fluxsched.runtime.system.log import logger
from fluxsched.runtime.system.paths import OWNER_NAME, PREFIX, SOCKET_NAME, base_directory
from fluxsched.runtime.system.processes import boot_id, stat_of

log = logger("instance")

OWNER_BYTES_MAX = 4096
"""What is read of an owner file; ours has some 150 bytes."""
UNIX_PATH_BYTES_MAX = 107
"""What `sun_path` holds; a longer run directory cannot have a socket in it."""
SCRATCH_NAME = "tmp"
SWEEP_S = 1.0
"""A start begins to remove no further directory after this time (seconds); the next start continues."""


def make_run_directory() -> tuple[Path, int]:
    """A new private run directory, and the descriptor whose closing gives it up."""
    path = Path(tempfile.mkdtemp(prefix=_prefix(), dir=base_directory()))
    try:
        if not is_text(str(path)):
            raise FluxschedError(f"run directory '{printable(str(path))}' is not UTF-8 text: set XDG_RUNTIME_DIR")
        if len(os.fsencode(path / SOCKET_NAME)) > UNIX_PATH_BYTES_MAX:
            raise FluxschedError(
                f"run directory {path} is too long for a socket (limit {UNIX_PATH_BYTES_MAX} bytes): "
                "set XDG_RUNTIME_DIR"
            )
        return path, _own(path)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


@contextlib.contextmanager
def scratch_directory(run_directory: Path) -> Iterator[Path]:
    """Where jobs have their temporary directories, below TMPDIR: a run directory may be in memory, and be small."""
    base = Path(tempfile.gettempdir())
    if base == run_directory.parent:
        path, owner = run_directory / SCRATCH_NAME, None
        path.mkdir(mode=0o700)
    else:
        path = Path(tempfile.mkdtemp(prefix=_prefix(), dir=base))
        owner = _own(path)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if owner is not None:
            os.close(owner)


@contextlib.contextmanager
def lock_state(state: Path) -> Iterator[None]:
    """Hold the state directory for this process; a second instance on it is refused.

    The lock's file is removed while the lock is held, so it is never another instance's.
    """
    path = state / "lock"
    fd = _locked(path)
    while not os.fstat(fd).st_nlink:  # its owner has just removed it: this one excludes no other
        os.close(fd)
        fd = _locked(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a directory that is gone, or read-only by now
            path.unlink()
        os.close(fd)


def _locked(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise FluxschedError(
            f"state directory {path.parent} is used by another instance: stop it or name another"
        ) from None
    return fd


def remove_dead(clock: Clock) -> None:
    """Remove this user's run directories whose instance was killed."""
    until_s = clock.monotonic_s() + SWEEP_S
    for base in dict.fromkeys((base_directory(), Path(tempfile.gettempdir()))):
        with contextlib.suppress(OSError), os.scandir(base) as entries:
            for entry in entries:
                if clock.monotonic_s() > until_s:
                    return
                if entry.name.startswith(_prefix()) and _is_ours(entry):
                    _remove_if_dead(Path(entry.path))


def _prefix() -> str:
    return f"{PREFIX}{os.getuid()}-"


def _is_ours(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid()


def _own(path: Path) -> int:
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


def _remove_if_dead(path: Path) -> None:
    try:
        fd = os.open(path / OWNER_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # being made, or gone, or not an instance's
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        was_removed = os.fstat(fd).st_nlink == 0
        if not was_removed and _is_dead(os.read(fd, OWNER_BYTES_MAX)):
            log.info("%s is removed: its instance was killed", path)
            clear(path, 0.0, log)
    except OSError:  # it is alive, or another process sweeps it
        return
    finally:
        os.close(fd)


def _is_dead(owner: bytes) -> bool:
    """Whether the owner's process is gone. A lock alone would do, but for file systems where it binds one host only."""
    try:
        record = json.loads(owner)
        pid, start_ticks, boot, host = (record[key] for key in ("pid", "start_ticks", "boot_id", "host"))
    except (ValueError, KeyError, TypeError):
        return False
    if boot != boot_id():
        return bool(host == os.uname().nodename)  # this machine before its last boot; another one may be up
    stat = stat_of(pid)
    return stat is None or not stat.alive or stat.start_ticks != start_ticks

