"""The prepared process: it has imported what commands, instances and schedulers import, and forks for each of them.

    python -P process.py LISTENER LIFE PROGRAMS   (two descriptors; it ends when LIFE is closed at the other end)

To a request (`request.py`) it answers lines: the process id, then the status; or that it refuses.
Law: what is forked differs from the real program in its command line alone: directory, environment, umask, affinity and
descriptors are the caller's, and it ends as a program does, by its own `sys.exit`. What cannot be had of the caller
(limits, user, variables of Python) is refused, and what wants real programs. Nothing here may start a thread.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import os
import select
import signal
import socket
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.prepared.becoming import Request, close
from tests.prepared.children import nested_forked
from tests.prepared.request import CHILD, REAL, REFUSED, SESSION
from tests.prepared.spares import spares_of_instances

del sys.path[0]

LOOK_S = 0.001
OF_NO_MATTER = {("PYTHONIOENCODING", "utf-8"), ("PYTHONUTF8", "1")}
"""All is UTF-8."""


class Forked(NamedTuple):
    """A forked process, and the connection of the caller that waits for it."""

    caller: socket.socket
    pid: int
    watch: int

    @property
    def fds(self) -> tuple[int, int]:
        return self.caller.fileno(), self.watch


class Server:
    """Forks for each request, reports how it ended, and kills what has lost its caller."""

    def __init__(self, listener: socket.socket, life: socket.socket) -> None:
        self._listener, self._life = listener, life
        self._poll = select.poll()
        self._forked: dict[int, Forked] = {}
        """By both of its descriptors."""
        self._limits, self._of_python = limits("self"), of_python(dict(os.environ))
        for end in (listener, life):
            self._poll.register(end, select.POLLIN)

    def serve(self) -> Request | None:
        """In what is forked: the request; None once there are no more."""
        while True:
            # Last comes who is new: it may get the number of a descriptor that another event of these closes
            for fd in sorted((fd for fd, _ in self._poll.poll()), key=self._listener.fileno().__eq__):
                if fd == self._life.fileno():
                    return None
                if fd == self._listener.fileno():
                    request = self._accept()
                    if request is not None:
                        return request
                elif fd in self._forked:
                    self._ended(self._forked[fd], is_over=fd == self._forked[fd].watch)

    def _accept(self) -> Request | None:
        caller, _ = self._listener.accept()
        peer = int.from_bytes(caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4), sys.byteorder)
        request = Request.receive(caller)
        if request is None or not self._can_be_had(request, peer):
            tell(caller, REFUSED)
            close(*([] if request is None else request.fds))
            caller.close()
            return None
        pid = os.fork()
        if pid == 0:
            self._become(request, caller, peer)
            return request
        close(*request.fds)
        if CHILD in request.how:
            os.waitpid(pid, 0)
            caller.close()
            return None
        forked = Forked(caller, pid, os.pidfd_open(pid))
        for fd in forked.fds:
            self._forked[fd] = forked
            self._poll.register(fd, select.POLLIN)
        tell(caller, pid)
        return None

    def _ended(self, forked: Forked, *, is_over: bool) -> None:
        """The process is over, or its caller is gone."""
        if not is_over:
            os.kill(forked.pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(forked.pid, 0)[1])
        for fd in forked.fds:
            self._poll.unregister(fd)
            del self._forked[fd]
        tell(forked.caller, status)
        forked.caller.close()
        os.close(forked.watch)

    def _can_be_had(self, request: Request, peer: int) -> bool:
        if REAL in request.environ or of_python(request.environ) != self._of_python:
            return False
        try:
            return limits(peer) == self._limits
        except OSError:  # gone
            return False

    def _become(self, request: Request, caller: socket.socket, peer: int) -> None:
        """In what is forked: of all descriptors those that the caller gave are left."""
        os.sched_setaffinity(0, os.sched_getaffinity(peer))
        if CHILD in request.how:
            become_orphan()
        if SESSION in request.how:
            os.setsid()
        if CHILD in request.how:
            tell(caller, os.getpid())
        for forked in self._forked.values():
            forked.caller.detach()
        request.take_descriptors([self._life.detach(), self._listener.detach(), caller.detach(), *self._forked])
        if SESSION in request.how and os.isatty(0):  # the terminal is the session's, as with pty.fork
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def limits(pid: int | str) -> tuple[bytes, list[bytes]]:
    """Those of a process; and who it is."""
    with open(f"/proc/{pid}/limits", "rb") as lines, open(f"/proc/{pid}/status", "rb") as status:
        return lines.read(), [line for line in status if line.startswith((b"Uid", b"Gid", b"CapEff"))]


def of_python(environ: dict[str, str]) -> dict[str, str]:
    """What Python itself takes from the environment."""
    found = {name: value for name, value in environ.items() if name.startswith("PYTHON")}
    return dict(found.items() - OF_NO_MATTER)


def tell(caller: socket.socket, what: int | bytes) -> None:
    with suppress(OSError):
        caller.send(b"%b\n" % (what if isinstance(what, bytes) else b"%d" % what), socket.MSG_NOSIGNAL)


def become_orphan() -> None:
    before = os.getpid()
    if os.fork() != 0:
        os._exit(0)
    while os.getppid() == before:
        time.sleep(LOOK_S)


def prepare() -> None:
    """Import what most of them need."""
    for module in (
        "cli.instance", "cli.config", "cli.job", "cli.job", "cli.jobs",
        "cli.queue", "cli.main", "cli.batch", "cli.submit",
        "client.blocking", "engine.keeper", "executor.keeper", "instance.launch",
        "scheduler.main",
    ):  # fmt: skip
        importlib.import_module(f"fluxsched.{module}")
    gc.collect()
    gc.freeze()  # else each collection writes to all pages, which would be copied


def main(listener: str, life: str, programs: str) -> None:
    prepare()
    request = Server(socket.socket(fileno=int(listener)), socket.socket(fileno=int(life))).serve()
    if request is not None:
        with spares_of_instances(), nested_forked(programs):
            request.become()


if __name__ == "__main__":
    main(*sys.argv[1:])
