"""Files and directories of an instance: their names, their owner, how they are read, and the logs of the latest
instances, kept when these have ended, with what they say of the end.

Law: what an instance keeps is its owner's alone: directories 0700, files 0600, whatever the umask. What is ours and was
open to others is closed, with a warning; what belongs to another user, or may be there for others to use, is refused
and left as it is. A whole file that a person named is read within a bound, as UTF-8, and every way in which that can
fail is one kind of error. A page for people or monitoring is served at loopback only, unless told otherwise.

A log is written where it is kept, so that no kind of end can lose it: in `logs/` of the state directory, else below the
user's state home; the run directory and, for a state directory elsewhere, the state home have links to it. The instance
holds a lock on its log: one that is not locked is of an instance that has ended, and it did so in good order if the
last line says so. Instances inside a job have a place of their own there, for they may be many.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import getpass
import ipaddress
import os
import pwd
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from shlex import quote

from fluxsched import __version__
from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.system.log import logger


def read_text(path: Path, what: str, limit_bytes: int) -> str:
    """Return the text of a file. Raises InvalidValue, with the errno of the system where it has one, or
    LimitExceeded.
    """
    try:
        with path.open("rb") as file:
            data = file.read(limit_bytes + 1)
    except OSError as fault:
        raise InvalidValue(f"{what} {path} cannot be read: {fault.strerror}", fault.errno) from fault
    except ValueError as fault:  # not a possible path: it holds a NUL, or half a surrogate pair
        raise InvalidValue(f"{what} {str(path)!r} cannot be read: {fault}") from None
    if len(data) > limit_bytes:
        raise LimitExceeded(f"{what} {path} is longer than the limit of {limit_bytes} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as fault:
        line = data.count(b"\n", 0, fault.start) + 1
        raise InvalidValue(f"{path}:{line}: {what} is not UTF-8 text") from None


# ---- paths

URI_VARIABLE = "FLUXSCHED_URI"
KEY_VARIABLE = "FLUXSCHED_KEY"
"""Variable with the path of a client's key file, never the key itself."""
PARENT_VARIABLE = "FLUXSCHED_PARENT_URI"
"""The instance around the one that FLUXSCHED_URI names."""
TEMPORARY_VARIABLE = "FLUXSCHED_TMPDIR"
LEVEL_VARIABLE = "FLUXSCHED_LEVEL"
"""Variable with the number of fluxsched instances around a process; not set outside of any."""
SOCKET_NAME = "instance.sock"
LOCAL_NAME = "local-0"
"""The socket for Flux's own clients, named as Flux names it."""
INFO_NAME = "instance.json"
LOG_NAME = "log"
PAGE_NAME = "web.address"
"""The file with the address of the page that the instance serves, with its token."""
GUESTS_NAME = "web.guests"
"""The directory beside it with the guests' links, a file each (`web.guests`)."""
OWNER_NAME = "owner"
"""The file that says which process a run directory belongs to; see instance/run_directory.py."""
DATABASE_NAME = "state.sqlite"
"""The store's file, in the state directory or else in the run directory."""
ENGINE_NAME = "engine.json"
"""The record of the engine that holds the hosts of the instance, with the keys of its keepers."""
ADDRESS_NAME = "address"
"""The file in a state directory that names the run directory of its instances."""
PREFIX = "fluxsched-"
_IPC = "ipc://"
_LEVEL_DIGITS = 4


def level_here() -> int:
    """Return the number of instances around this process; 0 outside of any, and if the variable is invalid."""
    text = os.environ.get(LEVEL_VARIABLE, "")
    return int(text) if text.isdecimal() and len(text) < _LEVEL_DIGITS else 0


def temporary_directory() -> str:
    """Return the directory of instances' temporary files.

    A job's TMPDIR is removed with the job, so an instance inside it does not use it.
    """
    return os.environ.get(TEMPORARY_VARIABLE) or tempfile.gettempdir()


def base_directory() -> Path:
    """Return the directory below which this user's run directories are made.

    Inside an instance it is that instance's: a job may have a temporary directory of its own, which is removed with it.
    """
    enclosing = _beside(os.environ.get(URI_VARIABLE, "")) if level_here() else None
    if enclosing is not None:
        return enclosing
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime)
    return Path(temporary_directory())


def _beside(uri: str) -> Path | None:
    """Return the directory above the run directory of the instance at `uri`, if the URI names one and it is
    writable.
    """
    path = Path(uri.removeprefix(_IPC))
    if not uri.startswith(_IPC) or path.name != SOCKET_NAME or not path.parent.name.startswith(PREFIX):
        return None
    base = path.parent.parent
    return base if os.access(base, os.W_OK) else None


# ---- private files

log = logger("instance")

DIRECTORY_MODE, FILE_MODE = 0o700, 0o600
OTHERS = 0o077
"""Permissions of all users but the owner."""
SPOOL_NAME = "jobs"
COMMIT_SUFFIX = "-commit"
"""Suffix of the file with the number of the last transaction (`storage.commit_record`)."""
STATE_NAMES = (
    *(DATABASE_NAME + suffix for suffix in ("", "-wal", "-shm", COMMIT_SUFFIX)),
    "lock", "logs", ADDRESS_NAME, ENGINE_NAME, PAGE_NAME, GUESTS_NAME, SPOOL_NAME,
)  # fmt: skip
"""Names of our files in a state directory."""


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
        whose = f"{what} {path} belongs to {user_name(found.st_uid)}, who could read and change its contents"
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
    """Make a directory and its missing parents, each accessible to its owner alone: a user who may write to one could
    rename its content. An existing one is not changed.
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
    """Make an empty file that is its owner's alone in place of any at `path`, and never through a link there.

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


def remove_dead_socket(path: Path, in_use: str) -> None:
    """Remove the socket of a process that is gone, so that another can be bound at `path`.

    Raises Refused: with `in_use` if something listens there, and for anything that is not a socket.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise Refused(f"{path} exists and is not a socket: name another path", errno.EEXIST)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(os.fspath(path)) != errno.ECONNREFUSED:
            raise Refused(in_use, errno.EADDRINUSE)
    path.unlink(missing_ok=True)


def user_name(userid: int) -> str:
    """Return a user's name for people to read; the number when the machine does not know it."""
    try:
        return pwd.getpwuid(userid).pw_name
    except KeyError:
        return getpass.getuser() if userid == os.getuid() else str(userid)


# ---- addresses of HTTP

PORT_MAX = 65_535
UNIX = "unix:"
OPEN = "where all could read everything"
UNENCRYPTED = (
    "where contents and the token of the address are sent unencrypted: reach it by `ssh -L`, "
    "or through a proxy with TLS on this machine"
)


def parse_page_bind(text: str, *, public: bool) -> tuple[str, int] | Path:
    """Return the address of the page for people: host and port, or the path of `unix:PATH`.

    Raises as `parse_bind` does.
    """
    if not text.startswith(UNIX):
        return parse_bind(text, public=public, risk=UNENCRYPTED)
    path = text.removeprefix(UNIX)
    if not path or "\0" in path:
        raise InvalidValue(f"address {text!r} is not unix:PATH")
    return Path(path).absolute()


def parse_bind(text: str, *, public: bool, risk: str = OPEN) -> tuple[str, int]:
    """Host and port of `127.0.0.1:9400` or `[::1]:9400`; port 0 is one that is free.

    Raises InvalidValue, or Refused for an address that other hosts reach, unless it may be `public`.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isdecimal() and port.isascii() and int(port) <= PORT_MAX):
        raise InvalidValue(f"address {text!r} is not HOST:PORT, such as 127.0.0.1:9400")
    if host == "localhost":
        host = "127.0.0.1"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise InvalidValue(f"address {text!r}: {host!r} is neither an IP address nor localhost") from None
    if not (address.is_loopback or public):
        raise Refused(
            f"address {text!r} can be reached from other hosts, {risk}: "
            "bind 127.0.0.1, or allow it with --public (`public = true` in the configuration)",
            errno.EPERM,
        )
    return host, int(port)


# ---- logs of ended instances

LOGS_KEPT = 16
"""Logs of ended instances that are kept in one directory."""
TAIL_BYTES = 4096
"""Number of bytes read of a log's beginning and of its end."""
TOLD_NAME = "told"
"""The file that names the log of which it was last said that its instance ended unexpectedly."""
OF_STATE = ", state directory "
"""Text of the first line of a log, which is written once an instance listens."""
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
    return f"fluxsched {__version__}, process {os.getpid()}, at {uri}{OF_STATE}{statedir or 'none'}"


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
    return None if path is None else _statedir_of(path)


def _statedir_of(path: Path) -> Path | None:
    """Return the state directory that has a log of `logs_directory`, if it is a link to one there."""
    return path.resolve().parents[1] if path.is_symlink() else None


def _last_log(uri: str) -> Path | None:
    """Return the log of the last instance at `uri` that has ended."""
    ended = _ended(logs_directory())
    return next((path for path in ended if _has_at_its_beginning(path, f" at {uri}, ")), None)


def _has_at_its_beginning(path: Path, text: str) -> bool:
    with contextlib.suppress(OSError), path.open("rb") as file:
        return text.encode() in file.read(TAIL_BYTES)
    return False


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
    """Return the sort key of a log: the time of its last line, since the last one to begin need not be the last to
    end.
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
    kept, statedir = path.resolve(), _statedir_of(path)
    said = f"ended unexpectedly {when} {datetime.fromtimestamp(at_s):%b%d %H:%M}: its log is {kept}"
    later = [other for other in kept.parent.glob("*.log") if other.name > kept.name]
    if statedir is None or any(_has_at_its_beginning(other, OF_STATE) for other in later):
        return said  # a later instance has its jobs, unlike a start that failed
    return f"{said}; `fluxsched start --statedir {quote(str(statedir))}`, with its other options, takes its jobs over"


def _prune(directory: Path) -> None:
    for path in list(_ended(directory))[LOGS_KEPT:]:
        path.unlink(missing_ok=True)
