"""Two instances, one the cluster of the other, are killed (SIGKILL) at random moments: each job ran exactly once.

    python benchmarks/kills_clusters.py [--kills 60] [--seed 1]

Clients submit real jobs to a queue that runs them here or there, and others use the cluster, too, so that some leases
are returned. Each job notes its begin and its end in a file, by its name, which is unique. Judged are that file and
what clients are told in the end: what was acknowledged has begun once, ended once and is told to be completed; what
was not acknowledged has not run twice. Shares no code with fluxsched; fails at any violation.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from outside.jobspecs import asking
from outside.program import Program, children, keepers
from outside.wire import Lost, Wire

CONFIG = """
[queues.both]
groups = ["default", "east"]
[queues.far]
group = "east"
[policy.jobspec.defaults.system]
queue = "both"
[[scheduler]]
policy = "easy"
groups = ["default", "east"]
[[cluster]]
name = "east"
uri = "{uri}"
return-after = "300ms"
"""
LOAD_S = (0.05, 1.5)
"""Between a start and the next kill."""
STARTING_S = (0.0, 0.8)
"""Between the begin of a start and a kill in the midst of it."""
KINDS = {"here": 0.35, "there": 0.35, "both": 0.1, "here starting": 0.1, "there starting": 0.1}
"""What is killed, and how often."""
ACTIVE_MAX, OTHERS_MAX = 60, 12
"""Jobs under way, ours and those of others there; clients pause above it. Fewer others leave targets idle for ours."""
SETTLE_S = 180.0


class Client:
    """Submits to one instance. `accepted` are names of jobs whose submit was acknowledged, `sent` of all."""

    def __init__(self, ran: Path, prefix: str, chance: random.Random, queues: tuple[str, ...], most: int) -> None:
        self.sent: set[str] = set()
        self.accepted: set[str] = set()
        self._ran, self._prefix, self._chance, self._queues, self._most = ran, prefix, chance, queues, most

    def _jobspec(self, name: str) -> dict[str, Any]:
        run_s, cores = self._chance.choice((0.0, 0.02, 0.2, 1.0)), self._chance.randint(1, 2)
        note = f'echo "%s {name} $EPOCHREALTIME" >>{self._ran}'
        command = ["bash", "-c", f"{note % 'b'}; sleep {run_s}; {note % 'e'}"]
        named = {"job": {"name": name}, "environment": {"PATH": os.defpath}}
        queue = self._chance.choice(self._queues)
        return asking(command, cores, **named, **({"queue": queue} if queue else {}))

    async def run(self, wire: Wire) -> None:
        """Until the connection is lost."""
        try:
            while True:
                for _ in range(self._chance.choice((1, 1, 4, 10))):
                    name = f"{self._prefix}{len(self.sent)}"
                    self.sent.add(name)
                    await wire.call("job-manager.submit", {"jobspec": self._jobspec(name)})
                    self.accepted.add(name)
                while len(await active(wire)) > self._most:
                    await asyncio.sleep(0.02)
                await asyncio.sleep(self._chance.uniform(0.0, 0.2))
        except Lost:
            pass


async def active(wire: Wire) -> list[dict[str, Any]]:
    """The jobs that have not ended."""
    answer = await wire.call("job-manager.list", {"states": ["active"], "max_entries": 0})
    found: list[dict[str, Any]] = answer["jobs"]
    return found


class Run:
    """The two, and what is known of their jobs."""

    def __init__(self, options: argparse.Namespace, top: Path) -> None:
        self.chance = random.Random(options.seed)
        self.ran = top / "ran"
        self.ran.touch()
        address = f"ipc://{top}/east"
        (top / "here.toml").write_text(CONFIG.format(uri=address))
        self.there = Program(top / "there", "--fake", "4x4", "--bind", address)
        self.here = Program(top / "here", "--fake", "2x2", "--config", str(top / "here.toml"))
        self.ours = Client(self.ran, "ours", self.chance, ("both", "both", "far"), ACTIVE_MAX)
        self.others = Client(self.ran, "others", self.chance, ("",), OTHERS_MAX)
        self.kills: Counter[str] = Counter()
        self.faults: list[str] = []
        self.leased: Counter[str] = Counter()
        self._busy: dict[str, tuple[Wire, asyncio.Task[None]]] = {}

    def side(self, name: str) -> Program:
        return self.here if name == "here" else self.there

    async def serve(self, name: str) -> None:
        """Wait until a side is ready, and use it."""
        await self.side(name).ready()
        wire = Wire(self.side(name).uri)
        client = self.ours if name == "here" else self.others
        self._busy[name] = wire, asyncio.ensure_future(client.run(wire))

    async def kill(self, kind: str) -> None:
        """Kill one or both, and start again."""
        what, _, starting = kind.partition(" ")
        names = ["here", "there"] if what == "both" else [what]
        for name in names:
            self.side(name).kill()
        self.kills[kind] += 1
        for name in names:
            wire, task = self._busy.pop(name)
            wire.close()
            await task
        for name in names:
            self.side(name).spawn()
        if starting:
            await asyncio.sleep(self.chance.uniform(*STARTING_S))
            self.side(what).kill()
            self.side(what).spawn()
        for name in names:
            await self.serve(name)

    async def live(self, kills: int) -> None:
        """Kill after kill."""
        for name in ("there", "here"):
            self.side(name).spawn()
            await self.serve(name)
        for done in range(kills):
            await asyncio.sleep(self.chance.uniform(*LOAD_S))
            await self.kill(self.chance.choices(list(KINDS), list(KINDS.values()))[0])
            if done % 10 == 9:
                print(f"{dict(self.kills)} {len(self.ours.accepted)} jobs acknowledged", flush=True)
        for wire, task in self._busy.values():
            task.cancel()
            wire.close()

    async def settle(self) -> None:
        """All jobs end; then the judgement."""
        end_s, wires = time.monotonic() + SETTLE_S, [Wire(self.here.uri), Wire(self.there.uri)]
        while any([await active(wire) for wire in wires]):
            if time.monotonic() > end_s:
                left = [one for wire in wires for one in await active(wire)]
                self.faults += [f"still active: {one['name']} {one['state']}" for one in left]
                break
            await asyncio.sleep(0.05)
        begun, ended = Counter[str](), Counter[str]()
        for line in self.ran.read_text().splitlines():
            (begun if line.startswith("b ") else ended)[line.split()[1]] += 1
        for wire, client in zip(wires, (self.ours, self.others), strict=True):
            await self._judge(wire, client, begun, ended)
        await self._judge_leases(wires)
        for wire in wires:
            wire.close()

    async def _judge(self, wire: Wire, client: Client, begun: Counter[str], ended: Counter[str]) -> None:
        jobs = (await wire.call("job-manager.list", {"max_entries": 0}))["jobs"]
        results: dict[str, list[str]] = {}
        for job in jobs:
            if "requeued_as" in job:
                self.leased["returned"] += 1
            elif job["name"] in client.sent:
                results.setdefault(job["name"], []).append(job.get("result", "none"))
                if ":" in job.get("nodelist", ""):
                    self.leased["ran there"] += 1
        for name in client.sent:
            often = begun[name], ended[name]
            if often != (1, 1) and (name in client.accepted or often != (0, 0) or name in results):
                self.faults.append(f"{name} began {often[0]} times and ended {often[1]} times: {results.get(name)}")
            elif name in client.accepted and results.get(name) != ["COMPLETED"]:
                self.faults.append(f"{name} was acknowledged, and is told to be {results.get(name)}")

    async def _judge_leases(self, wires: list[Wire]) -> None:
        (cluster,) = (await wires[0].call("cluster.list"))["clusters"]
        if cluster["state"] != "connected" or any(cluster["leases"].values()):
            self.faults.append(f"the cluster in the end: {cluster}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave the directory")
    options = parser.parse_args()
    top = Path(tempfile.mkdtemp(prefix="fx-kills-"))
    run = Run(options, top)

    async def all_of_it() -> None:
        await run.live(options.kills)
        await run.settle()

    try:
        asyncio.run(all_of_it())
    finally:
        for program in (run.here, run.there):
            if program.process is not None and program.process.poll() is None:
                for pid in [*children(program.pid), program.pid]:
                    os.kill(pid, signal.SIGKILL)
            for pid in keepers(program.statedir):
                os.kill(pid, signal.SIGKILL)
        if options.keep:
            print(f"left in {top}, {run.here.runtime} and {run.there.runtime}")
        else:
            for directory in (top, run.here.runtime, run.there.runtime):
                shutil.rmtree(directory)
    for fault in run.faults:
        print(f"VIOLATION: {fault}")
    accepted = len(run.ours.accepted)
    print(f"kills: {dict(run.kills)}; jobs acknowledged: {accepted} here, {len(run.others.accepted)} of others there")
    print(f"of those submitted here {run.leased['ran there']} ran there, {run.leased['returned']} leases were returned")
    print(f"{len(run.faults)} violations")
    return 1 if run.faults else 0


if __name__ == "__main__":
    sys.exit(main())
