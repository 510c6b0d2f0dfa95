"""`fluxsched top` in a pseudo-terminal, over an instance under load: its share of a core, and how long keys take.

    python benchmarks/top.py [--fake 16384x64] [--rate 1000] [--seconds 20] [--sizes 80x24,300x100]

A key is written to the terminal, and it is answered when what it shows has arrived: `?` opens the help, `q` closes it.
CPU is that of the process alone, from /proc; the other load of the machine counts in the latency only.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import multiprocessing
import os
import pty
import select
import signal
import statistics
import struct
import sys
import termios
import time

from jobs import Jobspecs, _cpu_s  # the script beside this one
from live import Steady

from fluxsched.instance import launch

SETTLED_S = 4.0
"""After the start, until it is measured."""
KEY_EVERY_S = 0.25
ANSWER_LIMIT_S = 5.0
OPENED, CLOSED = b"Drain targets", b"F3"


class Terminal:
    """The program in a terminal of this size."""

    def __init__(self, width: int, height: int, uri: str) -> None:
        self.pid, self._fd = pty.fork()
        if not self.pid:
            os.environ["TERM"] = "xterm-256color"
            os.execv(sys.executable, [sys.executable, "-m", "fluxsched", "top", "--uri", uri])
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.received = 0

    def read_for(self, duration_s: float) -> None:
        """Take what it writes."""
        until_s = time.monotonic() + duration_s
        while (left_s := until_s - time.monotonic()) > 0:
            if select.select([self._fd], [], [], left_s)[0]:
                self.received += len(os.read(self._fd, 1 << 16))

    def answer_s(self, key: bytes, shown: bytes) -> float:
        """How long it takes from a key until this is on the terminal (seconds)."""
        begun_s = time.monotonic()
        os.write(self._fd, key)
        seen = b""
        while shown not in seen:
            if not select.select([self._fd], [], [], ANSWER_LIMIT_S)[0]:
                raise SystemExit(f"no answer to {key!r} within {ANSWER_LIMIT_S} s")
            piece = os.read(self._fd, 1 << 16)
            self.received += len(piece)
            seen = seen[-100:] + piece
        return time.monotonic() - begun_s

    def close(self) -> None:
        """End it."""
        os.kill(self.pid, signal.SIGTERM)
        os.close(self._fd)
        os.waitpid(self.pid, 0)


def load(uri: str, rate: float, duration_s: float, run_s: float) -> None:
    """Submit jobs at this rate."""
    asyncio.run(Steady(uri, rate, Jobspecs(False, run_s)).run(duration_s))


def measure(terminal: Terminal, seconds: float) -> str:
    """Share of a core while it is only looked at, then the latency of keys."""
    terminal.read_for(SETTLED_S)
    before_s, begun_s, before = _cpu_s(terminal.pid), time.monotonic(), terminal.received
    terminal.read_for(seconds)
    took_s = time.monotonic() - begun_s
    share = (_cpu_s(terminal.pid) - before_s) / took_s
    written = (terminal.received - before) / took_s / 1024
    latencies_s = []
    for _ in range(max(5, int(seconds / 2 / KEY_EVERY_S / 2))):
        for key, shown in ((b"?", OPENED), (b"q", CLOSED)):
            latencies_s.append(terminal.answer_s(key, shown))
            terminal.read_for(KEY_EVERY_S)
    latencies_s.sort()
    median_ms, p95_ms = statistics.median(latencies_s) * 1e3, latencies_s[int(len(latencies_s) * 0.95)] * 1e3
    return f"{share:.1%} of a core, {written:.0f} KiB/s; keys: median {median_ms:.0f} ms, p95 {p95_ms:.0f} ms"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fake", default="16384x64")
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--run", type=float, default=8.0, help="seconds that a job runs")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--sizes", default="80x24,300x100")
    options = parser.parse_args()
    uri = launch.start_daemon(launch.StartOptions(fake=options.fake, schedulers=("easy",)))
    sizes = [tuple(map(int, size.split("x"))) for size in options.sizes.split(",")]
    each_s = SETTLED_S + 2 * options.seconds + 5.0
    busy = multiprocessing.Process(target=load, args=(uri, options.rate, each_s * len(sizes) + 5.0, options.run))
    busy.start()
    try:
        for width, height in sizes:
            terminal = Terminal(width, height, uri)
            try:
                print(f"{options.fake} at {options.rate:g} jobs/s, {width}x{height}: "
                      f"{measure(terminal, options.seconds)}", flush=True)  # fmt: skip
            finally:
                terminal.close()
    finally:
        busy.kill()
        busy.join()
        launch.stop(uri)
    return 0


if __name__ == "__main__":
    sys.exit(main())
