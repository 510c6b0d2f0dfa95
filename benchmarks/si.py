"""The scheduler interface: allocations and nodes a second, in process and over gRPC, latency of a paced load, memory.

    python benchmarks/si.py [--rounds 5] [--only "in process"] [--nodes 500,1000,2000,5000]

Needs fluxsched[si]. In process, figures are of CPU time from the first ask handed over to the last allocation called
back, with the asks ready beforehand; over gRPC they are of the wall clock, from the first ask sent to the last
allocation received, with the service as a process of its own and the client beside it. Medians of the rounds.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from si_load import Load, measure

from fluxsched.core.build import BUILD
from fluxsched.core.idset import EMPTY
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.sched.decisions import Granted
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.hooks import PASS, Never
from fluxsched.sched.registry import make
from fluxsched.yunikorn.in_process import InProcessScheduler
from fluxsched.yunikorn.service import make_machine
from fluxsched.yunikorn.wire import Address, parse_address

SIZES = (500, 1000, 2000, 5000)
LIMIT_S = 120.0


class Sized:
    """A plugin that is asked about classes of targets; it counts how often."""

    name = "sized"

    def __init__(self) -> None:
        self.asked = 0

    def filter(self, shape: Any, kind: Any) -> Any:
        self.asked += 1
        return PASS if kind.cores >= shape.request.cores else Never("too small")


class Preferring:
    """A plugin that prefers large targets."""

    name = "preferring"

    def score(self, shape: Any, kind: Any) -> int:
        return min(int(kind.cores), 100)


class Known:
    """A plugin that is asked what is allowed at all."""

    name = "known"

    def pre_filter(self, shape: Any, group: Any) -> Any:
        return PASS


class Allowing:
    """A plugin that is asked about each job, and lets it start."""

    name = "allowing"

    def permit(self, job: Any, fit: Any, now_s: float) -> Any:
        return PASS


def pass_s(jobs: int, plugins: list[Any]) -> float:
    """CPU seconds of a pass that starts so many equal jobs on targets of 4 classes."""
    each = -(-jobs // (16 + 32 + 48 + 64))
    lite, first = [], 0
    for cores in (16, 32, 48, 64):
        lite.append({"rank": f"{first}-{first + each - 1}", "children": {"core": f"0-{cores - 1}"}})
        first += each
    execution = {"R_lite": lite, "starttime": 0.0, "expiration": 0.0, "nodelist": [f"n[0-{first - 1}]"]}
    resources = ResourceSet.parse({"version": 1, "execution": execution})
    scheduler = Scheduler(make("firstfit", {}), notify=False, plugins={"": plugins} if plugins else None)
    scheduler.grown("default", resources, resources.ranks, EMPTY)
    spec = Jobspec.from_command(["true"])
    for jobid in range(jobs):
        scheduler.alloc(jobid, 16, 1, 0.0, spec)
    gc.collect()
    begin_s = time.process_time()
    started = sum(isinstance(effect, Granted) for effect in scheduler.schedule(1.0))
    assert started == jobs, started
    return time.process_time() - begin_s


class Manager:
    """Counts what it is called back with."""

    def __init__(self) -> None:
        self.nodes = self.applications = self.allocations = 0

    def UpdateNode(self, response: Any) -> None:
        self.nodes += len(response.accepted)

    def UpdateApplication(self, response: Any) -> None:
        self.applications += len(response.accepted)

    def UpdateAllocation(self, response: Any) -> None:
        self.allocations += len(response.new)


def in_process(load: Load) -> tuple[float, float]:
    """Nodes a second, allocations a second."""
    manager, api = Manager(), InProcessScheduler(make_machine())
    api.RegisterResourceManager(load.registration(), manager)
    nodes, applications, asks = (list(each) for each in (
        load.node_requests(), load.application_requests(), load.ask_requests()
    ))  # fmt: skip
    nodes_s = _until(api, api.UpdateNode, nodes, lambda: manager.nodes == load.nodes)
    _until(api, api.UpdateApplication, applications, lambda: manager.applications == load.queues)
    asks_s = _until(api, api.UpdateAllocation, asks, lambda: manager.allocations == load.asks)
    return load.nodes / nodes_s, load.asks / asks_s


def _until(
    api: InProcessScheduler, call: Callable[[Any], None], requests: list[Any], done: Callable[[], bool]
) -> float:
    """CPU seconds until all requests were answered."""
    gc.collect()
    begin_s, end_s = time.process_time(), time.monotonic() + LIMIT_S
    for request in requests:
        call(request)
    while not done():
        assert time.monotonic() < end_s, "not all was answered"
        api.turn(time.monotonic())
    return time.process_time() - begin_s


@contextmanager
def service() -> Iterator[tuple[Address, int]]:
    """A scheduler service as a process: its address and process id."""
    with tempfile.TemporaryDirectory() as directory:
        words = [str(Path(sys.executable).with_name("fluxsched")), "si", "serve", "--bind", f"unix:{directory}/s"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                yield parse_address(process.stdout.readline().strip()), process.pid
            finally:
                process.terminate()


def resident_mb(pid: int) -> float:
    """The most memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1000


class Row(NamedTuple):
    """One figure: what it is, what was asked for, and how a load comes to it."""

    name: str
    goal: str
    figure: Callable[[Load], float]
    load: Load


def rows(sizes: tuple[int, ...]) -> list[Row]:
    """All that is measured."""
    most = sizes[-1]
    many = Load(nodes=most, asks=50_000)
    here, there, asks = f"in process, {most:,} nodes", f"gRPC, {most:,} nodes", "10,000 asks of 8 shapes, a second"
    return [
        Row("pass of 10,000 equal jobs on 4 classes, with 3 plugins to none", "<= 1.2", _with_plugins, Load()),
        Row("calls of filter for 50,000 equal jobs on 4 classes", "4", _filter_calls, many),
        *[Row(f"in process, {n:,} nodes, {asks}", ">= 20,000", _allocations, Load(nodes=n)) for n in sizes],
        *[Row(f"gRPC, {n:,} nodes, {asks}", ">= 12,000", _grpc, Load(nodes=n)) for n in sizes],
        Row(f"{there}, 50,000 asks, first ask to last allocation, s", "<= 5", _grpc_s, many),
        Row(f"{here}, each ask of another size, a second", ">= 10,000", _allocations, Load(nodes=most, shapes=0)),
        Row(f"{here}, 1,000 leaf queues, a second", "half of one's", _allocations, Load(nodes=most, queues=1000)),
        Row(f"{here} in one message, a second", ">= 20,000", _nodes, Load(nodes=most, asks=1)),
        Row(f"{here}, one a message, a second", ">= 5,000", _nodes, Load(nodes=most, asks=1, node_batch=1)),
        Row(f"{there}, 2,000 asks a second, ask to allocation, p99, ms", "<= 20", _paced_ms, Load(nodes=most)),
        Row(f"{there}, 50,000 allocations, memory of the service, MB", "<= 200", _memory_mb, many),
    ]


def _with_plugins(load: Load) -> float:
    without_s = pass_s(load.asks, [])
    return pass_s(load.asks, [Sized(), Known(), Allowing()]) / without_s


def _filter_calls(load: Load) -> float:
    sized = Sized()
    pass_s(load.asks, [sized, Known(), Preferring()])
    return sized.asked


def _nodes(load: Load) -> float:
    return in_process(load)[0]


def _allocations(load: Load) -> float:
    return in_process(load)[1]


def _grpc(load: Load) -> float:
    with service() as (address, _):
        return measure(address, None, load, 0.0, LIMIT_S).allocations_per_s


def _grpc_s(load: Load) -> float:
    return load.asks / _grpc(load)


def _paced_ms(load: Load) -> float:
    with service() as (address, _):
        return 1000 * measure(address, None, load, 2000.0, LIMIT_S).latency_s(0.99)


def _memory_mb(load: Load) -> float:
    with service() as (address, pid):
        measure(address, None, load, 0.0, LIMIT_S)
        return resident_mb(pid)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nodes", default=",".join(map(str, SIZES)), help="numbers of nodes")
    parser.add_argument("--only", default="", help="rows with this in their names")
    options = parser.parse_args()
    print(f"build: {BUILD}")
    for name, goal, figure, load in rows(tuple(int(size) for size in options.nodes.split(","))):
        if options.only in name:
            found = statistics.median(figure(load) for _ in range(options.rounds))
            print(f"{name}: {found:,.1f} (goal {goal})", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
