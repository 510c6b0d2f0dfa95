"""Jobs over many hosts, which are namespaces of this machine, in a lab with a real Slurm, Flux and ssh (root, Linux).

    python benchmarks/hosts.py [FIGURE...] [--hosts 4] [--many 16] [--tasks 400] [--runs 3] [--hyperqueue PYTHON]

    tasks   tasks (`true`) a second, sides in turn: fluxsched on one host, and on all by each engine; one `srun` a task;
            one `ssh` a task; `flux submit`; HyperQueue on one host (--hyperqueue: an interpreter that has it); one job
            of as many tasks by `srun`
    start   from the exec of `fluxsched start` until the keepers of all hosts are connected and their targets online, by
            the journal; --hosts and --many of them
    wide    from the grant of a job of one task on each of --many hosts until all have started
    rest    memory and share of a core of an instance of 64 made-up hosts (`processes:64`) and of its keepers, at rest
    loss    from the cut of a host's link until its target is offline
    output  MiB a second that a task on each of --many hosts writes, until all of it is at the instance
    paced   tasks on --many hosts write 1 GB a minute together: age of what they write once it is at the instance, which
            is what an output waits for credit, and 0.1 s at most until the keeper looks

Engines and peers that are not there are left out. All hosts share the cores of this machine, so the figures are lower
bounds; medians of `--runs` runs, and the load at the begin and at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import fluxsched
from fluxsched.core.jobspec import Jobspec

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.engine.lab.engines import ADD
from tests.engine.lab.hosts import Lab, until
from tests.engine.lab.packages import unavailable

PROCESSES = 64
"""Made-up hosts of the figure `rest`."""
REST_S = 20.0
"""How long an instance is looked at when it is at rest."""
SETTLE_S = 3.0
"""After a start, until it is at rest."""
AT_ONCE = 16
"""Commands that `xargs` runs at the same time."""
OUTPUT_BYTES = 16 << 20
"""That a task writes."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
PACED_BYTES_S = 1e9 / 60
"""That tasks write a second, together, for the figure `paced`."""
PACED_S, LINE_S = 20.0, 0.1
"""How long they do, and the time between two lines of a task."""
WRITER = """
import os, sys, time
size, lines, interval_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
for _ in range(lines):
    os.write(1, (b"%.6f" % time.time()).ljust(size - 1) + b"\\n")
    time.sleep(interval_s)
"""
TIMEOUT_S = 600.0
BEGIN = "HOSTS_BEGIN_S"
"""Variable with the time at which `fluxsched start` was executed (seconds since the epoch)."""
NOTING = f'{BEGIN}=$(date +%s.%N) exec "$@"'
INSIDE = "--inside"
"""First argument where this program is the initial program of an instance."""
HYPERQUEUE = """
import sys, time
from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig
with LocalCluster(worker_config=WorkerConfig()) as cluster:
    client, job, begin_s = cluster.client(), Job(), time.monotonic()
    for _ in range(int(sys.argv[1])):
        job.program(["true"], stdout=None, stderr=None)
    client.wait_for_jobs([client.submit(job)])
    print(time.monotonic() - begin_s)
"""


# ---- inside an instance


async def tasks_s(handle: fluxsched.AsyncHandle, count: int) -> float:
    """Return how long jobs of `true` take, from the first submit until the last has ended."""
    spec, begin_s = Jobspec.from_command(["true"]).to_json(), time.monotonic()
    ids = await handle.submit_many([spec] * count)
    await asyncio.gather(*[handle.wait(jobid) for jobid in ids])
    return time.monotonic() - begin_s


async def wide_s(handle: fluxsched.AsyncHandle, hosts: int) -> float:
    """Return the time from the grant of a job of a task on each host until all tasks have started."""
    spec = Jobspec.from_command(["true"], ntasks=hosts, nodes=hosts)
    jobid = await handle.submit(spec)
    await handle.wait(jobid)
    found = await handle.rpc("job-manager.lookup", {"id": jobid, "keys": ["eventlog"]})
    times = {event["name"]: event["timestamp"] for event in found["eventlog"]}
    return float(times["start"] - times["alloc"])


async def output_s(handle: fluxsched.AsyncHandle, hosts: int) -> float:
    """Return how long a job takes whose tasks write `OUTPUT_BYTES` each."""
    line = "x" * 99
    write = f"yes {line} | head -c {OUTPUT_BYTES}"
    begin_s = time.monotonic()
    jobid = await handle.submit(Jobspec.from_command(["sh", "-c", write], ntasks=hosts, nodes=hosts))
    result = await handle.wait(jobid)
    if result["status"]:
        raise RuntimeError(f"a job that writes ended so: {result}")
    return time.monotonic() - begin_s


async def ages_s(handle: fluxsched.AsyncHandle, hosts: int) -> list[float]:
    """Return the ages of lines that tasks write, when they are at the instance; all hosts here have one clock."""
    size, lines = int(PACED_BYTES_S * LINE_S / hosts), int(PACED_S / LINE_S)
    command = [sys.executable, "-c", WRITER, str(size), str(lines), str(LINE_S)]
    jobid = await handle.submit(Jobspec.from_command(command, ntasks=hosts, nodes=hosts))
    info, ended = await handle.rpc("instance.info"), asyncio.ensure_future(handle.wait(jobid))
    arrived: dict[Path, list[float]] = {}
    while not ended.done():
        for path in Path(info["rundir"]).glob(f"*/{fluxsched.format_f58(jobid, ascii=True)}/stdout.*"):
            times, now_s = arrived.setdefault(path, []), time.time()
            times += [now_s] * (path.stat().st_size // size - len(times))
        await asyncio.sleep(0.005)
    written = {path: [float(line[:20]) for line in path.read_bytes().splitlines()] for path in arrived}
    found = [at_s - was_s for path in arrived for at_s, was_s in zip(arrived[path], written[path], strict=False)]
    if len(found) < (lines - 5) * hosts:  # the last ones may arrive with the end of the job
        raise RuntimeError(f"{len(found)} of {lines * hosts} lines were seen: {await ended}")
    return found


async def online(handle: fluxsched.AsyncHandle, hosts: int) -> None:
    """Wait until so many targets are online, no more and no fewer."""
    while True:
        status = await handle.rpc("resource.status", {})
        if len(fluxsched.Idset.parse(status["online"])) == hosts:
            return
        await asyncio.sleep(0.01)


async def online_since_s(handle: fluxsched.AsyncHandle) -> float:
    """Return when the last target came online (seconds since the epoch)."""
    times = [0.0]
    async for batch in handle.stream("resource.journal"):
        times += [event["timestamp"] for event in batch["events"] if event["name"] == "online"]
        if not batch["events"]:  # that was all
            break
    return max(times)


async def inside(figure: str, hosts: int, count: int, runs: int) -> None:
    """Measure a figure in the instance around this process, and print it as JSON: a list of numbers."""
    async with fluxsched.connect() as handle:
        await online(handle, hosts)
        if figure == "start":
            found = [await online_since_s(handle) - float(os.environ[BEGIN])]
        elif figure == "loss":
            print("ready", flush=True)
            await online(handle, hosts - 1)
            found = [time.monotonic()]
        elif figure == "paced":
            found = await ages_s(handle, hosts)
        elif figure == "rest":
            info = await handle.rpc("instance.info")
            found = at_rest(int(info["pid"]))
        else:
            measure = {"tasks": tasks_s, "wide": wide_s, "output": output_s}[figure]
            found = [await measure(handle, count if figure == "tasks" else hosts) for _ in range(runs)]
        if figure in ("output", "paced"):
            found.append(peak_mib(int((await handle.rpc("instance.info"))["pid"])))
    print(json.dumps(found), flush=True)


def at_rest(instance: int) -> list[float]:
    """Return memory (MiB) and share of a core of an instance, then of all its keepers."""
    time.sleep(SETTLE_S)
    keepers = sorted(descendants(instance) - {os.getpid()})
    before = [cpu_s([instance]), cpu_s(keepers)]
    time.sleep(REST_S)
    shares = [(after - was) / REST_S for after, was in zip([cpu_s([instance]), cpu_s(keepers)], before, strict=True)]
    return [resident_mib([instance]), shares[0], resident_mib(keepers), shares[1], len(keepers)]


def descendants(pid: int) -> set[int]:
    children = {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    return children.union(*map(descendants, children)) if children else children


def cpu_s(pids: list[int]) -> float:
    rows = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids)
    return sum(int(row[11]) + int(row[12]) for row in rows) / TICKS


def resident_mib(pids: list[int]) -> float:
    """Return the resident memory, of which processes share a part with each other."""
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids) * PAGE_BYTES / (1 << 20)


def peak_mib(pid: int) -> float:
    """Return the most memory that a process has ever had."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) / 1024


# ---- outside, in a lab


def start_words(engine: str, hosts: int, figure: str, count: int = 0, runs: int = 1) -> list[str]:
    """Return the command that measures a figure in an instance with this engine ("" for none), for a lab's n1."""
    program = [sys.executable, str(Path(__file__).resolve()), INSIDE, figure, str(hosts), str(count), str(runs)]
    options = ["--engine", engine] if engine else []
    words = ["sh", "-c", NOTING, "sh", sys.executable, "-m", "fluxsched", "start", *options, "--", *program]
    return ["salloc", "-Q", f"-N{hosts}", "--no-kill", *words] if engine == "slurm" else words


def engines(hosts: int) -> dict[str, str]:
    """Return the engines that can run here, with their options."""
    options = {"slurm": "slurm", "flux": "flux", "ssh": f"ssh:n[1-{hosts}]"}
    return {name: option for name, option in options.items() if unavailable(name) is None}


@contextmanager
def lab_of(hosts: int) -> Iterator[Lab]:
    """A lab with all that is there."""
    with Lab(hosts) as lab:
        for name in engines(hosts):
            ADD[name](lab)
        yield lab


def measured(lab: Lab, words: list[str]) -> list[float]:
    """Return the numbers that a command on n1 prints as its last line."""
    text = lab.run("n1", *words, timeout_s=TIMEOUT_S)
    found = json.loads(text.splitlines()[-1])
    return found if isinstance(found, list) else [found]


def taken_s(lab: Lab, words: list[str]) -> float:
    begin_s = time.monotonic()
    lab.run("n1", *words, timeout_s=TIMEOUT_S)
    return time.monotonic() - begin_s


Side = Callable[[], float]


def task_sides(lab: Lab, hosts: int, count: int, hyperqueue: str | None) -> dict[str, Side]:
    """Return the sides of the figure `tasks`: each runs so many tasks and returns how long they took (seconds)."""
    sides: dict[str, Side] = {"fluxsched, one host": lambda: measured(lab, start_words("", 1, "tasks", count))[0]}
    for name, option in engines(hosts).items():
        words = start_words(option, hosts, "tasks", count)
        sides[f"fluxsched, {hosts} hosts by {name}"] = lambda words=words: measured(lab, words)[0]  # type: ignore[misc]
    at_once = f"seq {count} | xargs -P{AT_ONCE} -I@ "
    steps = shlex.quote(f"{at_once} srun -N1 -n1 -c1 --exact --mem=0 true")
    shells = {
        "slurm": ("one srun a task", f"salloc -Q -N{hosts} sh -c {steps}"),
        "ssh": ("one ssh a task", at_once + f"sh -c 'exec ssh n$(( @ % {hosts} + 1 )) true'"),
        "flux": ("flux submit", f"flux submit --quiet --wait --cc=1-{count} true"),
    }  # fmt: skip
    for part, (title, script) in shells.items():
        if unavailable(part) is None:
            sides[title] = lambda script=script: taken_s(lab, ["sh", "-c", script])  # type: ignore[misc]
    if unavailable("slurm") is None:
        wide = ["srun", "-Q", f"-N{hosts}", f"-n{count}", "--overcommit", "true"]
        sides[f"srun, one job of {count} tasks"] = lambda: taken_s(lab, wide)
    if hyperqueue is not None:
        queue = [hyperqueue, "-c", HYPERQUEUE, str(count)]
        sides["HyperQueue, one host"] = lambda: measured(lab, queue)[0]
    return sides


def tasks(options: argparse.Namespace) -> None:
    with lab_of(options.hosts) as lab:
        sides = task_sides(lab, options.hosts, options.tasks, options.hyperqueue)
        found: dict[str, list[float]] = {title: [] for title in sides}
        for _ in range(options.runs):
            for title, side in sides.items():
                found[title].append(options.tasks / side())
        for title, rates in found.items():
            print(f"{title:36} {statistics.median(rates):8.1f} tasks/s   ({min(rates):.1f} to {max(rates):.1f})")


def start(options: argparse.Namespace) -> None:
    for hosts in (options.hosts, options.many):
        with lab_of(hosts) as lab:
            for name, option in engines(hosts).items():
                found = [measured(lab, start_words(option, hosts, "start"))[0] for _ in range(options.runs)]
                show(f"{hosts} hosts online by {name}", found, "s")


def wide(options: argparse.Namespace) -> None:
    with lab_of(options.many) as lab:
        option = next(iter(engines(options.many).values()))
        found = measured(lab, start_words(option, options.many, "wide", runs=max(options.runs, 10)))
        show(f"a job on {options.many} hosts, alloc to start", [each * 1e3 for each in found], "ms")


def rest(options: argparse.Namespace) -> None:
    with Lab(1) as lab:
        words = start_words(f"processes:{PROCESSES}", PROCESSES, "rest")
        mib, share, keepers_mib, keepers_share, keepers = measured(lab, words)
    print(f"{PROCESSES} made-up hosts, instance at rest: {mib:.0f} MiB, {share:.2%} of a core")
    each_mib, each_share = keepers_mib / PROCESSES, keepers_share / PROCESSES
    print(f"its {keepers:.0f} other processes: {each_mib:.0f} MiB and {each_share:.3%} of a core a host")


def loss(options: argparse.Namespace) -> None:
    with lab_of(options.hosts) as lab:
        for name, option in engines(options.hosts).items():
            found = []
            for _ in range(options.runs):
                with lab.popen("n1", *start_words(option, options.hosts, "loss")) as process:
                    assert process.stdout is not None
                    until(lambda stream=process.stdout: stream.readline() == "ready\n", "all are online")  # type: ignore[misc]
                    time.sleep(SETTLE_S)
                    begin_s = time.monotonic()
                    lab.cut(f"n{options.hosts}")
                    found.append(json.loads(process.stdout.readline())[0] - begin_s)
                    lab.mend(f"n{options.hosts}")
                    process.communicate()
            show(f"cut noticed, {name}", found, "s")


def output(options: argparse.Namespace) -> None:
    with lab_of(options.many) as lab:
        option = next(iter(engines(options.many).values()))
        *found, peak = measured(lab, start_words(option, options.many, "output", runs=options.runs))
        mib = options.many * OUTPUT_BYTES / (1 << 20)
        show(f"output of {options.many} hosts, {mib:.0f} MiB", [mib / each for each in found], "MiB/s")
        print(f"memory of the instance meanwhile: {peak:.0f} MiB at most")


def paced(options: argparse.Namespace) -> None:
    with lab_of(options.many) as lab:
        option = next(iter(engines(options.many).values()))
        *found, peak = measured(lab, start_words(option, options.many, "paced"))
        show(f"1 GB/min of {options.many} hosts: age", [each * 1e3 for each in found], "ms")
        print(f"memory of the instance meanwhile: {peak:.0f} MiB at most")


def show(title: str, found: list[float], unit: str) -> None:
    print(f"{title:36} {statistics.median(found):8.2f} {unit}   ({min(found):.2f} to {max(found):.2f})", flush=True)


FIGURES = {
    "tasks": tasks,
    "start": start,
    "wide": wide,
    "rest": rest,
    "loss": loss,
    "output": output,
    "paced": paced,
}


def main() -> int:
    if sys.argv[1:2] == [INSIDE]:
        figure, *numbers = sys.argv[2:]
        asyncio.run(inside(figure, *map(int, numbers)))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", choices=[[], *FIGURES], default=[])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--many", type=int, default=16)
    parser.add_argument("--tasks", type=int, default=400)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--hyperqueue", metavar="PYTHON", help="an interpreter that has the package hyperqueue")
    options = parser.parse_args()
    reason = unavailable()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 1
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name in options.figures or FIGURES:
        FIGURES[name](options)
    print(f"load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
