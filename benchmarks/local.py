"""`flux resource status` at our socket beside a real Flux with as many fake nodes: the same command, two instances.

    python benchmarks/local.py [--nodes 16384] [--cores 64] [--runs 15] [--command 'resource status']

Needs flux-core 0.88 or later on PATH. Runs alternate; medians of wall time and of the command's own CPU time, and the
bare `resource.status` and `resource.sched-status` that it asks, over one connection, with the CPU that they take of the
instance. Milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fluxsched.client.blocking import Handle
from fluxsched.instance import launch

RPCS = ("resource.status", "resource.sched-status")
TICKS = os.sysconf("SC_CLK_TCK")
HEADER = struct.pack(">BBBBIIII", 0x8E, 1, 1, 0x09, 0xFFFFFFFF, 0, 0, 1)


@contextmanager
def real_flux(flux: str, nodes: int, cores: int) -> Iterator[tuple[str, int]]:
    """A Flux of one broker with made-up nodes: its URI and the broker's process."""
    fake = [f"--conf=fake-resources.nnodes={nodes}", f"--conf=fake-resources.cores-per-node={cores}"]
    ready = "flux resource list >&2 && echo $FLUX_URI $(flux getattr broker.pid) && exec cat"
    command = [flux, "start", "-s1", *fake, "sh", "-c", ready]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        uri, pid = process.stdout.readline().split()
        yield uri, int(pid)
        process.stdin.close()


@contextmanager
def ours(nodes: int, cores: int) -> Iterator[tuple[str, int]]:
    """An instance of ours with as many."""
    uri = launch.start_daemon(launch.StartOptions(fake=f"{nodes}x{cores}"))
    with Handle(uri) as handle:
        local = handle.rpc("attr.get", {"name": "local-uri"})["value"]
        pid = handle.rpc("instance.info")["pid"]
    yield local, pid
    launch.stop(uri)


def run(command: list[str], uri: str) -> tuple[float, float, str]:
    """Wall and CPU time of a command, and what it prints."""
    before, begin_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, env={**os.environ, "FLUX_URI": uri}, capture_output=True, text=True, check=True)
    wall_s = time.perf_counter() - begin_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def cpu_s(pid: int) -> float:
    """CPU time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def ask(uri: str, topic: str, count: int) -> list[float]:
    """Seconds that each of `count` calls takes, one after the other, on a connection made by hand."""
    taken = []
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(uri.removeprefix("local://"))
        stream = client.makefile("rb")
        assert stream.read(1) == b"\0"
        body = b"\0" + bytes([len(topic)]) + topic.encode() + bytes([len(HEADER)]) + HEADER
        for _ in range(count):
            begin_s = time.perf_counter()
            client.sendall(bytes.fromhex("1200eeff") + struct.pack(">I", len(body)) + body)
            stream.read(int.from_bytes(stream.read(8)[4:], "big"))
            taken.append(time.perf_counter() - begin_s)
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=16_384)
    parser.add_argument("--cores", type=int, default=64)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--command", default="resource status")
    options = parser.parse_args()
    flux = shutil.which("flux")
    if flux is None:
        print("no flux on PATH: put flux-core 0.88 or later there", file=sys.stderr)
        return 1
    with ExitStack() as stack:
        sides = {
            "Flux": stack.enter_context(real_flux(flux, options.nodes, options.cores)),
            "fluxsched": stack.enter_context(ours(options.nodes, options.cores)),
        }
        command = [flux, *options.command.split()]
        said = {name: run(command, uri)[2] for name, (uri, _) in sides.items()}
        print("printed: " + ("the same" if len(set(said.values())) == 1 else json.dumps(said)))
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        for number in range(options.runs):
            for name in sorted(sides, reverse=bool(number % 2)):  # who comes second has the worse cache
                found[name].append(run(command, sides[name][0])[:2])
        for name, figures in found.items():
            wall, cpu = (statistics.median(column) * 1e3 for column in zip(*figures, strict=True))
            print(f"flux {options.command:22} {name:10} wall {wall:7.1f} ms   cpu of the command {cpu:7.1f} ms")
        for topic in RPCS:
            for name, (uri, pid) in sides.items():
                before_s = cpu_s(pid)
                taken = statistics.median(ask(uri, topic, options.calls)) * 1e3
                spent = (cpu_s(pid) - before_s) / options.calls * 1e3
                print(f"{topic:27} {name:10} wall {taken:7.3f} ms   cpu of the instance {spent:7.3f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
