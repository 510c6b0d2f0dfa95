"""An instance under load is killed (SIGKILL) at random moments, again and again: what it acknowledged has to be there.

    python benchmarks/kills.py [--kills 100] [--fake 32x4] [--history 0] [--seed 1]

Clients submit, cancel, drain, undrain and move targets, and watch, over real sockets; some jobs are real processes,
some of these elastic, others only let time pass; fifo and easy take turns. Killed are the instance, also while it
starts, its scheduler, and the keeper of its tasks. The judge (outside/books.py) shares no code with fluxsched: nothing
acknowledged may be lost, no core be held twice, no task run twice, no job end because the instance was killed. Prints
how long restarts took until a submit was acknowledged; fails at any violation.
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

from outside.books import Books, Job
from outside.jobspecs import asking, elastic, passing
from outside.program import Program, children, keepers
from outside.wire import Failure, Lost, Wire

LOAD_S = (0.05, 1.2)
"""Between a start and the kill."""
STARTING_S = (0.0, 0.6)
"""Between the begin of a start and a kill in the midst of it."""
ACTIVE_MAX = 300
"""Jobs under way; submitters pause above it."""
SETTLE_S = 180.0
KINDS = {"instance": 0.55, "starting": 0.15, "scheduler": 0.15, "keeper": 0.08, "instance and keeper": 0.07}
"""What is killed, and how often; the instance at last in any case."""
SUBMITTERS = 3
NOTHING_S = 0.001
WINDOW = 512


class Load:
    """The clients of one life of the instance."""

    def __init__(self, uri: str, books: Books, chance: random.Random, targets: int) -> None:
        self._books = books
        self._chance = chance
        self._targets = targets
        self._wires = [Wire(uri) for _ in range(SUBMITTERS + 4)]
        *submitters, canceler, drainer, mover, watcher = self._wires
        roles = [*map(self._submit, submitters), self._cancel(canceler), self._drain(drainer), self._move(mover)]
        self._tasks = [asyncio.ensure_future(role) for role in [*roles, self._watch(watcher)]]

    async def end(self) -> None:
        """The clients go; raises what went wrong in one, apart from the loss of its connection."""
        for wire in self._wires:
            wire.close()
        for task in self._tasks:
            task.cancel()
        for found in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(found, Exception) and not isinstance(found, Lost):
                raise found

    def _jobspec(self) -> tuple[bool, dict[str, Any]]:
        chance = self._chance
        is_real = chance.random() < 0.3
        run_s, cores = chance.choice((0.001, 0.02, 0.2, 1.5)), chance.randint(1, 3)
        if not is_real:
            return False, passing(run_s, cores)
        if chance.random() < 0.15:
            note = f'echo "t $FLUX_JOB_ID.$FLUX_TASK_RANK $EPOCHREALTIME" >>{self._books.ran}'
            return False, elastic(["bash", "-c", f"{note}; sleep {run_s}"], 4, environment={"PATH": os.defpath})
        note = f'echo "%s $FLUX_JOB_ID $EPOCHREALTIME" >>{self._books.ran}'
        command = ["bash", "-c", f"{note % 'b'}; sleep {run_s}; {note % 'e'}"]
        return True, asking(command, cores, environment={"PATH": os.defpath})

    async def _submit(self, wire: Wire) -> None:
        while True:
            specs = [self._jobspec() for _ in range(self._chance.choice((1, 1, 5, 20)))]
            calls = [wire.post("job-manager.submit", {"jobspec": jobspec}) for _, jobspec in specs]
            for (is_real, _), call in zip(specs, calls, strict=True):
                jobid = (await call)["id"]
                self._books.open.setdefault(jobid, Job()).is_real = is_real
                self._books.counts["submits"] += 1
            while self._active() > ACTIVE_MAX:
                await asyncio.sleep(0.01)

    def _active(self) -> int:
        return sum("clean" not in job.told for job in self._books.open.values())

    async def _cancel(self, wire: Wire) -> None:
        while True:
            await asyncio.sleep(self._chance.uniform(0, 0.02))
            some = [jobid for jobid, job in self._books.open.items() if not job.cancel_sent and "clean" not in job.told]
            if some:
                jobid = self._chance.choice(some)
                job = self._books.open[jobid]
                job.cancel_sent = True
                try:
                    await wire.call("job-manager.raise", {"id": jobid, "type": "cancel", "severity": 0})
                    job.is_canceled = True
                    self._books.counts["cancels"] += 1
                except Failure:
                    pass  # it has ended

    async def _drain(self, wire: Wire) -> None:
        """The first quarter of the targets."""
        while True:
            rank = self._chance.randrange(self._targets // 4)
            may = self._books.drained[rank]
            (before,) = may
            may.add(not before)
            topic = "resource.undrain" if before else "resource.drain"
            await wire.call(topic, {"targets": str(rank), **({} if before else {"reason": "a test"})})
            self._books.drained[rank] = {not before}
            self._books.counts["drains"] += 1
            await asyncio.sleep(self._chance.uniform(0, 0.01))

    async def _move(self, wire: Wire) -> None:
        """The second quarter, between two groups."""
        while True:
            rank = self._targets // 4 + self._chance.randrange(self._targets // 4)
            (before,) = self._books.group[rank]
            after = "lab" if before == "default" else "default"
            self._books.group[rank] = {before, after}
            await wire.call("resource.assign", {"targets": str(rank), "group": after})
            self._books.group[rank] = {after}
            self._books.counts["moves"] += 1
            await asyncio.sleep(self._chance.uniform(0, 0.05))

    async def _watch(self, wire: Wire) -> None:
        async for message in wire.stream("job-manager.watch", {}):
            for jobid, _, name, *_ in message["events"]:
                if jobid not in self._books.results:
                    self._books.open.setdefault(jobid, Job()).told.add(name)
                    self._books.counts["events told"] += 1


class Run:
    """Lives of one instance, one after the other."""

    def __init__(self, options: argparse.Namespace, directory: Path) -> None:
        self._chance = random.Random(options.seed)
        self._targets = int(options.fake.partition("x")[0])
        self.books = Books(directory / "ran")
        self.program = Program(directory / "state", "--fake", options.fake)
        self.service_s: list[float] = []
        self.scheduler_s: list[float] = []
        self.kills: Counter[str] = Counter()
        self.tasks: Counter[str] = Counter()
        self._was_running: set[int] = set()

    async def live(self) -> None:
        """From a start to a kill."""
        scheduler = self._chance.choice(("fifo", "easy"))
        self.program.spawn("--scheduler", scheduler)
        begun_s = time.monotonic()
        kind = self._chance.choices(list(KINDS), list(KINDS.values()))[0]
        if kind == "starting":
            await asyncio.sleep(self._chance.uniform(*STARTING_S))
            self._kill(kind)
            return
        await self.program.ready()
        wire = Wire(self.program.uri)
        first = await wire.call("job-manager.submit", {"jobspec": passing(NOTHING_S)})
        self.service_s.append(time.monotonic() - begun_s)
        self.books.open[first["id"]] = Job(False)
        await self.books.judge(wire)
        self._judge_survivors()
        load = Load(self.program.uri, self.books, self._chance, self._targets)
        await asyncio.sleep(self._chance.uniform(*LOAD_S))
        if kind == "scheduler":
            await self._kill_scheduler(wire)
            await asyncio.sleep(self._chance.uniform(*LOAD_S))
        if kind == "keeper":
            self._kill_keepers(kind)
            await asyncio.sleep(self._chance.uniform(*LOAD_S))
        wire.close()
        self._kill("instance")
        if kind == "instance and keeper":
            self._kill_keepers(kind)
        await load.end()
        ran = self.books.task_lines().items()
        began = {jobid for jobid, found in ran if found["b"] and not found["e"]}
        self._was_running |= began - self.books.results.keys()

    def _kill(self, kind: str) -> None:
        self.kills[kind] += 1
        self.program.kill()

    def _kill_keepers(self, kind: str) -> None:
        """The parents of all tasks: jobs that run now may be lost, and must not run again."""
        for pid in keepers(self.program.statedir):
            os.kill(pid, signal.SIGKILL)
            self.kills[kind] += 1
        self.books.keeper_kills_s.append(time.time())

    async def _kill_scheduler(self, wire: Wire) -> None:
        (module,) = [one for one in (await wire.call("module.list"))["mods"] if "sched" in one["services"]]
        os.kill(module["pid"], signal.SIGKILL)
        begun_s = time.monotonic()
        self.kills["scheduler"] += 1
        while not any(
            one["pid"] != module["pid"] and one["status"] == 1
            for one in (await wire.call("module.list"))["mods"] if one["name"] == module["name"]
        ):  # fmt: skip
            await asyncio.sleep(0.005)
        self.scheduler_s.append(time.monotonic() - begun_s)

    def _judge_survivors(self) -> None:
        """What became of the real tasks that were running when the instance was killed."""
        for jobid in [*self._was_running]:
            if (result := self.books.results.get(jobid)) is not None:
                self._was_running.remove(jobid)
                self.tasks[result] += 1

    async def settle(self) -> None:
        """The last start: all is given back, every job ends, and the whole is judged."""
        self.program.spawn("--scheduler", "fifo")
        await self.program.ready()
        wire = Wire(self.program.uri)
        await self.books.judge(wire)
        everything = f"0-{self._targets - 1}"
        await wire.call("resource.undrain", {"targets": everything, "mode": "update"})
        await wire.call("resource.assign", {"targets": everything, "group": "default"})
        end_s = time.monotonic() + SETTLE_S
        while (await wire.call("job-manager.list", {"states": ["active"], "max_entries": 1}))["jobs"]:
            if time.monotonic() > end_s:
                self.books.fault("jobs are still active long after the last kill")
                break
            await asyncio.sleep(0.05)
        self.books.drained.clear()
        self.books.group.clear()
        await self.books.judge(wire)
        self._judge_survivors()
        allocated = (await wire.call("resource.sched-status"))["allocated"]["execution"]["R_lite"]
        if allocated:
            self.books.fault(f"nothing runs, but {allocated} is allocated")
        self.books.judge_tasks()
        self.books.judge_holdings()
        wire.close()
        if self.program.stop() != 0:
            self.books.fault("the last instance did not end with status 0")


async def fill(uri: str, jobs: int) -> None:
    """So many jobs of history."""
    wire = Wire(uri)
    for at in range(0, jobs, WINDOW):
        request = {"jobspec": passing(NOTHING_S)}
        await asyncio.gather(*[wire.post("job-manager.submit", request) for _ in range(min(WINDOW, jobs - at))])
    while (await wire.call("job-manager.list", {"states": ["active"], "max_entries": 1}))["jobs"]:
        await asyncio.sleep(0.1)
    wire.close()


def figures(what: str, took_s: list[float]) -> str:
    """Of delays, for people."""
    if not took_s:
        return f"{what}: never"
    took_s = sorted(took_s)
    shown = [f"{name} {took_s[int(part * (len(took_s) - 1))]:.2f}" for name, part in
             (("median", 0.5), ("p95", 0.95), ("worst", 1.0))]  # fmt: skip
    return f"{what}: {', '.join(shown)} s of {len(took_s)}"


async def main_loop(options: argparse.Namespace, run: Run) -> None:
    if options.history:
        run.program.spawn()
        await run.program.ready()
        await fill(run.program.uri, options.history)
        run.program.stop()
    end_s = time.monotonic() + options.minutes * 60
    while sum(run.kills.values()) < options.kills and time.monotonic() < end_s and not run.books.faults:
        await run.live()
        if sum(run.kills.values()) % 20 == 0:
            print(f"{dict(run.kills)} {dict(run.books.counts)} {dict(run.tasks)}", flush=True)
    await run.settle()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--fake", default="32x4")
    parser.add_argument("--history", type=int, default=0, help="jobs that have ended before the first kill")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600.0, help="no kill after so many")
    parser.add_argument("--keep", action="store_true", help="leave the directory")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="fx-kills-"))
    run = Run(options, directory)
    try:
        asyncio.run(main_loop(options, run))
    finally:
        if run.program.process is not None and run.program.process.poll() is None:
            for pid in [*children(run.program.pid), run.program.pid]:
                os.kill(pid, signal.SIGKILL)
        for pid in keepers(run.program.statedir):
            os.kill(pid, signal.SIGKILL)
        if options.keep:
            print(f"left in {directory} and {run.program.runtime}")
        else:
            shutil.rmtree(directory)
            shutil.rmtree(run.program.runtime)
    print(f"kills: {dict(run.kills)}; {dict(run.books.counts)}; tasks that ran at a kill: {dict(run.tasks)}")
    print(figures("start to an acknowledged submit", run.service_s))
    print(figures("kill of the scheduler to its successor serving", run.scheduler_s))
    print(f"{len(run.books.faults)} violations")
    return 1 if run.books.faults else 0


if __name__ == "__main__":
    sys.exit(main())
