"""A process that has imported what instances and schedulers import, and forks for each of them: a start is mostly the
import of some five hundred modules, the same ones hundreds of times.

Law: what is forked differs from the real command in its command line alone: directory, environment, umask and output
are the caller's, it is in a session of its own if it is to be, and it ends as a program does, by its own `sys.exit`.
A scheduler is a child of the caller, as one that it started itself. Nothing here may start a thread.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

PROGRAM = str(os.path.join(os.path.dirname(sys.executable), "fluxsched"))
SCHEDULER = "fluxsched.runtime.scheduler_process.main"
REQUEST_BYTES_MAX = 1 << 20
PR_SET_CHILD_SUBREAPER = 36
"""prctl(2): orphans below this process become its children."""
LOOK_S = 0.001


class Prepared:
    """The caller's side."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES_MAX)
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, env={**os.environ, "LANG": "C.UTF-8", "PYTHONIOENCODING": "utf-8"},
            )  # fmt: skip

    def run(self, words: list[str], cwd: str, environ: dict[str, str], timeout_s: float) -> tuple[int, str, str]:
        """`fluxsched WORDS`: status, stdout and stderr. Raises TimeoutExpired, the command being killed."""
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        try:
            pid = self._fork("command", [PROGRAM, *words], cwd, environ, [out_end, err_end])
        finally:
            os.close(out_end)
            os.close(err_end)
        texts: dict[int, bytes] = {out: b"", err: b""}
        try:
            _read(texts, time.monotonic() + timeout_s)
        except TimeoutError as exc:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(words, timeout_s, texts[out], texts[err]) from exc
        finally:
            status = int(self._socket.recv(100))
            os.close(out)
            os.close(err)
        return status, texts[out].decode(), texts[err].decode()

    def scheduler(self, words: list[str], output: int) -> int:
        """The process id of a child of ours that is the scheduler with these words."""
        prctl = ctypes.CDLL(None).prctl
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            return self._fork("scheduler", [SCHEDULER, *words], os.getcwd(), dict(os.environ), [output, output])
        finally:
            prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def _fork(self, kind: str, argv: list[str], cwd: str, environ: dict[str, str], fds: list[int]) -> int:
        mask = os.umask(0)
        os.umask(mask)
        request = {"kind": kind, "argv": argv, "cwd": cwd, "environ": environ, "umask": mask}
        socket.send_fds(self._socket, [json.dumps(request).encode()], fds)
        return int(self._socket.recv(100))

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@cache
def prepared() -> Prepared:
    """That of this worker."""
    made = Prepared()
    atexit.register(made.close)
    return made


def with_forked_schedulers() -> Iterator[None]:
    """A fixture: instances in this process fork their schedulers from the prepared one, until the session ends."""
    from fluxsched.runtime.services.modules import starter

    ours = os.getpid()

    def popen(command: Sequence[str], *, stdout: Any, **more: Any) -> Any:
        if command[2:4] == ["-m", SCHEDULER] and os.getpid() == ours:  # not in a daemon that a test forks
            return ForkedScheduler(prepared().scheduler([*command[4:]], stdout.fileno()))
        return subprocess.Popen(command, stdout=stdout, **more)

    with patch.object(starter, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": popen})):
        yield


class ForkedScheduler:
    """What a starter needs of a Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self._status is None:
            watch = os.pidfd_open(self.pid)
            try:
                if timeout is not None and not select.select([watch], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(SCHEDULER, timeout)
            finally:
                os.close(watch)
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, signum: int) -> None:
        if self._status is None:  # until it is waited for, the number is its own
            os.kill(self.pid, signum)


def _read(texts: dict[int, bytes], end_s: float) -> None:
    """All that comes, until both are closed."""
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


def serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork for each request, and tell how a command ended.

    In what is forked: the request; None once there are no more.
    """
    while True:
        data, fds, _, _ = socket.recv_fds(connection, REQUEST_BYTES_MAX, 2)
        if not data:
            return None
        request: dict[str, Any] = json.loads(data)
        pid = os.fork()
        if pid == 0:
            for number, fd in enumerate(fds, 1):
                os.dup2(fd, number)
        for fd in fds:
            os.close(fd)
        if pid == 0:
            if request["kind"] == "scheduler":
                _become_orphan(connection)
            connection.close()
            return request
        if request["kind"] == "command":
            connection.send(str(pid).encode())
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if request["kind"] == "command":
            connection.send(str(status).encode())


def _become_orphan(connection: socket.socket) -> None:
    """Go on as a child of the caller, which takes orphans for the moment, and tell it who that is."""
    before = os.getpid()
    if os.fork() != 0:
        os._exit(0)
    while os.getppid() == before:
        time.sleep(LOOK_S)
    os.setsid()
    connection.send(str(os.getpid()).encode())


def main() -> int:
    import fluxsched.cli.instance.commands
    import fluxsched.runtime.instance.launch  # noqa: F401
    from fluxsched.cli.main import main as command
    from fluxsched.runtime.scheduler_process.main import main as scheduler

    gc.freeze()  # else each collection writes to all pages, which would be copied
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    if request is None:
        return 0
    gc.unfreeze()
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environ"])
    time.tzset()
    sys.argv = list(request["argv"])
    sys.orig_argv = [sys.executable, *sys.argv]
    status: int = scheduler() if request["kind"] == "scheduler" else command()
    return status


if __name__ == "__main__":
    sys.exit(main())
