"""An instance as a process of its own: started, killed, started again on the same state directory."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = str(Path(sys.executable).with_name("fluxsched"))
READY_S = 120.0
"""How long a start may take (seconds)."""
POLL_S = 0.002


class StartFailed(Exception):
    """The process ended before it was ready; what it wrote to stderr."""


class Program:
    """`fluxsched start --stays` with its state in a directory; says itself when it is ready (sd_notify)."""

    def __init__(self, statedir: Path, *options: str) -> None:
        self.statedir = statedir
        self.runtime = Path(tempfile.mkdtemp(prefix="fx-"))  # short: a socket's path has 107 bytes
        self._options = options
        self.uri = ""
        self.process: subprocess.Popen[bytes] | None = None
        self._log = self.runtime / "stderr"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def spawn(self, *options: str) -> None:
        """Begin a start."""
        self._told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        address = self.runtime / "notify"
        address.unlink(missing_ok=True)
        self._told.bind(str(address))
        self._told.setblocking(False)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FLUX")}
        environment = kept | {"XDG_RUNTIME_DIR": str(self.runtime), "XDG_STATE_HOME": str(self.runtime / "logs")}
        words = [PROGRAM, "start", "--stays", "--statedir", str(self.statedir), *self._options, *options]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.runtime,
                env=environment | {"NOTIFY_SOCKET": str(address)}, start_new_session=True,
            )  # fmt: skip

    async def ready(self) -> float:
        """Wait until it is ready; for how long (seconds). Raises StartFailed."""
        assert self.process is not None
        begun_s = time.monotonic()
        while True:
            try:
                said = self._told.recv(4096).decode()
            except BlockingIOError:
                if self.process.poll() is not None or time.monotonic() > begun_s + READY_S:
                    raise StartFailed(self._log.read_text()[-2000:]) from None
                await asyncio.sleep(POLL_S)
                continue
            if "READY=1" in said:
                self.uri = next(word for word in said.split() if word.startswith("ipc://"))
                return time.monotonic() - begun_s

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self._told.close()

    def stop(self) -> int:
        """A clean end; the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(READY_S)
        finally:
            self._told.close()


def resident_mib(pid: int) -> float:
    """Resident memory of a process; 0 if there is none."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / (1 << 20)
    except (OSError, IndexError):
        return 0.0


def children(pid: int) -> dict[int, str]:
    """Processes below a process, each with its command line."""
    found: dict[int, str] = {}
    todo = [pid]
    table: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        table.setdefault(int(fields[1]), []).append(int(path.parent.name))
    while todo:
        for child in table.get(todo.pop(), ()):
            todo.append(child)
            try:
                found[child] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
    return found


def keepers(statedir: Path) -> list[int]:
    """The processes that keep the tasks of an instance with this state directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        is_keeper = any(word.endswith("keeper_main.py") for word in words)
        if is_keeper and any(word.startswith(str(statedir)) for word in words):
            found.append(int(path.parent.name))
    return found
