"""An instance in a process of its own, and what is watched of it: does it answer, how fast, what does it hold.

Law: the watching client is well-behaved and apart from those that send garbage.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fluxsched.client.blocking import Handle
from fluxsched.messaging.keys import read_secret

LATENCY_MAX_S = 1.0
"""A well-behaved client is answered within this time, whatever others send."""
RESIDENT_BYTES_MAX = 400 << 20
"""An instance with four targets takes 50 MiB; what garbage makes it hold comes on top."""
DESCRIPTORS_EXTRA_MAX = 24
"""Descriptors more than at first, once the senders have left: the watching client's, and some on their way out."""
LOG_BYTES_MAX = 4 << 20
"""What the log may grow by in the life of an instance."""
SETTLE_S = 5.0
"""Time that an instance has to take note of peers that have left."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
PROGRAM = Path(sys.executable).with_name("fluxsched")
STATS = {"name": "instance"}


class Unwell(AssertionError):
    """The instance does not do what it should while others misbehave."""


class Seen(NamedTuple):
    """How an instance was at a time."""

    latency_s: float
    resident_bytes: int
    descriptors: int
    log_bytes: int


class LiveInstance:
    """One instance, from its start to its end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        places = ("HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME")
        self._environment = {**os.environ, **dict.fromkeys(places, str(directory))}
        keys = directory / "fluxsched"
        self._run("keygen", "--server")
        self._run("keygen", "guest", "--directory", str(keys))
        self.guest_key = read_secret(keys / "guest.key")
        (keys / "authorized-keys").mkdir()
        (keys / "guest.pub").rename(keys / "authorized-keys" / "guest.pub")
        words = ("start", "--fake", "4x4", "--scheduler", "none", "--bind", "tcp://127.0.0.1:*", "--daemon")
        self.uri = self._run(*words).strip()
        self._handle = Handle(self.uri)
        info = self._handle.rpc("instance.info")
        self.pid = int(info["pid"])
        self.tcp_uri = next(endpoint for endpoint in info["endpoints"] if endpoint.startswith("tcp://"))
        self._first = self._look(0.0)

    def _run(self, *words: str) -> str:
        done = subprocess.run(
            [PROGRAM, *words], env=self._environment, capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout

    @property
    def ipc_path(self) -> str:
        """The ZeroMQ socket."""
        return self.uri.removeprefix("ipc://")

    @property
    def local_path(self) -> str:
        """The local socket."""
        return str(Path(self.ipc_path).with_name("local-0"))

    def check(self) -> Seen:
        """Ask it something, and look at what it holds. Raises Unwell."""
        try:
            began_s = time.monotonic()
            self._handle.rpc("instance.info", timeout_s=10 * LATENCY_MAX_S)
            latency_s = time.monotonic() - began_s
            faults = self._handle.rpc("module.stats", STATS)["faults"]
        except Exception as fault:
            raise Unwell(f"it does not answer: {fault!r}\n{self.log()[-3000:]}") from fault
        seen = self._look(latency_s)
        if faults:
            raise Unwell(f"{faults} unexpected exceptions:\n{self.log()[-6000:]}")
        if latency_s > LATENCY_MAX_S:
            raise Unwell(f"it answered after {latency_s:.2f} s")
        if seen.resident_bytes > RESIDENT_BYTES_MAX:
            raise Unwell(f"it holds {seen.resident_bytes >> 20} MiB")
        if seen.log_bytes - self._first.log_bytes > LOG_BYTES_MAX:
            raise Unwell(f"its log has {seen.log_bytes} bytes")
        return seen

    def check_left(self) -> None:
        """Once all senders have left: no descriptor is kept for them. Raises Unwell."""
        until_s = time.monotonic() + SETTLE_S
        while (seen := self.check()).descriptors > self._first.descriptors + DESCRIPTORS_EXTRA_MAX:
            if time.monotonic() > until_s:
                raise Unwell(f"{seen.descriptors} descriptors, {self._first.descriptors} at first")
            time.sleep(0.05)

    def log(self) -> str:
        """The log so far."""
        return "".join(path.read_text(errors="replace") for path in self._logs())

    def _logs(self) -> list[Path]:
        return [path for path in self._directory.rglob("*") if path.is_file() and "log" in path.name]

    def _look(self, latency_s: float) -> Seen:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        descriptors = len(os.listdir(f"/proc/{self.pid}/fd"))
        return Seen(latency_s, pages * PAGE_BYTES, descriptors, sum(path.stat().st_size for path in self._logs()))

    def end(self) -> None:
        """Stop it; killed if it does not."""
        self._handle.close()
        try:
            os.kill(self.pid, signal.SIGTERM)
            for _ in range(100):
                os.kill(self.pid, 0)
                time.sleep(0.05)
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


@contextmanager
def live_instance() -> Iterator[LiveInstance]:
    """An instance in a directory of its own, which is removed with it."""
    directory = Path(tempfile.mkdtemp(prefix="fx-"))  # short: a socket's path has 107 bytes
    try:
        instance = LiveInstance(directory)
        try:
            yield instance
        finally:
            instance.end()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
