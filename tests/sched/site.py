"""One small site for the scheduler's tests: resources, jobspecs, and a scheduler that is checked after each event."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import Any, ClassVar

from fluxsched.core.constraint import EVERYTHING, Constraint
from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Count, Jobspec, Request
from fluxsched.core.resources import ResourceSet
from fluxsched.sched.decisions import Denied, Effect, Granted
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.policy import BEST_FIT, LEAST_LOST, WORST_FIT, Decision, Policy, View
from fluxsched.sched.registry import load


def make_r(ranks: str, cores: int = 4, gpus: int = 0, expiration: float = 0.0, **properties: str) -> ResourceSet:
    """make_r("0-3", cores=4, gpus=1, properties={"ssd": "0-1"}): equal targets on hosts n0, n1, ..."""
    children = {"core": f"0-{cores - 1}" if cores > 1 else "0"}
    if gpus:
        children["gpu"] = f"0-{gpus - 1}" if gpus > 1 else "0"
    execution: dict[str, Any] = {
        "R_lite": [{"rank": ranks, "children": children}],
        "starttime": 0.0,
        "expiration": expiration,
        "nodelist": [f"n[{ranks}]"],
    }
    if properties:
        execution["properties"] = properties
    return ResourceSet.parse({"version": 1, "execution": execution})


def request_of(
    nodes: int | Count | None = None,
    slots: int | Count = 1,
    cores: int = 1,
    gpus: int = 0,
    exclusive: bool = False,
    constraint: object = None,
) -> Request:
    """request_of(nodes=2, slots=1, cores=4): counts are ints or Counts; a constraint is its RFC 31 object."""

    def count(value: int | Count) -> Count:
        return value if isinstance(value, Count) else Count.fixed(value)

    return Request(
        nodes=None if nodes is None else count(nodes),
        slots=count(slots),
        cores=cores,
        gpus=gpus,
        exclusive=exclusive,
        constraint=EVERYTHING if constraint is None else Constraint.parse(constraint),
    )


def spec(
    nslots: int = 1,
    cores: int = 1,
    gpus: int = 0,
    nodes: int | None = None,
    exclusive: bool = False,
    duration: float = 0.0,
    constraint: object = None,
    queue: str | None = None,
    parts: tuple[tuple[int | str, object], ...] = (),
    name: str | None = None,
    max_hops: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A jobspec as it comes over the wire: slots of cores and GPUs, on so many nodes or anywhere.

    `parts` are pairs of nodes and a constraint or None, `more` attributes of the system; None leaves one out.
    """
    children = [{"type": "core", "count": cores}] + ([{"type": "gpu", "count": gpus}] if gpus else [])
    slot: dict[str, Any] = {"type": "slot", "count": nslots, "label": "task", "with": children}
    node: dict[str, Any] = {"type": "node", "count": nodes, "with": [slot]}
    if exclusive:
        node["exclusive"] = True
    ours = None if max_hops is None else {"max-hops": max_hops}
    job = None if name is None else {"name": name}
    given = {"constraints": constraint, "queue": queue, "job": job, "fluxsched": ours, **more}
    system = {key.replace("_", "-"): value for key, value in given.items() if value is not None}
    system["duration"] = duration
    several = [
        {**node, "count": count, "exclusive": True, "with": [{**slot, "label": f"p{at}"}], "constraints": own or {}}
        for at, (count, own) in enumerate(parts)
    ]
    labels = [f"p{at}" for at in range(len(parts))] or ["task"]
    return {
        "version": 999 if parts else 1,
        "resources": several or [slot if nodes is None else node],
        "tasks": [{"command": ["true"], "slot": label, "count": {"per_slot": 1}} for label in labels],
        "attributes": {"system": system},
    }


def policy_of(policy: Policy | str) -> Policy:
    """Return the policy that `--scheduler TEXT` would have, or the one that is given."""
    return load(policy)[0] if isinstance(policy, str) else policy


def scheduler_of(
    policy: Policy | str, *args: Any, policies: Mapping[str, Policy | str] | None = None, **options: Any
) -> Scheduler:
    """Return a scheduler whose policies may be named."""
    own = {queue: policy_of(each) for queue, each in (policies or {}).items()}
    return Scheduler(policy_of(policy), *args, policies=own, **options)


def under_fair(policy: Policy) -> Policy:
    """Return `fair` around a policy of a test."""
    return type(policy_of("fair"))(policy)  # type: ignore[call-arg]


class Scripted(type(policy_of("easy"))):  # type: ignore[misc]
    """EASY, and then what a test wants."""

    name = "scripted"
    OPTIONS: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.wanted: list[Decision] = []
        self.seen: list[tuple[float, dict[int, int], int]] = []

    def schedule(self, view: View, now_s: float) -> Iterator[Decision]:
        yield from super().schedule(view, now_s)
        self.preemptions = view.preemptions
        self.seen.append((now_s, dict(view.preemptions.going), view.preemptions.left(now_s)))
        while self.wanted:
            yield self.wanted.pop(0)


def holding(scheduler: Scheduler, jobid: int) -> Any:
    """Return what the ledger knows of a job that runs."""
    return scheduler._ledger.allocations[jobid]


def beneficiaries(scheduler: Scheduler) -> list[int]:
    """Return the jobs for which others are going."""
    return list(scheduler._preemptions.awaited)


class Bench:
    """A scheduler that is checked after each event, and its grants kept to be freed.

    A policy may be named, resources given by their ranks, a job by what `spec` takes.
    """

    def __init__(
        self,
        policy: Policy | str,
        *groups: str,
        queues: Mapping[str, str | tuple[str, ...]] | None = None,
        **options: Any,
    ) -> None:
        self.scheduler = scheduler_of(policy, groups or ("default",), queues, **options)
        self.granted: dict[int, ResourceSet] = {}
        self.now_s = 100.0

    def grow(self, resources: ResourceSet | str, offline: str = "", group: str = "default") -> list[Effect]:
        added = make_r(resources) if isinstance(resources, str) else resources
        down = Idset.parse(offline)
        return self.did(self.scheduler.grown(group, added, added.ranks - down, down))

    def shrink(self, ranks: str, typed: bool = True, group: str = "default", now_s: float = 0.0) -> list[Effect]:
        return self.did(self.scheduler.shrunk(group, Idset.parse(ranks), typed, now_s))

    def submit(self, jobid: int, jobspec: Any = None, priority: int = 16, **wanted: Any) -> list[Effect]:
        asked = spec(**wanted) if jobspec is None else jobspec
        return self.did(self.scheduler.alloc(jobid, priority, 1000, float(jobid), asked, self.now_s))

    def run(self) -> list[Effect]:
        return self.did(list(self.scheduler.schedule(self.now_s)))

    def starts(self) -> dict[int, str]:
        """Run a pass; return the ranks of the jobs that it starts, in order."""
        return started(self.run())

    def cancel(self, jobid: int) -> list[Effect]:
        return self.did(self.scheduler.cancel(jobid))

    def why(self, jobid: int) -> str:
        """Return the reason alone."""
        return self.scheduler.why(jobid, self.now_s).reason

    def free(self, jobid: int, ranks: str | None = None) -> list[Effect]:
        """Free the job's whole R, or these ranks of it; finally when nothing is left."""
        held = self.granted.pop(jobid)
        part = held if ranks is None else held.restrict(Idset.parse(ranks))
        if rest := held.ranks - part.ranks:
            self.granted[jobid] = held.restrict(rest)
        return self.did(self.scheduler.free(jobid, part, not rest))

    def did(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, Granted):
                assert effect.jobid not in self.granted, "granted twice"
                self.granted[effect.jobid] = ResourceSet.parse(effect.R)
        self.scheduler.check()
        return effects

    @property
    def allocated(self) -> ResourceSet:
        return self.scheduler.report.resource_status()[2]

    @property
    def places(self) -> dict[int, str]:
        """Ranks by the job that holds them."""
        return {jobid: str(held.ranks) for jobid, held in self.granted.items()}


def started(effects: Iterable[Effect]) -> dict[int, str]:
    """Return the ranks of jobs that start, in order."""
    grants = [each for each in effects if isinstance(each, Granted)]
    return {each.jobid: str(Idset.of([part.rank for part in each.fit.parts])) for each in grants}


def size_of(root: object) -> int:
    """Return the number of entries in all containers that can be reached from an object."""
    seen: set[int] = set()
    found, entries = [root], 0
    while found:
        one = found.pop()
        if id(one) in seen or isinstance(one, type | ModuleType | FunctionType):
            continue
        seen.add(id(one))
        if isinstance(one, dict | list | set):
            entries += len(one)
        found += gc.get_referents(one)
    return entries


class Later(str):
    """The reason of a job that waits."""

    __slots__ = ()


class Never(str):
    """The reason of a job that is denied."""

    __slots__ = ()


class Places:
    """A group on which one request after the other is tried, by any placement: a fit, or why there is none."""

    def __init__(self, *resources: ResourceSet, offline: str = "", **options: Any) -> None:
        queues = dict.fromkeys((BEST_FIT, WORST_FIT, LEAST_LOST), "default")
        own = {name: f"firstfit:placement={name}" for name in queues}
        self.bench = Bench("firstfit", queues=queues, policies=own, **options)
        for each in resources:
            self.bench.grow(each, offline)
        self.scheduler = self.bench.scheduler
        self.last = 0

    def take(self, request: Request, placement: str = BEST_FIT) -> Any:
        """Start a job that asks for this; `take(...).parts` are (rank, cores, GPUs, amounts)."""
        self.last += 1
        asked = replace(Jobspec.from_command(["true"]), request=request, queue=placement)
        effects = [*self.bench.submit(self.last, asked), *self.bench.run()]
        for effect in effects:
            if isinstance(effect, Denied):
                return Never(effect.note)
            if isinstance(effect, Granted):
                return effect.fit
        why = Later(self.bench.why(self.last))
        self.bench.cancel(self.last)
        return why

    def find(self, request: Request, placement: str = BEST_FIT) -> Any:
        """Return what `take` would, and leave all as it was."""
        found = self.take(request, placement)
        if not isinstance(found, str):
            self.bench.free(self.last)
        return found

    def ranks(self, request: Request, placement: str = BEST_FIT) -> str:
        found = self.find(request, placement)
        assert not isinstance(found, str), found
        return str(Idset.of([part.rank for part in found.parts]))

    def occupy(self, ranks: str | Idset, **wanted: Any) -> None:
        """Start a job on each of these targets, of whole nodes unless something else is wanted."""
        for rank in Idset.parse(ranks) if isinstance(ranks, str) else ranks:
            there = {"ranks": [str(rank)]}
            found = self.take(request_of(constraint=there, **(wanted or {"nodes": 1, "exclusive": True})))
            assert not isinstance(found, str), found

    def up(self, ranks: str) -> None:
        self.bench.did(self.scheduler.went_online(Idset.parse(ranks)))

    def down(self, ranks: str) -> None:
        self.bench.did(self.scheduler.went_offline(Idset.parse(ranks)))


def limit(*names: str) -> Any:
    """Return a limit or time of the scheduler, or several, by name, wherever they are defined."""
    found = []
    for name in names:
        (value,) = {getattr(module, name) for module in _defining(name)}
        found.append(value)
    return found if len(names) > 1 else found[0]


@contextmanager
def lowered(**limits: float) -> Iterator[None]:
    """Set limits of the scheduler by their names."""
    before = [(module, name, getattr(module, name)) for name in limits for module in _defining(name)]
    for module, name, _ in before:
        setattr(module, name, limits[name])
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


HOMES = ("fluxsched.sched", "fluxsched.yunikorn.tree")


def _defining(name: str) -> list[ModuleType]:
    loaded = [module for path, module in sys.modules.items() if path.startswith(HOMES)]
    found = [module for module in loaded if hasattr(module, name)]
    assert found, f"there is no {name}"
    return found


class Study:
    """What became of a workload: when each job started, and every estimate that was made for it, with its time."""

    def __init__(self) -> None:
        self.starts: dict[int, float] = {}
        self.estimates: dict[int, list[tuple[float, float]]] = {}
        self.selections: dict[int, str] = {}


def simulate(
    policy: Policy | str,
    resources: ResourceSet,
    jobs: list[tuple[float, float, dict[str, Any]]],
    fresh: bool = False,
    meanwhile: dict[float, Callable[[Scheduler], object]] | None = None,
) -> Study:
    """simulate(policy, resources, jobs, ...): jobs are (submit, run, spec); all events of an instant, then a pass.

    A job ends after `run`, or its limit if that is shorter. With `fresh` every pass looks at all who wait; `meanwhile`
    maps times to what else happens then.
    """
    scheduler, study = scheduler_of(policy), Study()
    scheduler.grown("default", resources, resources.ranks, Idset())
    happens = {at: [] for at, _, _ in jobs} | {at: [] for at in meanwhile or ()}
    ends: dict[float, list[int]] = {}
    for jobid, (at, _, _) in enumerate(jobs):
        happens[at].append(jobid)
    times = sorted(happens)
    group = scheduler.group("default")
    while times:
        now_s = times.pop(0)
        for jobid in ends.pop(now_s, ()):
            scheduler.free_all(jobid)
        for jobid in happens.pop(now_s, ()):
            scheduler.alloc(jobid, 16, 1, now_s, jobs[jobid][2])
        if meanwhile and now_s in meanwhile:
            meanwhile[now_s](scheduler)
        if fresh:
            group.invalidate_pass()
            for queue in group.queues.values():
                queue.replans = False
        for effect in scheduler.schedule(now_s):
            if isinstance(effect, Granted):
                study.starts[effect.jobid] = now_s
                study.selections[effect.jobid] = effect.selection
                limit_s = jobs[effect.jobid][2]["attributes"]["system"]["duration"]
                end_s = now_s + min(jobs[effect.jobid][1], limit_s or float("inf"))
                ends.setdefault(end_s, []).append(effect.jobid)
                if end_s not in times:
                    times = sorted([*times, end_s])
        scheduler.check()
        for queue in group.queues.values():
            for kept in queue.planned.values():
                study.estimates.setdefault(kept.jobid, []).append((now_s, kept.start_s))
    return study
