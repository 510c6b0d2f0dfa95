"""A process that has imported what `fluxsched start` imports, and forks for each command: half of what a start costs
is the import of some five hundred modules, the same ones a hundred times.

Law: what is forked differs from the console script in its command line alone: directory, environment, umask and
output are the caller's, and it ends as a program does, by its own `sys.exit`. Nothing here may start a thread.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any

REQUEST_BYTES_MAX = 1 << 20


class Prepared:
    """The caller's side."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES_MAX)
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, env={**os.environ, "LANG": "C.UTF-8", "PYTHONIOENCODING": "utf-8"},
            )  # fmt: skip

    def run(self, words: list[str], cwd: str, environ: dict[str, str], timeout_s: float) -> tuple[int, str, str]:
        """Status, stdout and stderr. Raises TimeoutExpired, the command being killed."""
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        mask = os.umask(0)
        os.umask(mask)
        request = {"argv": [self._program, *words], "cwd": cwd, "environ": environ, "umask": mask}
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], [out_end, err_end])
            pid = int(self._socket.recv(100))
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

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


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
    """Fork for each request and tell how it ended. In what is forked: the request; None once there are no more."""
    while True:
        data, fds, _, _ = socket.recv_fds(connection, REQUEST_BYTES_MAX, 2)
        if not data:
            return None
        pid = os.fork()
        if pid == 0:
            for number, fd in enumerate(fds, 1):
                os.dup2(fd, number)
        for fd in fds:
            os.close(fd)
        if pid == 0:
            connection.close()
            found: dict[str, Any] = json.loads(data)
            return found
        connection.send(str(pid).encode())
        connection.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def main() -> int:
    import fluxsched.cli.instance.commands
    import fluxsched.runtime.instance.launch  # noqa: F401
    from fluxsched.cli.main import main as command

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
    status: int = command()
    return status


if __name__ == "__main__":
    sys.exit(main())
