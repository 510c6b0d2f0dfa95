"""What a report of many finished jobs takes, what it does to other requests meanwhile, and how large the history is.

    python benchmarks/report.py [--jobs 1000000] [--days 365] [--users 200] [--targets 1024]

Jobs are counted as an instance counts them, over so many days, and written as it writes them, each minute in which some
ended; then an instance with that state is asked, by the command and by a client, while another one asks for
instance.info. Intervals: each target is drained and offline once a month.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import fluxsched
from fluxsched.core.idset import Idset
from fluxsched.core.jobfields import Sharing
from fluxsched.history import JobAccounting, MachineSample
from fluxsched.instance import launch
from fluxsched.jobs.job import Job, JobSummary
from fluxsched.jobs.queues import JobQueue, QueueConfig
from fluxsched.store.schema import HOUR
from fluxsched.store.store import ImmediateWriter, Store
from fluxsched.system.clock import SystemClock
from fluxsched.system.files import DATABASE_NAME
from fluxsched.system.loop import Turns

DAY_S = 86_400
QUEUES = ("batch", "debug", "long")
BANKS = 20


def fill(state: Path, jobs: int, days: int, users: int, targets: int) -> None:
    """Write the history of so many days."""
    turns = Turns(SystemClock())
    store = Store(state / DATABASE_NAME, turns, ImmediateWriter())
    queues = [JobQueue(QueueConfig(name)) for name in QUEUES]
    accounting = JobAccounting(turns, store, lambda name: queues[0], lambda rank: None)
    accounting._is_complete = True
    chance, now_s = random.Random(1), time.time()
    begin_s = now_s - days * DAY_S
    counting_s, aged_s = 0.0, begin_s
    for at in range(jobs):
        end_s = begin_s + (at + 1) * days * DAY_S / (jobs + 1)
        job = some_job(at, end_s, chance, users, queues)
        before_s = time.process_time()
        accounting.ended(job, chance.choice(("COMPLETED", "COMPLETED", "COMPLETED", "FAILED", "TIMEOUT", "CANCELED")))
        counting_s += time.process_time() - before_s
        if at % 100 == 0:
            accounting.write()
            if end_s > aged_s + HOUR:
                for _ in range(4):
                    accounting.age(end_s)
                    flush(store, turns)
                aged_s = end_s
            flush(store, turns)
    accounting.write()
    print(f"{counting_s / jobs * 1e6:.2f} us of CPU to count a job")
    add_samples(store, now_s, days)
    flush(store, turns)
    before = size(store)
    add_intervals(store, begin_s, days, targets)
    flush(store, turns)
    bytes_a_year = (size(store) - before) / targets / days * 365
    print(f"database: {size(store) / 1e6:.1f} MB; intervals {bytes_a_year:.0f} bytes a target-year")
    store.close()


def some_job(at: int, end_s: float, chance: random.Random, users: int, queues: list[JobQueue]) -> JobSummary:
    """One that has ended."""
    userid = 1000 + min(users - 1, int(chance.expovariate(8.0 / users)))
    duration_s, wait_s = chance.expovariate(1 / 1800), chance.expovariate(1 / 600)
    job = Job(at, queues[userid % len(queues)], userid=userid, ncores=chance.choice((1, 8, 64)))
    job.sharing = Sharing(bank=f"bank{userid % BANKS}")
    job.t_inactive, job.t_run = end_s, end_s - duration_s
    job.t_submit = job.t_run - wait_s
    job.properties = "gpu" if userid % 5 == 0 else ""
    job.ngpus = 1 if job.properties else 0
    return job.summary()


def add_samples(store: Store, now_s: float, days: int) -> None:
    """As an instance has them after so many days."""
    t = int(now_s) // 3600 * 3600
    for step, count in ((60, 2880), (600, 1728), (3600, max(0, (days - 14) * 24))):
        for _ in range(count):
            t -= step
            cores = [step * part for part in (800.0, 180.0, 40.0, 4.0, 0.0)]
            sample = MachineSample(float(step), cores, {name: [1.0, 2.0] for name in QUEUES}, 5, 5)
            sample.waits = dict.fromkeys(range(8), 2)
            store.add("sample", (step, t, *sample.row()))


def add_intervals(store: Store, begin_s: float, days: int, targets: int) -> None:
    """Each target alone, twice a month."""
    number = 0
    for month in range(days // 30):
        for rank in range(targets):
            for state, note in (("drained", "replace DIMM"), ("offline", "")):
                number += 1
                at_s = begin_s + month * 30 * DAY_S + rank
                store.add("interval", (number, str(Idset(1 << rank)), state, note, at_s, at_s + 3600.5))


def flush(store: Store, turns: Turns) -> None:
    """Have it written."""
    store.flush()
    turns._run_posted(SystemClock().monotonic_s() + 1.0)


def size(store: Store) -> int:
    """Bytes of the pages in use."""
    pages = store.read("SELECT page_count - freelist_count FROM pragma_page_count, pragma_freelist_count")[0][0]
    return int(pages) * int(store.read("PRAGMA page_size")[0][0])


async def ask(state: Path, days: int) -> None:
    """Have an instance with that state answer reports."""
    uri = launch.start_daemon(launch.StartOptions(fake="16x64", statedir=state, schedulers=("none",)))
    try:
        environment = os.environ | {"FLUXSCHED_URI": uri}
        command = [sys.executable, "-m", "fluxsched", "report", f"--since=-{days}d"]
        for more in (["--by=user"], ["--by=bank"], ["--by=property"], ["--by=user", "--csv"]):
            before_s = time.monotonic()
            process = await asyncio.create_subprocess_exec(
                *command, *more, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            await process.wait()
            print(f"fluxsched report {' '.join(more)}: {time.monotonic() - before_s:.2f} s")
        async with fluxsched.connect(uri) as handle, fluxsched.connect(uri) as other:
            since_s = time.time() - days * DAY_S
            report = asyncio.ensure_future(handle.rpc("history.report", {"since": since_s}))
            took: list[float] = []
            before_s = time.monotonic()
            while not report.done():
                asked_s = time.monotonic()
                await other.rpc("instance.info")
                took.append(time.monotonic() - asked_s)
            await report
            print(
                f"history.report: {time.monotonic() - before_s:.2f} s; meanwhile instance.info took "
                f"{statistics.median(took) * 1e3:.1f} ms, at most {max(took) * 1e3:.1f} ms, {len(took)} times"
            )
    finally:
        async with fluxsched.connect(uri) as handle:
            await handle.rpc("instance.stop")


def main() -> None:
    """Fill, then ask."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--targets", type=int, default=1024)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        state = Path(directory) / "state"
        state.mkdir(mode=0o700)
        fill(state, asked.jobs, asked.days, asked.users, asked.targets)
        asyncio.run(ask(state, asked.days))


if __name__ == "__main__":
    main()
