"""Programs of ours that are forked from a prepared process (`process.py`): a start is mostly the import of some five
hundred modules, the same ones hundreds of times.

There are three ways: `Prepared.run` for a command; `fluxsched` in the directory `programs`, for those of scripts and
jobs and for pipes; and `forking` (`children.py`), for what an instance or a command starts.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.prepared.children import Refused, forking, nested_forked
from tests.prepared.request import CHILD, COMMAND, REFUSED, SESSION, packed

PROGRAM = str(Path(sys.executable).with_name("fluxsched"))
HERE = Path(__file__).parent
PR_SET_CHILD_SUBREAPER = 36
"""prctl(2): orphans below this process become its children."""
ADOPTING = threading.Lock()
ANSWER_BYTES = 100
TIMEOUT_S = 60.0
"""Far above what the end of a process takes."""


class Ended(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str
    pid: int


class Caller(socket.socket):
    """A connection for one that is forked."""

    pid: int

    def learn(self) -> None:
        """Its process id. Raises Refused."""
        answer = b""
        while not answer.endswith(b"\n") and (data := self.recv(1)):
            answer += data
        if answer.strip() in (b"", REFUSED):
            raise Refused
        self.pid = int(answer)


class Prepared:
    """The process, which ends with the one that has made it; many threads may use it."""

    def __init__(self) -> None:
        self.address = b"\0fluxsched-tests-%d" % os.getpid()
        self._directory = tempfile.TemporaryDirectory(prefix="fluxsched-programs-")
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 # as long as the process lives
        self.programs = self._directory.name
        """A directory with a `fluxsched` that is forked, wherever it can be."""
        words = f"'{sys.executable}' -I -S '{HERE / 'command.py'}' {self.address[1:].decode()} '{PROGRAM}'"
        program = Path(self.programs, "fluxsched")
        program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        program.chmod(0o755)
        self._life, theirs = socket.socketpair()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, theirs:
            listener.bind(self.address)
            listener.listen(socket.SOMAXCONN)
            fds = listener.fileno(), theirs.fileno()
            words = [sys.executable, "-P", HERE / "process.py", *map(str, fds), self.programs]
            self._process = subprocess.Popen(
                words, pass_fds=fds, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._complaints,
                env={**os.environ, "LANG": "C.UTF-8", "PYTHONIOENCODING": "utf-8"},
            )  # fmt: skip

    def close(self) -> None:
        self._life.close()
        self._process.wait()
        self._complaints.close()
        self._directory.cleanup()

    def run(
        self, words: Sequence[str], cwd: str, environ: dict[str, str], timeout_s: float, *, is_alone: bool = False
    ) -> Ended:
        """`fluxsched WORDS`; if it `is_alone`, in a session of its own with stdout and stderr in one.

        Raises Refused, and TimeoutExpired, the command being killed.
        """
        with ExitStack() as stack:
            out, out_end = os.pipe()
            err, err_end = (out, out_end) if is_alone else os.pipe()
            texts = {out: b"", err: b""}
            for fd in texts:
                stack.callback(os.close, fd)
            nothing = os.open(os.devnull, os.O_RDWR)
            try:
                fds = {0: nothing, 1: out_end, 2: err_end}
                how = SESSION if is_alone else ""
                caller = self._ask(COMMAND, how, [PROGRAM, *words], fds, cwd=cwd, environ=environ)
            finally:
                for fd in {nothing, out_end, err_end}:
                    os.close(fd)
            stack.enter_context(caller)
            try:
                _read(texts, time.monotonic() + timeout_s)
            except TimeoutError as exc:  # without us it is killed
                raise subprocess.TimeoutExpired(words, timeout_s, texts[out], texts[err]) from exc
            status = int(caller.recv(ANSWER_BYTES))
        return Ended(status, texts[out].decode(), "" if is_alone else texts[err].decode(), caller.pid)

    def child(
        self, kind: str, words: Sequence[str], fds: dict[int, int], environ: dict[str, str], *, has_session: bool
    ) -> int:
        """See `MakeChild`."""
        prctl = ctypes.CDLL(None).prctl
        with ADOPTING:
            prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                how = f"{CHILD} {SESSION}" if has_session else CHILD
                with self._ask(kind, how, words, fds, cwd=os.getcwd(), environ=environ) as caller:
                    return caller.pid
            finally:
                prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def _ask(
        self, kind: str, how: str, words: Sequence[str], fds: dict[int, int], *, cwd: str, environ: dict[str, str]
    ) -> Caller:
        length, data = packed(kind, how, cwd, " ".join(map(str, fds)), [*words], environ)
        caller = Caller(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connect(caller)
            socket.send_fds(caller, [length], [*fds.values()])
            caller.sendall(data)
            caller.learn()
        except BaseException:
            caller.close()
            raise
        return caller

    def _connect(self, caller: Caller) -> None:
        try:
            caller.connect(self.address)
        except ConnectionRefusedError as fault:
            status = self._process.wait(TIMEOUT_S)
            self._complaints.seek(0)
            raise RuntimeError(f"the prepared process ended with {status}: {self._complaints.read()}") from fault


@cache
def prepared() -> Prepared:
    """That of this worker."""
    made = Prepared()
    atexit.register(made.close)
    return made


def with_forked_children() -> Iterator[None]:
    """A fixture: instances in this process have forked what they start, until the session ends."""
    from fluxsched.executor import proxy
    from fluxsched.services import module_processes

    with forking(prepared().child, module_processes, proxy), nested_forked(prepared().programs):
        yield


def _read(texts: dict[int, bytes], end_s: float) -> None:
    """All that comes, until all are closed."""
    left = list(texts)
    while left:
        ready, _, _ = select.select(left, [], [], max(end_s - time.monotonic(), 0.0))
        if not ready:
            raise TimeoutError
        for fd in ready:
            data = os.read(fd, 1 << 16)
            texts[fd] += data
            if not data:
                left.remove(fd)
