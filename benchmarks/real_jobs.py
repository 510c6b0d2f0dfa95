"""Real jobs, `true` with an environment each, in a state directory: memory, bytes on disk, time of a restart.

    python benchmarks/real_jobs.py [--jobs 21000] [--fake 64x64] [--environment 8192] [--distinct] [--window 64]
    ... --test        the jobs only wait for a millisecond: many more of them in the same time
    ... --running N   so many test jobs run meanwhile, and through the restart
    ... --kill        the restart follows a `kill -9`
    ... --sampled N   instead: N real jobs of a task run, with --running others, and what they use is asked each second
    ... --beside      `true` by `bulksubmit --wait`, `xargs -P16` and HyperQueue in turn, then the latency of jobs;
                      HYPERQUEUE names a Python that has `hyperqueue`, without which that is left out

Prints the resident memory of the instance and of its keeper as jobs end and the highest value, the bytes in the
database a job, CPU a job, and how long a restart takes: from the exec of `fluxsched start` to the answer to the first
request after it is ready.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from jobs import Usage, burst

import fluxsched
from fluxsched.instance import launch

RUN_S = 0.001
"""How long a test job runs."""
DAY_S = 86_400.0
VARIABLES = 64
"""In how many variables an environment comes."""
DIGITS_SHARE = 0.55
"""How much of a value is unlike all others, as hashes in paths are."""
LATENCIES = 200
"""Single jobs whose latency is measured."""
STEPS = 5
"""How often memory is shown while jobs run."""
POLL_S = 0.02
SAMPLED_S = 30
"""How often, once a second, the real jobs of `--sampled` are asked what they use, and how long none is asked before."""


class RealJobspecs:
    """Jobspecs of `true` with environments of so many bytes, all equal or no two alike; they compress about 3:1."""

    def __init__(self, environment_bytes: int, *, distinct: bool, test: bool) -> None:
        self._value_bytes = max(1, environment_bytes // VARIABLES - len("VARIABLE_00="))
        self._path = "/opt/software/linux-x86_64/" * (1 + self._value_bytes // 27)
        self._distinct = distinct
        self._run_s = RUN_S if test else None
        self._counter = itertools.count()
        self._alike = self._make(0)

    def _make(self, seed: int) -> dict[str, Any]:
        digits_max = int(self._value_bytes * DIGITS_SHARE)
        digits = random.Random(seed).randbytes(VARIABLES * digits_max).hex()
        values = (digits[at * digits_max : (at + 1) * digits_max] + self._path for at in range(VARIABLES))
        environment = {f"VARIABLE_{at:02}": value[: self._value_bytes] for at, value in enumerate(values)}
        made = fluxsched.Jobspec.from_command(
            ["true"], test_run_duration_s=self._run_s, cwd="/", environment=environment
        )
        return made.to_json()

    def next(self) -> dict[str, Any]:
        """The next job's."""
        return self._make(next(self._counter)) if self._distinct else self._alike


def status_mib(pid: int, name: str) -> float:
    """A size in the status of a process: VmRSS now, VmHWM at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024


def pid_of(uri: str) -> int:
    with fluxsched.connect_sync(uri) as h:
        return int(h.rpc("instance.info")["pid"])


def keeper_of(statedir: Path) -> int:
    """The process that runs the tasks; it is there from the first job on."""
    mark = f"{statedir}/keeper-".encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes():
                return int(path.parent.name)
    raise LookupError(f"no keeper of {statedir} runs")


def tasks_cpu_s(keeper: int) -> float:
    """CPU seconds of the tasks that have ended: of their shells, and of `true`."""
    fields = Path(f"/proc/{keeper}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


async def run_long(uri: str, count: int) -> None:
    """Have test jobs run for a day."""
    made = fluxsched.Jobspec.from_command(["true"], test_run_duration_s=DAY_S, cwd="/", environment={})
    async with fluxsched.connect(uri) as h:
        await asyncio.gather(*[h.call("job-manager.submit", {"jobspec": made.to_json()}) for _ in range(count)])
        while (await h.rpc("job-manager.stats-get"))["jobs"].get("run", 0) < count:
            await asyncio.sleep(POLL_S)


def start(fake: str, statedir: Path) -> tuple[str, float]:
    """A new instance: its uri, and the seconds to the first answer after it was ready."""
    command = [sys.executable, "-m", "fluxsched", "start", "--daemon", "--fake", fake, "--statedir", str(statedir)]
    begin_s = time.perf_counter()
    uri = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    with fluxsched.connect_sync(uri) as h:
        h.rpc("job-manager.list", {"max_entries": 1})
    return uri, time.perf_counter() - begin_s


def measure_jobs(options: argparse.Namespace, uri: str, statedir: Path) -> None:
    """Run the jobs, and print what each costs."""
    pid, usage = pid_of(uri), Usage(uri)
    specs = RealJobspecs(options.environment, distinct=options.distinct, test=options.test)
    print(f"at rest: {status_mib(pid, 'VmRSS'):.0f} MiB", flush=True)
    if not options.test:
        asyncio.run(burst(uri, options.window, options.window, specs))
        usage.add("keeper", keeper_of(statedir))
    tasks_s = 0.0 if options.test else tasks_cpu_s(keeper_of(statedir))
    before, elapsed_s = usage.cpu_s(), 0.0
    for step in range(1, STEPS + 1):
        count = options.jobs // STEPS
        elapsed_s += asyncio.run(burst(uri, count, options.window, specs))
        kept = "" if options.test else f"; keeper {status_mib(keeper_of(statedir), 'VmRSS'):.0f} MiB"
        print(f"after {step * count:,} jobs: {status_mib(pid, 'VmRSS'):.0f} MiB{kept}", flush=True)
    spent = usage.since(before, options.jobs / 1e6)
    if not options.test:
        spent["tasks"] = (tasks_cpu_s(keeper_of(statedir)) - tasks_s) / options.jobs * 1e6
    used = ", ".join(f"{name} {value:.0f}" for name, value in spent.items())
    print(f"at most {status_mib(pid, 'VmHWM'):.0f} MiB; {options.jobs / elapsed_s:.0f} jobs/s; CPU us a job: {used}")
    asyncio.run(run_long(uri, options.running))


async def sample(uri: str, jobids: list[int], rounds: int) -> None:
    """Ask each second what each of these jobs uses; with none, let as many seconds pass."""
    async with fluxsched.connect(uri) as h:
        for _ in range(rounds):
            begin_s = time.perf_counter()
            found = await asyncio.gather(*[h.rpc("job-manager.usage", {"id": jobid}) for jobid in jobids])
            assert all(answer["usage"]["wall_s"] for answer in found)
            await asyncio.sleep(max(0.0, 1.0 - (time.perf_counter() - begin_s)))


def measure_sampling(options: argparse.Namespace, uri: str, statedir: Path) -> None:
    """Print the shares of a core that it takes to ask real jobs each second what they use, beside others that run."""
    asyncio.run(run_long(uri, options.running))
    made = fluxsched.Jobspec.from_command(["sleep", str(int(DAY_S))], cwd="/", environment={})
    with fluxsched.connect_sync(uri) as h:
        jobids = [h.submit(made) for _ in range(options.sampled)]
        while h.rpc("job-manager.stats-get")["jobs"].get("run", 0) < options.running + options.sampled:
            time.sleep(POLL_S)
    usage = Usage(uri)
    usage.add("keeper", keeper_of(statedir))
    for name, asked in (("none is asked", []), (f"{len(jobids)} are asked each second", jobids)):
        before, begin_s = usage.cpu_s(), time.perf_counter()
        asyncio.run(sample(uri, asked, SAMPLED_S))
        shares = usage.since(before, (time.perf_counter() - begin_s) / 100)
        print(f"{name}: {', '.join(f'{who} {share:.2f} %' for who, share in shares.items())} of a core", flush=True)


def end(uri: str, kill: bool) -> None:
    """End the instance, well or badly."""
    if not kill:
        launch.stop(uri)
        return
    pid = pid_of(uri)
    os.kill(pid, signal.SIGKILL)
    while Path(f"/proc/{pid}").exists():
        time.sleep(POLL_S)


# ---- beside others

SLOTS = 16
"""Tasks at a time in each of them."""
HYPERQUEUE = """
import sys, time
from hyperqueue import Job
from hyperqueue.cluster import LocalCluster, WorkerConfig
with LocalCluster() as cluster:
    cluster.start_worker(WorkerConfig(cores=int(sys.argv[2])))
    client = cluster.client()
    for count in (1, int(sys.argv[1])):
        job = Job()
        for _ in range(count):
            job.program(["true"])
        begin_s = time.perf_counter()
        client.wait_for_jobs([client.submit(job)])
print(time.perf_counter() - begin_s)
"""


def took_s(words: list[str], **options: Any) -> float:
    """Seconds that a command takes."""
    begin_s = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, **options)
    return time.perf_counter() - begin_s


def measure_beside(options: argparse.Namespace, uri: str) -> None:
    """Print how many jobs a second each runs in turn, by medians and by ratios to ours of the same round."""
    count, python = options.jobs, os.environ.get("HYPERQUEUE")
    inputs = "".join(f"{at}\n" for at in range(count))
    ours = [sys.executable, "-m", "fluxsched", "bulksubmit", "--uri", uri, "--wait", "--quiet", "true", "{}"]
    rates: dict[str, list[float]] = {}
    for _ in range(options.restarts):
        rates.setdefault("fluxsched", []).append(count / took_s(ours, input=inputs, text=True))
        others = ["xargs", "-P", str(SLOTS), "-n", "1", "true"]
        rates.setdefault("xargs", []).append(count / took_s(others, input=inputs, text=True))
        if python:
            words = [python, "-c", HYPERQUEUE, str(count), str(SLOTS)]
            with tempfile.TemporaryDirectory() as output:  # two files a task
                found = subprocess.run(words, check=True, text=True, cwd=output, capture_output=True)
            rates.setdefault("hyperqueue", []).append(count / float(found.stdout.split()[-1]))
    for name, each in rates.items():
        ratio = statistics.median([own / other for own, other in zip(rates["fluxsched"], each, strict=True)])
        print(f"{name}: {statistics.median(each):.0f} jobs/s; ours beside it {ratio:.2f}", flush=True)


def measure_latency(uri: str, count: int, directory: Path) -> None:
    """Print the time from a submit to the first instruction of the task, of single jobs on an idle instance."""
    stamp = directory / "begun"
    command = ["sh", "-c", f"date +%s.%N > {stamp}"]  # which begin at once, as an interpreter of Python does not
    alone: list[float] = []
    through: list[float] = []
    with fluxsched.connect_sync(uri) as h:
        spec = fluxsched.Jobspec.from_command(command, cwd="/", environment={})
        for _ in range(count):
            begin_s = time.time()
            subprocess.run(command, check=True)
            alone.append(float(stamp.read_text()) - begin_s)
            begin_s = time.time()
            h.wait(h.submit(spec))
            through.append(float(stamp.read_text()) - begin_s)
    for name, each in (("a job", through), ("the same process without an instance", alone)):
        p50, p99 = statistics.median(each), sorted(each)[int(0.99 * len(each))]
        print(f"submit to first instruction, {name}: p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=21_000)
    parser.add_argument("--fake", default="64x64")
    parser.add_argument("--environment", type=int, default=8192, help="bytes a job")
    parser.add_argument("--distinct", action="store_true", help="no two environments are alike")
    parser.add_argument("--window", type=int, default=64, help="jobs under way at once")
    parser.add_argument("--test", action="store_true", help="test jobs instead of processes")
    parser.add_argument("--running", type=int, default=0, help="test jobs that run through the restart")
    parser.add_argument("--kill", action="store_true", help="kill -9 before the restart")
    parser.add_argument("--restarts", type=int, default=3, help="how often to restart")
    parser.add_argument("--sampled", type=int, default=0, help="real jobs that are asked each second what they use")
    parser.add_argument("--beside", action="store_true", help="compare with xargs and HyperQueue, in turn")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # commands start from bytecode, as where fluxsched is installed
    with tempfile.TemporaryDirectory() as directory:
        statedir = Path(directory)
        uri, took = start(options.fake, statedir)
        try:
            print(f"first start: {took:.2f} s")
            if options.beside:
                measure_beside(options, uri)
                measure_latency(uri, LATENCIES, statedir)
                return 0
            if options.sampled:
                measure_sampling(options, uri, statedir)
                return 0
            measure_jobs(options, uri, statedir)
            for at in range(options.restarts):
                end(uri, options.kill)
                if at == 0:
                    size = sum(path.stat().st_size for path in statedir.glob("*.sqlite*"))
                    print(f"database: {size / options.jobs:.0f} bytes a job")
                uri, took = start(options.fake, statedir)
                print(f"restart: {took:.2f} s, then {status_mib(pid_of(uri), 'VmRSS'):.0f} MiB", flush=True)
        finally:
            launch.stop(uri)
    return 0


if __name__ == "__main__":
    sys.exit(main())
