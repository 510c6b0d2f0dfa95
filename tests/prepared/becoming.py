"""How a process that was forked becomes the program that was wanted of it."""

from __future__ import annotations

import atexit
import fcntl
import os
import runpy
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from tests.prepared.request import COMMAND, KEEPER, LENGTH_BYTES

FDS_MAX = 16
ABOVE = 200
"""Descriptors from there on are free for those that arrive, and that do not belong there, until they are in place."""


class Request(NamedTuple):
    """See `request.py`."""

    kind: str
    how: set[str]
    cwd: str
    umask: int
    targets: list[int]
    words: list[str]
    environ: dict[str, str]
    fds: list[int]

    @classmethod
    def receive(cls, connection: socket.socket) -> Request | None:
        """The one that arrives; None from one who is gone."""
        length, fds, _, _ = socket.recv_fds(connection, LENGTH_BYTES, FDS_MAX)
        left, data = int(length or b"0"), b""
        while len(data) < left and (more := connection.recv(left - len(data))):
            data += more
        if not data or len(data) < left:
            close(*fds)
            return None
        kind, how, cwd, umask, targets, count, *rest = data.decode(errors="surrogateescape").split("\0")[:-1]
        words, environ = rest[: int(count)], dict(line.split("=", 1) for line in rest[int(count) :])
        return cls(kind, set(how.split()), cwd, int(umask), [*map(int, targets.split())], words, environ, fds)

    def take_descriptors(self, others: Sequence[int]) -> None:
        """Have what arrived where it belongs, once the others are closed."""
        free = max(ABOVE, *self.targets) + 1
        above = [fcntl.fcntl(fd, fcntl.F_DUPFD, free) for fd in self.fds]
        close(*self.fds, *others)
        for fd, target in zip(above, self.targets, strict=True):
            os.dup2(fd, target)
            os.close(fd)

    def become(self) -> NoReturn:
        """Run what is wanted, and end as it does."""
        os.chdir(self.cwd)
        os.umask(self.umask)
        os.environ.clear()
        os.environ.update(self.environ)
        time.tzset()
        sys.argv = list(self.words)
        if self.kind == COMMAND:
            from fluxsched.cli.main import main

            sys.orig_argv = [sys.executable, *self.words]
            end(main)
        program = self.words[0]
        if self.kind == KEEPER:
            Path("/proc/self/comm").write_text(Path(program).name)  # by which tests find it
            end(lambda: runpy.run_path(program, run_name="__main__") and None)
        sys.orig_argv = [sys.executable, "-P", "-m", *self.words]
        sys.modules.pop(program, None)  # else Python warns that it is there twice
        end(lambda: runpy.run_module(program, run_name="__main__", alter_sys=True) and None)


def end(run: Callable[[], Any]) -> NoReturn:
    """As a program ends, without freeing its memory piece by piece, which takes three times as long as a short command.

    What Python has to say of another end than an exit with a status, it says.
    """
    try:
        status = run()
    except SystemExit as exc:
        status = exc.code
    if status is None or isinstance(status, int):
        threading._shutdown()  # type: ignore[attr-defined] # waits for threads
        atexit._run_exitfuncs()
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:
            sys.exit(status)
        os._exit((status or 0) & 0xFF)
    sys.exit(status)


def close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)
