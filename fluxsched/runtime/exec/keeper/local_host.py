"""The keepers of an instance on this machine: processes, found by their sockets in its state or run directory.

Law: a process that a connection leads to is no other one, whatever its number: it is held by a pidfd as long as the
connection lives. Only keepers of the same user are talked to. A socket is removed only if none of them is behind it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from fluxsched.errors import FluxschedError
from fluxsched.runtime.exec.keeper import keeper_main
from fluxsched.runtime.exec.keeper.connection import connected
from fluxsched.runtime.system.log import logger
from fluxsched.runtime.system.private_files import FILE_MODE
from fluxsched.transport.base import Client
from fluxsched.transport.stream import peer_of

log = logger("keeper")

PREFIX = "keeper-"
"""What the names of the sockets begin with; a number follows."""
BACKLOG = 8
CONNECT_S = 5.0
"""How long a keeper may take to accept a connection (seconds): a stopped one may have no room for a further one."""
GONE_S = 5.0
"""How long a killed keeper may take to be gone (seconds); one that waits for a disk may take for ever."""


class LocalKeeperHost:
    """See `KeeperHost`."""

    def __init__(self, directory: Path, run_directory: Path | None, owner: int, grace_s: float) -> None:
        """`directory` is where the sockets are. `run_directory` is what a keeper clears when the instance is killed,
        `owner` the descriptor that holds the lock on it; None where a next instance resumes the jobs.
        """
        self._directory = os.path.realpath(directory)
        self._run_directory = run_directory
        self._owner = owner
        self._grace_s = grace_s
        self._pidfds: dict[Client, tuple[int, int]] = {}

    def living(self) -> Sequence[Client]:
        """See `KeeperHost.living`."""
        found: list[Client] = []
        for number in self._numbers():
            path = self._path(number)
            try:
                found.append(self._connect(path))
            except (ConnectionRefusedError, FileNotFoundError, ProcessLookupError, PermissionError) as fault:
                log.info("%s is removed: %s", path, fault.strerror or fault)
                with contextlib.suppress(OSError):
                    os.unlink(path)
            except BlockingIOError as fault:
                raise FluxschedError(
                    f"whether jobs run at keeper {path} cannot be known: it has accepted no connection within "
                    f"{CONNECT_S:g} s; if it is stopped, continue it (kill -CONT) or end it (kill -KILL), then start "
                    "again",
                    errno.ETIMEDOUT,
                ) from fault
            except OSError as fault:  # there may be jobs behind it, which would be lost with the socket
                text = f"whether jobs run at keeper {path} cannot be known: {fault.strerror}; start again without that"
                raise FluxschedError(text, fault.errno) from fault
        return found

    def start(self) -> Client:
        """See `KeeperHost.start`."""
        path = self._path(max(self._numbers(), default=0) + 1)
        ours, theirs = socket.socketpair()
        with theirs, self._listen(path) as listener:
            words = [sys.executable, "-I", "-S", keeper_main.__file__, path, str(listener.fileno())]
            words += [str(self._run_directory or ""), str(self._grace_s), os.pathsep.join(sys.path)]
            kept = [listener.fileno()] + ([] if self._run_directory is None else [self._owner])
            try:
                process = subprocess.Popen(
                    words, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=kept,
                    start_new_session=True,
                )  # fmt: skip
            except OSError:
                ours.close()
                os.unlink(path)
                raise
        process.returncode = 0  # `end` reaps it
        return self._known(ours, process.pid)

    def end(self, client: Client, timeout_s: float) -> None:
        """See `KeeperHost.end`."""
        pid, fd = self._pidfds.pop(client, (0, -1))
        if fd < 0:
            return
        if not select.select([fd], [], [], timeout_s)[0]:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            if not select.select([fd], [], [], GONE_S)[0]:
                log.error("keeper %d is not gone %g s after it was killed: does it wait for a disk?", pid, GONE_S)
        os.close(fd)
        with contextlib.suppress(ChildProcessError):  # that of an instance before
            os.waitpid(pid, os.WNOHANG)

    def _numbers(self) -> list[int]:
        names = (name.removeprefix(PREFIX) for name in os.listdir(self._directory) if name.startswith(PREFIX))
        return sorted(int(name) for name in names if name.isdecimal())

    def _path(self, number: int) -> str:
        return f"{self._directory}/{PREFIX}{number}"

    def _listen(self, path: str) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _short(path) as name:
            listener.bind(name)
        os.chmod(path, FILE_MODE)
        listener.listen(BACKLOG)
        return listener

    def _connect(self, path: str) -> Client:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        limit = struct.pack("@ll", int(CONNECT_S), int(CONNECT_S % 1 * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        try:
            with _short(path) as name:
                connection.connect(name)
            pid, userid = peer_of(connection)
            if userid != os.geteuid():
                raise PermissionError(1, "it is another user's")
            return self._known(connection, pid)
        except BaseException:
            connection.close()
            raise

    def _known(self, connection: socket.socket, pid: int) -> Client:
        client = connected(connection)
        self._pidfds[client] = pid, os.pidfd_open(pid)
        return client


@contextlib.contextmanager
def _short(path: str) -> Iterator[str]:
    """A name of a socket that is short enough for the kernel, wherever its directory is."""
    directory, name = os.path.split(path)
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)
