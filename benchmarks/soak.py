"""A year of a site of 1,000 targets on virtual time, with the real services: memory has to be as flat as the load.

    python benchmarks/soak.py [--months 1] [--targets 1000] [--rate 12] [--seed 1]

The simulated world of tests/chaos: the services, the scheduler, the store and their messages are those of an instance;
time, network, processes and tasks are simulated. Banks share by `fair`, standby jobs are preempted and submitted again,
targets are drained and moved, jobs are lost with nodes, the scheduler is killed now and then and the instance once a
month. What happens by the second (looks at modules, saves of history) happens by the hour here, and few ended jobs,
jobspecs and events are kept, so that a table that grows for ever can be told from one that fills. Prints memory month
by month, and fails if the interpreter's blocks in use grow by more than SHARE.
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1]))
from outside.jobspecs import asking

from fluxsched.errors import Disconnected
from fluxsched.resource.module import ResourceModule
from tests.chaos.wire import messages, request
from tests.chaos.world.network import SimClient
from tests.chaos.world.world import INSTANCE, World

HOUR_S, DAY_S = 3600.0, 86_400.0
MONTH_S = 365 * DAY_S / 12
AGAIN_S = 5.0
SETTLE_S = 10 * DAY_S
SHARE = 1.10
"""Of the objects of the first month, what the last one may have."""
SLOWED = {
    "fluxsched.services.module_processes.LOOK_S": HOUR_S,
    "fluxsched.scheduler.session.SAVE_EVERY_S": HOUR_S,
}
KEPT = {
    "fluxsched.messaging.memo.SPECS_KEPT": 64,
    "fluxsched.services.scheduling.ANNOTATIONS_KEPT": 64,
    "fluxsched.store.jobs.PARTS_KNOWN_MAX": 64,
}
"""Every job of this site is another one, so that tables of thousands would fill over months."""
HISTORY_EVENTS = 256
"""Events of the resource journal that are kept, for the same reason."""
SITE = """
[job-manager]
inactive-num-limit = 1000
[[scheduler]]
policy = "fair:backfill=easy"
hung-after = "4h"
[queues.batch]
[queues.standby]
[policy.jobspec.defaults.system]
queue = "batch"
duration = "1d"
[fair]
half-life = "7d"
[fair.banks]
physics = 3
chemistry = 2
biology = 1
standby = 0.01
"""
BANKS = ("physics", "chemistry", "biology", "standby")
NODES = (1, 1, 2, 4, 16, 64, 200)


class Users:
    """Submit, cancel, drain and move, and follow what becomes of it; they connect again when they are cut off."""

    def __init__(self, world: World, chance: Random, targets: int, rate: float) -> None:
        self._world, self._chance, self._targets, self._gap_s = world, chance, targets, HOUR_S / rate
        self._tag = 0
        self._client: SimClient | None = None
        self._waiting: dict[int, str] = {}
        """Requests that are not answered: matchtag to topic."""
        self.running: set[int] = set()
        self.open: set[int] = set()
        """Jobs that have been submitted and have not ended."""
        self.counts: Counter[str] = Counter()
        self.is_open = True
        """Whether the site takes jobs."""
        world.at(1.0, self._connect)
        for what, gap_s in ((self._submit, self._gap_s), (self._cancel, 3 * HOUR_S), (self._fail, 6 * HOUR_S),
                            (self._move, 2 * DAY_S), (self._kill_scheduler, 10 * DAY_S),
                            (self._kill_instance, 30 * DAY_S)):  # fmt: skip
            self._every(what, gap_s)

    def _every(self, what: Any, gap_s: float) -> None:
        def happen() -> None:
            if self.is_open:
                what()
            self._every(what, gap_s)

        self._world.at(self._world.now_s + self._chance.expovariate(1 / gap_s), happen)

    def _after(self, delay_s: float, what: Any) -> None:
        self._world.at(self._world.now_s + delay_s, what)

    # ---- the connection

    def _connect(self) -> None:
        try:
            self._client = self._world.connect("users")
        except Disconnected:
            self._client = None
            self._after(AGAIN_S, self._connect)
            return
        self._waiting.clear()
        self._client.start(None, self._read)
        self.send("job-manager.watch", {"names": ["start", "exception", "clean"]}, streaming=True)
        self.send("job-manager.list", {"states": ["active"], "max_entries": 0})

    def send(self, topic: str, payload: Any, *, streaming: bool = False) -> None:
        if self._client is not None:
            self._tag += 1
            self._waiting[self._tag] = topic
            self._client.send(request(topic, payload, self._tag, streaming=streaming))

    def _read(self) -> None:
        client = self._client
        if client is None:
            return
        while frames := client.receive(100):
            for one in frames:
                for message in messages(one):
                    self._take(message)
        if client.lost is not None:
            self._client = None
            self._after(AGAIN_S, self._connect)

    def _take(self, message: Any) -> None:
        topic = self._waiting.get(message.matchtag)
        if topic != "job-manager.watch":
            self._waiting.pop(message.matchtag, None)
        if message.errnum:
            self.counts[f"refused {topic}"] += 1
        elif topic == "job-manager.submit":
            self.open.add(message.payload["id"])
            self.counts["submitted"] += 1
        elif topic == "job-manager.list":  # what ended while we were away, and what was submitted again
            active = {job["id"] for job in message.payload["jobs"]}
            self.open, self.running = active, self.running & active
        elif topic == "job-manager.watch":
            for jobid, _, name, context in message.payload["events"]:
                self._event(jobid, name, context)

    def _event(self, jobid: int, name: str, context: Any) -> None:
        self.counts[name] += 1
        if name == "start":
            self.running.add(jobid)
        elif name == "exception":
            self.counts[f"exception {context.get('type')}"] += 1
        else:
            self.running.discard(jobid)
            self.open.discard(jobid)

    # ---- what they do

    def _submit(self) -> None:
        chance = self._chance
        bank = chance.choice(BANKS)
        run_s = chance.choice((600.0, 3600.0, 3600.0, 20_000.0)) * chance.uniform(0.5, 1.5)
        more: dict[str, Any] = {"bank": bank, "duration": run_s * 1.2}
        if bank == "standby":
            more |= {"queue": "standby", "preemptible-after": 0, "requeue": 3}
        jobspec = asking(["task", f"{run_s:.1f}", "0"], **more)
        slot = jobspec["resources"][0]
        jobspec["resources"] = [{"type": "node", "count": min(chance.choice(NODES), self._targets), "with": [slot]}]
        self.send("job-manager.submit", {"jobspec": jobspec})

    def _some(self) -> int | None:
        return self._chance.choice(sorted(self.running)) if self.running else None

    def _cancel(self) -> None:
        if (jobid := self._some()) is not None:
            self.send("job-manager.raise", {"id": jobid, "type": "cancel", "severity": 0})

    def _ranks(self, most: int) -> str:
        first = self._chance.randrange(self._targets)
        return f"{first}-{min(first + self._chance.randint(1, most), self._targets) - 1}"

    def _fail(self) -> None:
        """Some targets go for hours, mostly with a job."""
        targets = self._ranks(20)
        self.send("resource.drain", {"targets": targets, "reason": "failed", "mode": "update"})
        if (jobid := self._some()) is not None:
            self.send("job-manager.raise", {"id": jobid, "type": "node-fail", "severity": 0})
        self._after(self._chance.uniform(1, 24) * HOUR_S, lambda: self._repair(targets))

    def _repair(self, targets: str) -> None:
        if self._client is None:
            self._after(AGAIN_S, lambda: self._repair(targets))
        self.send("resource.undrain", {"targets": targets, "mode": "update"})

    def _move(self) -> None:
        targets = self._ranks(10)
        self.send("resource.assign", {"targets": targets, "group": "lab", "graceful": self._chance.random() < 0.5})
        self._after(DAY_S, lambda: self.send("resource.include", {"targets": targets}))

    def _kill_scheduler(self) -> None:
        self._world.kill("sched-fair")

    def _kill_instance(self) -> None:
        self._world.kill(INSTANCE)


def resident_mib() -> float:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / (1 << 20)


def live(options: argparse.Namespace) -> int:
    """All months; the exit status."""
    with World(options.seed, SITE, f"{options.targets}x8") as world:
        users = Users(world, Random(options.seed), options.targets, options.rate)
        measured: list[int] = []
        begun_s = time.process_time()
        for month in range(1, options.months + 1):
            world.run_until(month * MONTH_S)
            world.check()
            memory_mib = resident_mib()
            measured.append(sys.getallocatedblocks())  # the resident size keeps the highest peak of all months
            state_kib = sum(path.stat().st_size for path in world.disk.state.rglob("*") if path.is_file()) >> 10
            spent_s = time.process_time() - begun_s
            print(
                f"month {month}: {memory_mib:.1f} MiB, {measured[-1]:,} blocks, state {state_kib} KiB, "
                f"{users.counts['submitted']} jobs, {len(users.open)} active, {world.time.count} events, "
                f"{world.time.count / spent_s:.0f}/s of CPU",
                flush=True,
            )
        users.is_open = False
        world.run_until(world.now_s + SETTLE_S)
        world.check()
    print(", ".join(f"{count} {name}" for name, count in sorted(users.counts.items())))
    growth = measured[-1] / measured[0]
    print(f"blocks at the end are {growth:.3f} of those after the first month; {len(users.open)} jobs have not ended")
    return 0 if growth <= SHARE and not users.open else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--months", type=int, default=1)
    parser.add_argument("--targets", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=12.0, help="jobs an hour")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    patches: list[Any] = [patch(name, value) for name, value in (SLOWED | KEPT).items()]
    patches.append(patch.dict(ResourceModule.__init__.__kwdefaults__, history_events_max=HISTORY_EVENTS))
    for one in patches:
        one.start()
    return live(options)


if __name__ == "__main__":
    sys.exit(main())
