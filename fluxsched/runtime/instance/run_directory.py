"""The run directory of an instance, from its making to its sweeping.

Law: only what certainly has no owner (`owned_directory.py`) is removed, and a start never fails or waits long for it.
The sweeper holds the owner's lock: of several starts, one removes a directory. The keeper of an instance without a
state directory inherits the lock, and clears the directory itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fluxsched.core.text import is_text, printable
from fluxsched.errors import FluxschedError
from fluxsched.runtime.exec.cleanup.leftovers import clear
from fluxsched.runtime.exec.cleanup.owned_directory import own, owned_prefix
from fluxsched.runtime.system.clock import Clock, SystemClock, sleep
from fluxsched.runtime.system.log import logger
from fluxsched.runtime.system.paths import ADDRESS_NAME, OWNER_NAME, SOCKET_NAME, base_directory
from fluxsched.runtime.system.processes import boot_id, stat_of

log = logger("instance")

OWNER_BYTES_MAX = 4096
"""What is read of an owner file; ours has some 150 bytes."""
UNIX_PATH_BYTES_MAX = 107
"""What `sun_path` holds; a longer run directory cannot have a socket in it."""
LOOK_S = 0.01
"""How often a start looks whether another process has removed a directory (seconds)."""
SWEEP_S = 1.0
"""A start begins to remove no further directory after this time (seconds); the next start continues."""


def make_run_directory() -> tuple[Path, int]:
    """A new private run directory, and the descriptor whose closing gives it up."""
    path = Path(tempfile.mkdtemp(prefix=owned_prefix(), dir=base_directory()))
    try:
        if not is_text(str(path)):
            raise FluxschedError(f"run directory '{printable(str(path))}' is not UTF-8 text: set XDG_RUNTIME_DIR")
        if len(os.fsencode(path / SOCKET_NAME)) > UNIX_PATH_BYTES_MAX:
            raise FluxschedError(
                f"run directory {path} is too long for a socket (limit {UNIX_PATH_BYTES_MAX} bytes): "
                "set XDG_RUNTIME_DIR"
            )
        return path, own(path)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


def kept_run_directory(state: Path) -> tuple[Path, int]:
    """The run directory that the last instance on a state directory had, made anew, so that the address stays; another
    one if there is none yet, or its name cannot be had. The caller holds the lock of the state directory.
    """
    path = _kept(state)
    if path is not None and (fd := _made_again(path)) is not None:
        return path, fd
    path, fd = make_run_directory()
    draft = state / f".{ADDRESS_NAME}"
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
            json.dump({"run_directory": str(path), "inode": state.stat().st_ino}, file)
        draft.replace(state / ADDRESS_NAME)
    except OSError as fault:
        # a disk that takes no address takes no state either, which ends the start with its own error
        log.info("the next start will have another address: %s cannot be written: %s", draft, fault.strerror)
    return path, fd


def _kept(state: Path) -> Path | None:
    """What `kept_run_directory` noted there; None for nonsense, and in a copy of a state directory."""
    try:
        with (state / ADDRESS_NAME).open("rb") as file:
            found = json.loads(file.read(OWNER_BYTES_MAX))
        path, inode = Path(found["run_directory"]), found["inode"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    is_one = path.is_absolute() and path.name.startswith(owned_prefix())
    return path if is_one and inode == state.stat().st_ino else None


def _made_again(path: Path) -> int | None:
    """Make a directory of this name, after removing what a killed instance has left there; None if that cannot be."""
    until_s = SystemClock.monotonic_s() + SWEEP_S
    while True:
        try:
            path.mkdir(mode=0o700)
            path.chmod(0o700)
            return own(path)
        except FileExistsError:
            found = path.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                log.warning("%s belongs to another user: this instance has another address than the last one", path)
                return None
            _remove_if_dead(path)
            if path.exists() and SystemClock.monotonic_s() > until_s:  # by now its next start would have removed it
                log.warning("%s is in use: this instance has another address than the last one", path)
                return None
            sleep(LOOK_S)
        except OSError as fault:
            log.warning("%s: %s: this instance has another address than the last one", path, fault.strerror)
            return None


class StateLock:
    """Holds a state directory for this process; a second instance on it is refused.

    The lock's file is removed while the lock is held, so it is never another instance's.
    """

    def __init__(self, state: Path, held: int | None = None) -> None:
        """`held` is the descriptor of a lock that this process had before it executed itself anew."""
        self._path = state / "lock"
        self.fd = _locked(self._path) if held is None else held
        while not os.fstat(self.fd).st_nlink:  # its owner has just removed it: this one excludes no other
            os.close(self.fd)
            self.fd = _locked(self._path)

    def release(self) -> None:
        """Let others have the directory."""
        with contextlib.suppress(OSError):  # a directory that is gone, or read-only by now
            self._path.unlink()
        os.close(self.fd)


@contextlib.contextmanager
def lock_state(state: Path) -> Iterator[None]:
    """Hold the state directory meanwhile; see `StateLock`."""
    lock = StateLock(state)
    try:
        yield
    finally:
        lock.release()


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
                if entry.name.startswith(owned_prefix()) and _is_ours(entry):
                    _remove_if_dead(Path(entry.path))


def _is_ours(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid()


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
    process = stat_of(pid)
    return process is None or not process.alive or process.start_ticks != start_ticks

