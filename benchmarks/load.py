"""200 clients at once, with bad ones among them: what is answered how fast, and what memory it takes.

    python benchmarks/load.py [--minutes 0.5] [--clients 200] [--fake 256x16]

Clients acquire a group each, follow the ends of all jobs, submit one job after the other, drain and undrain targets,
ask for lists. Beside them one asks for everything and reads nothing, one sends garbage, and one is killed (SIGKILL)
every second. Prints latencies of each kind as the clients see them, and memory minute by minute; fails if others notice
the bad ones: a request that is not answered, a group that stays acquired, a fault in the instance.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio
from outside.jobspecs import passing
from outside.program import Program, children, resident_mib
from outside.wire import STREAMING, Failure, Lost, Wire, frames

PARTS = {"acquire": 0.3, "watch": 0.2, "submit": 0.3, "drain": 0.15, "list": 0.05}
"""Of the clients, by what they do."""
ANSWER_S = 30.0
"""What is not answered by then is a failure."""
RUN_S = 0.001
WATCHED = ["clean"]
LISTED = 20
SAMPLES = 12
"""Memory is printed so many times."""
DESCRIPTORS = 4096


class Site:
    """The clients, and what they have seen."""

    def __init__(self, uri: str, clients: int, chance: random.Random) -> None:
        self._uri = uri
        self._chance = chance
        self._context = zmq.Context()
        self._context.max_sockets = 2 * clients + 100
        self.took_s: dict[str, list[float]] = defaultdict(list)
        self.told = 0
        self.bad: list[str] = []
        self._drained_s: dict[str, float] = {}
        self._wires: list[Wire] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.counts = {part: max(1, round(share * clients)) for part, share in PARTS.items()}

    def wire(self) -> Wire:
        self._wires.append(Wire(self._uri, self._context))
        return self._wires[-1]

    async def begin(self) -> None:
        """Give each acquirer a group of one target, and have all begin."""
        wire = self.wire()
        for at in range(self.counts["acquire"]):
            await wire.call("resource.assign", {"targets": str(at), "group": f"g{at}"})
        for part, count in self.counts.items():
            work = getattr(self, f"_{part}")
            self._tasks += [asyncio.ensure_future(self._role(work, at)) for at in range(count)]

    async def _role(self, work: Any, at: int) -> None:
        try:
            await work(self.wire(), at)
        except (Failure, TimeoutError) as fault:
            self.bad.append(f"{work.__name__.strip('_')} {at}: {type(fault).__name__} {fault}")

    async def _timed(self, kind: str, wire: Wire, topic: str, payload: Any) -> Any:
        begun_s = time.perf_counter()
        async with asyncio.timeout(ANSWER_S):
            answer = await wire.call(topic, payload)
        self.took_s[kind].append(time.perf_counter() - begun_s)
        return answer

    async def _acquire(self, wire: Wire, at: int) -> None:
        async for message in wire.stream("resource.acquire", {"group": f"g{at}"}):
            drained_s = self._drained_s.pop(str(at), None)
            if message["type"] == "offline" and drained_s is not None:
                self.took_s["offline seen"].append(time.perf_counter() - drained_s)

    async def _watch(self, wire: Wire, at: int) -> None:
        async for message in wire.stream("job-manager.watch", {"names": WATCHED}):
            self.told += len(message["events"])

    async def _submit(self, wire: Wire, at: int) -> None:
        while True:
            await self._timed("submit", wire, "job-manager.submit", {"jobspec": passing(RUN_S)})

    async def _drain(self, wire: Wire, at: int) -> None:
        while True:
            target = str(at)
            self._drained_s[target] = time.perf_counter()
            await self._timed("drain", wire, "resource.drain", {"targets": target, "reason": "load"})
            await asyncio.sleep(self._chance.uniform(0, 0.2))
            await self._timed("undrain", wire, "resource.undrain", {"targets": target})
            await asyncio.sleep(self._chance.uniform(0, 0.2))

    async def _list(self, wire: Wire, at: int) -> None:
        while True:
            await self._timed("list", wire, "job-manager.list", {"max_entries": LISTED})
            await asyncio.sleep(self._chance.uniform(0, 0.1))

    async def end(self) -> None:
        """All leave."""
        for task in self._tasks:
            task.cancel()
        found = await asyncio.gather(*self._tasks, return_exceptions=True)
        self.bad += [repr(one) for one in found if isinstance(one, Exception) and not isinstance(one, Lost)]
        for wire in self._wires:
            wire.close()
        self._context.term()


# ---- the bad ones


async def reads_nothing(uri: str) -> None:
    """Asks for all events, and for much else, and reads none of it."""
    context = zmq.asyncio.Context()
    peer = context.socket(zmq.DEALER)
    peer.linger, peer.rcvhwm = 0, 1
    peer.connect(uri)
    try:
        for tag in range(1, 1 << 30):
            topic, flags = ("job-manager.watch", STREAMING) if tag % 100 == 1 else ("resource.status", 0)
            with contextlib.suppress(zmq.Again):
                await peer.send_multipart(frames(topic, {}, tag, flags), zmq.NOBLOCK)
            await asyncio.sleep(0.005)
    finally:
        peer.close(0)
        context.term()


async def sends_garbage(uri: str, chance: random.Random) -> None:
    """Bytes that are no ZMTP, and messages that are none of ours."""
    context = zmq.asyncio.Context()
    peer = context.socket(zmq.DEALER)
    peer.linger = 0
    peer.connect(uri)
    try:
        while True:
            parts = [chance.randbytes(chance.randrange(60)) for _ in range(chance.randint(1, 6))]
            if chance.random() < 0.5:
                parts = frames("resource.drain", chance.random(), 7)[:-1] + parts[:1]
            await peer.send_multipart(parts)
            with socket.socket(socket.AF_UNIX) as raw, contextlib.suppress(OSError):
                raw.setblocking(False)
                raw.connect(uri.removeprefix("ipc://"))
                raw.send(chance.randbytes(chance.randrange(200)))
            with contextlib.suppress(zmq.Again):
                while True:
                    await peer.recv_multipart(zmq.NOBLOCK)
            await asyncio.sleep(0.02)
    finally:
        peer.close(0)
        context.term()


KILLED = """
import asyncio, sys
sys.path.insert(0, sys.argv[2])
from outside.jobspecs import passing
from outside.wire import Wire

async def main():
    wire = Wire(sys.argv[1])
    async def acquire():
        async for _ in wire.stream("resource.acquire", {"group": "killed"}): pass
    async def watch():
        async for _ in wire.stream("job-manager.watch", {}): pass
    beside = [asyncio.ensure_future(one()) for one in (acquire, watch)]
    while True:
        await wire.call("job-manager.submit", {"jobspec": passing(0.5)})

asyncio.run(main())
"""


async def are_killed(uri: str) -> None:
    """A process that does all at once, every second, each killed before the next."""
    while True:
        words = [sys.executable, "-c", KILLED, uri, str(Path(__file__).parent)]
        process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        try:
            await asyncio.sleep(1.0)
        finally:
            process.kill()
            process.wait()


# ---- what is measured


def percentiles(took_s: list[float]) -> str:
    """Of delays, for people."""
    took_s = sorted(took_s)
    shown = [f"{name} {took_s[int(part * (len(took_s) - 1))] * 1e3:.1f}" for name, part in
             (("p50", 0.5), ("p99", 0.99), ("worst", 1.0))]  # fmt: skip
    return f"{', '.join(shown)} ms of {len(took_s)}"


def memory(pid: int) -> str:
    """Of the instance and what it has started."""
    others = [f"{resident_mib(child):.0f}" for child in children(pid)]
    return f"instance {resident_mib(pid):.0f} MiB, others {' '.join(others)} MiB"


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def load(options: argparse.Namespace, program: Program) -> list[str]:
    """What went wrong, in words."""
    program.spawn("--fake", options.fake, "--scheduler", options.scheduler)
    await program.ready()
    chance = random.Random(options.seed)
    look = Wire(program.uri)
    await look.call("resource.assign", {"targets": str(int(options.fake.partition("x")[0]) - 1), "group": "killed"})
    site = Site(program.uri, options.clients, chance)
    await site.begin()
    bad = [reads_nothing(program.uri), sends_garbage(program.uri, chance), are_killed(program.uri)]
    beside = [asyncio.ensure_future(one) for one in bad]
    begun_s = time.monotonic()
    print(f"{sum(site.counts.values())} clients: {site.counts}; {memory(program.pid)}", flush=True)
    for at in range(SAMPLES):
        await asyncio.sleep(max(0.0, begun_s + options.minutes * 60 * (at + 1) / SAMPLES - time.monotonic()))
        submits = len(site.took_s["submit"])
        print(f"{time.monotonic() - begun_s:5.0f} s: {submits} submits, {site.told} ends told; {memory(program.pid)}",
              flush=True)  # fmt: skip
        for one in beside:
            if one.done():
                await one
    elapsed_s = time.monotonic() - begun_s
    for one in beside:
        one.cancel()
    await asyncio.gather(*beside, return_exceptions=True)
    await site.end()
    for kind, took_s in site.took_s.items():
        print(f"{kind}: {len(took_s) / elapsed_s:.0f}/s, {percentiles(took_s)}")
    found = await judge(look)
    shares = cpu_s(program.pid) / elapsed_s, time.process_time() / elapsed_s
    print("CPU: instance {:.0%}, clients {:.0%} of a core".format(*shares))
    look.close()
    if program.stop() != 0:
        found.append("the instance did not end with status 0")
    return site.bad + found


async def judge(look: Wire) -> list[str]:
    """What the clients have left behind once they are gone."""
    end_s = time.monotonic() + ANSWER_S
    while True:
        found = []
        groups = (await look.call("resource.groups"))["groups"]
        if held := [one["name"] for one in groups if one["acquired"] and one["name"] != "default"]:
            found.append(f"groups are still acquired: {held}")
        stats = await look.call("instance.stats-get")
        if stats["peers"] > 2:
            found.append(f"{stats['peers']} peers are still known: there are two, the scheduler and this one")
        if not found or time.monotonic() > end_s:
            break
        await asyncio.sleep(0.2)
    if stats["faults"]:
        found.append(f"the instance had {stats['faults']} faults")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=0.5)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--fake", default="256x16")
    parser.add_argument("--scheduler", default="easy")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    directory = Path(tempfile.mkdtemp(prefix="fx-load-"))
    program = Program(directory / "state")
    try:
        found = asyncio.run(load(options, program))
    finally:
        if program.process is not None and program.process.poll() is None:
            for pid in [*children(program.pid), program.pid]:
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(directory)
        shutil.rmtree(program.runtime)
    print("".join(f"BAD: {one}\n" for one in found[:20]), end="")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
