"""Jobs per second inside a real Flux: ours beside Flux's own schedulers, Fluxion, and one that decides nothing.

    python benchmarks/flux.py [--nodes 1000,16384] [--jobs 1000] [--runs 3] [--only NAME,...] [--policy easy]

`flux` (flux-core 0.88 or later) must be on PATH; the modules of Fluxion are found where FLUX_MODULE_PATH_PREPEND says,
and left out where there are none. `backfill+pool` is Flux's sched-backfill on our pool (`pool-class=`). Each run is an
instance of its own with fake nodes of 64 cores and simulated jobs of one core: `flux submit --cc`, `flux queue drain`,
and the times that `flux jobs` tells, first submit to last inactive. Runs are interleaved, so that every scheduler meets
the same neighbours; a scheduler that would need too long is given fewer jobs. `nothing` (`broker/sched-nothing.py`) is
the ceiling of the instance.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fluxsched.flux.install import Installed, install, module_path

CORES = 64
WARM_UP = 50  # jobs before those that count, which also tell how many can count
BURST_LIMIT_S = 20.0  # a scheduler that needs longer for all jobs is given fewer
JOBS_MIN = 100
TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20

FLUXION = ("sched-fluxion-resource", "sched-fluxion-feasibility", "sched-fluxion-qmanager")
NOTHING = Path(__file__).with_name("broker") / "sched-nothing.py"
POOL = "fluxsched.flux.broker.pool"
SCHEDULERS = ("fluxsched", "sched-simple", "sched-fifo", "sched-backfill", "backfill+pool", "fluxion", "nothing")


def flux(*words: str) -> str:
    """What a Flux command prints."""
    return subprocess.run(["flux", *words], check=True, capture_output=True, text=True).stdout


# ---- inside the instance


def load(name: str, policy: str, python_path: str) -> list[str]:
    """Replace the default scheduler; gives the names of its modules."""
    modules = {
        "fluxsched": [[str(module_path()), f"policy={policy}", f"python-path={python_path}"]],
        "backfill+pool": [["sched-backfill", f"pool-class={POOL}"]],
        "fluxion": [[module] for module in FLUXION],
        "nothing": [[str(NOTHING)]],
    }.get(name, [[name]])
    if name != "sched-simple":
        flux("module", "remove", "sched-simple")
        for words in modules:
            flux("module", "load", *words)
    return [Path(words[0]).stem for words in modules]


def burst(jobs: int) -> float:
    """Jobs a second, first submit to last inactive."""
    flux("submit", f"--cc=1-{jobs}", "--quiet", "--setattr=exec.test.run_duration=1ms", "true")
    flux("queue", "drain")
    lines = flux("jobs", "-a", f"--count={jobs}", "-no", "{t_submit} {t_inactive} {status}").splitlines()
    times = [line.split() for line in lines]
    if len(times) != jobs or {status for *_, status in times} != {"COMPLETED"}:
        raise SystemExit(f"{jobs} jobs were to complete: {lines[0]} ...")
    return jobs / (max(float(end) for _, end, _ in times) - min(float(begin) for begin, *_ in times))


def tasks(pid: int) -> Iterator[tuple[str, float]]:
    """Every thread of a process and of its children: name and CPU microseconds."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
        fields = rest.split()
        yield name, (int(fields[11]) + int(fields[12])) * TICK_US
        for child in (task / "children").read_text().split():
            yield from tasks(int(child))


def memory_mib(broker: int) -> dict[str, float]:
    """Resident memory of the broker, and of the scheduler where it is a process of its own (0: it is a thread)."""
    children = [child for task in Path(f"/proc/{broker}/task").glob("*/children") for child in task.read_text().split()]
    modules = [child for child in children if Path(f"/proc/{child}/comm").read_text().startswith("sched")]
    return {"broker_mib": resident_mib(str(broker)), "module_mib": sum(map(resident_mib, modules))}


def resident_mib(pid: str) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_MIB


def inside(options: argparse.Namespace) -> None:
    """One run: prints its figures as JSON."""
    broker = int(flux("getattr", "broker.pid"))
    modules = load(options.inside, options.policy, options.python_path)
    flux("resource", "list")
    warm = burst(WARM_UP)
    jobs = min(options.jobs, max(JOBS_MIN, int(warm * BURST_LIMIT_S)))
    before = list(tasks(broker))
    rate = burst(jobs)
    after = list(tasks(broker))
    spent = sum(us for _, us in after) - sum(us for _, us in before)
    ours = sum(us for name, us in after if "sched" in name) - sum(us for name, us in before if "sched" in name)
    figures = {"jobs": jobs, "rate": rate, "all_us": spent / jobs, "sched_us": ours / jobs, **memory_mib(broker)}
    for module in reversed(modules):  # before the resource module, whose end some take for a failure
        flux("module", "remove", module)
    print(json.dumps(figures))


# ---- outside


def one_run(name: str, nodes: int, options: argparse.Namespace, installed: Installed) -> dict[str, float]:
    """Start an instance, measure in it, and end it."""
    command = [
        "flux", "start", "-s1",
        f"--conf=fake-resources.nnodes={nodes}", f"--conf=fake-resources.cores-per-node={CORES}",
        sys.executable, __file__, f"--inside={name}", f"--jobs={options.jobs}", f"--policy={options.policy}",
        f"--python-path={':'.join(installed.python_path)}",
    ]  # fmt: skip
    home = str(module_path().parents[3])
    python_path = {"PYTHONPATH": ":".join([home, *installed.python_path])} if name == "backfill+pool" else {}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **python_path})
    if done.returncode:
        raise SystemExit(f"{name} at {nodes} nodes: {done.stderr.strip()}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(
        "{nodes:6} {name:15} {rate:7.1f} jobs/s of {jobs:4}   CPU us a job: all {all_us:5.0f}, sched {sched_us:6.0f}"
        "   MiB: broker {broker_mib:4.0f}, module {module_mib:4.0f}   load {load:.1f}".format(
            nodes=nodes, name=name, load=os.getloadavg()[0], **figures
        ),
        flush=True,
    )
    return figures


def fluxion_is_here() -> bool:
    """Whether Flux would find Fluxion's modules."""
    places = os.environ.get("FLUX_MODULE_PATH_PREPEND", "").split(":")
    places += flux("config", "builtin", "module_path").strip().split(":")
    return all(any(Path(place, f"{module}.so").exists() for place in places) for module in FLUXION)


def compare(options: argparse.Namespace) -> None:
    """All runs, interleaved, and the medians."""
    with tempfile.TemporaryDirectory() as top:
        installed = install([], Path(top))
    names = [name for name in options.only.split(",") if name != "fluxion" or fluxion_is_here()]
    for nodes in map(int, options.nodes.split(",")):
        rates: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(options.runs):
            for name in names:
                rates[name].append(one_run(name, nodes, options, installed)["rate"])
        medians = ", ".join(f"{name} {statistics.median(found):.0f}" for name, found in rates.items())
        print(f"median jobs/s at {nodes} x {CORES}, {options.runs} runs: {medians}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="1000,16384")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default=",".join(SCHEDULERS))
    parser.add_argument("--policy", default="easy", help="of our module")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--python-path", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if shutil.which("flux") is None:
        print("flux.py: no flux on PATH: nothing measured; put flux-core 0.88 or later there")
        return 0
    if options.inside:
        inside(options)
    else:
        compare(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
