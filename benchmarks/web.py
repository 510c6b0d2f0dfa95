"""What the page costs: ten viewers of machine and jobs, while jobs pass at a steady rate.

    python benchmarks/web.py [--rate 1000] [--viewers 10] [--rounds 4] [--seconds 8] [--fake 16384x64]

Rounds without viewers (the page server is there all the time) and with them take turns, since the machine may be
shared. Printed are the share of a core of the page server, and the CPU of the instance a job in both; what it loses of
its jobs/s follows from that. Then targets are drained: each time is from the command to the event at a viewer.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO
from urllib.parse import urlsplit

from jobs import Jobspecs, Usage, percentiles  # the scripts beside this one
from live import Steady

import fluxsched
from fluxsched.instance import launch

RUN_S = 5.0
DRAINS = 30
VIEWS = ("machine", "jobs")
READER = """
import select, socket, sys
host, port, cookie, *views = sys.argv[1:]
sockets = []
for view in views:
    one = socket.create_connection((host, int(port)))
    one.sendall(f"GET /events?view={view} HTTP/1.1\\r\\nHost: {host}:{port}\\r\\nCookie: {cookie}\\r\\n\\r\\n".encode())
    sockets.append(one)
count = 0
try:
    while True:
        for one in select.select(sockets, [], [])[0]:
            data = one.recv(1 << 20)
            count += data.count(b"event: ")
except KeyboardInterrupt:
    print(count)
"""
"""A process that reads event streams, and counts events until it is interrupted."""


class PageUnderLoad:
    """`fluxsched web`, and its viewers."""

    def __init__(self, uri: str) -> None:
        words = [sys.executable, "-m", "fluxsched", "web", "--uri", uri, "--bind", "127.0.0.1:0"]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        address = urlsplit(self.process.stdout.readline().strip())
        self.host, self.port = str(address.hostname), int(address.port or 0)
        asked = http.client.HTTPConnection(self.host, self.port)
        asked.request("GET", f"/?{address.query}")
        self.cookie = str(asked.getresponse().getheader("set-cookie")).partition(";")[0]
        asked.close()

    @contextmanager
    def viewers(self, count: int) -> Iterator[list[int]]:
        """That many viewers meanwhile; then the events that they got."""
        views = [VIEWS[number % len(VIEWS)] for number in range(count)]
        words = [sys.executable, "-c", READER, self.host, str(self.port), self.cookie, *views]
        events: list[int] = []
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as reader:
            time.sleep(1.0)  # the wholes are no part of it
            yield events
            reader.send_signal(2)
            events.append(int(reader.communicate()[0]))

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def measure_load(options: argparse.Namespace, uri: str, page: PageUnderLoad) -> None:
    usage = Usage(uri)
    usage.add("page", page.process.pid)
    steady = Steady(uri, options.rate, Jobspecs(False, RUN_S))
    asyncio.run(steady.run(2 * RUN_S))
    steady.took_s()
    costs: dict[int, list[float]] = {0: [], options.viewers: []}
    shares: list[float] = []
    for _ in range(options.rounds):
        for count, found in costs.items():
            with page.viewers(count) as events:
                before, begin_s = usage.cpu_s(), time.perf_counter()
                asyncio.run(steady.run(options.seconds))
                elapsed_s, jobs = time.perf_counter() - begin_s, len(steady.took_s())
                used = usage.since(before, 1.0)
            found.append(1e3 * used["instance"] / jobs)
            share = 100 * used["page"] / elapsed_s
            if count:
                shares.append(share)
            events_per_s = events[0] / elapsed_s
            print(f"{count} viewers: instance {found[-1]:.3f} ms a job, page {share:.1f} % of a core, "
                  f"{events_per_s:.0f} events/s", flush=True)  # fmt: skip
    without, with_viewers = (statistics.median(found) for found in costs.values())
    lost, share = 100 * (1 - without / with_viewers), statistics.median(shares)
    print(f"{options.viewers} viewers at {options.rate:g} jobs/s on {options.fake}: page {share:.1f} % of a core; "
          f"instance {without:.3f} -> {with_viewers:.3f} ms CPU a job, so it loses {lost:.1f} % of its jobs/s; "
          f"{usage.resident()}")  # fmt: skip


def measure_drains(uri: str, page: PageUnderLoad) -> None:
    took_s = []
    head = f"GET /events?view=machine HTTP/1.1\r\nHost: {page.host}:{page.port}\r\nCookie: {page.cookie}\r\n\r\n"
    with fluxsched.connect_sync(uri) as handle, socket.create_connection((page.host, page.port)) as viewer:
        viewer.sendall(head.encode())
        stream = viewer.makefile("rb")
        _until(stream, b"event: whole")
        for rank in range(DRAINS):
            begin_s = time.perf_counter()
            handle.drain(str(rank), f"benchmark {rank}")
            _until(stream, f'benchmark {rank}"'.encode())
            took_s.append(time.perf_counter() - begin_s)
    print(f"drain to event at a viewer: {percentiles(took_s)}")


def _until(stream: IO[bytes], wanted: bytes) -> None:
    while wanted not in stream.readline():
        pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--viewers", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--fake", default="16384x64")
    options = parser.parse_args()
    uri = launch.start_daemon(launch.StartOptions(fake=options.fake, schedulers=("easy",)))
    try:
        page = PageUnderLoad(uri)
        try:
            measure_load(options, uri, page)
            measure_drains(uri, page)
        finally:
            page.close()
    finally:
        launch.stop(uri)
    return 0


if __name__ == "__main__":
    sys.exit(main())
