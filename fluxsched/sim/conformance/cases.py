"""The cases of the suite: ordinary days with drains and moves, and situations in which schedulers have failed.

Law: a case is a function of a harness and a source of chance, so its seed is enough to see it again.
It returns False where the policy does not claim what is judged. Laws (`checker`) are judged in every case, whatever it
was made for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import frexp, inf
from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.sim.conformance.harness import BEGIN_S, URGENCY, Harness, MakeHarness
from fluxsched.sim.conformance.rule_broken import RuleBroken
from fluxsched.sim.engine.jobspecs import with_system
from fluxsched.system.clock import Chance, seeded

MACHINE = "8x4+1"
LIMITS_S = (10.0, 20.3, 49.9, 100.0, 299.7)
"""Some of them no binary fractions, so that sums with them are rounded."""

BEGINS_S = (2.0**18 - 400, BEGIN_S, 2.0**31 - 200)
"""When cases begin, in turn: from a power of two on, times are coarser than before it, and sums round otherwise. The
first is passed in a simulation, which begins at 0, the last by the clock in 2038."""

INSTANTS = 20
ARRIVALS = 3
STEP_S = 40.0
"""The longest time between two instants; much shorter than most jobs, so that queues build up."""

ROUNDS = 4
"""Passes that are dropped in one case."""

URGENCIES = (15, 16, 17)

MANY = 8
"""Jobs that come at once before such a pass; queues stay short, since some policies plan all jobs on the real pool."""

AFTER_S = (0.0, 15.0, 40.0, None)
"""When jobs may be preempted, in the case of that."""

SPECS_KEPT = 512
"""More than there are in the cases but for those of a random limit."""

BURST = 60
RECURSION = 2000
FAR_S = 10_000.0

EMPTY_CONSTRAINTS: tuple[dict[str, object], ...] = (
    {"or": []}, {"and": []}, {"and": [{"or": []}]}, {"not": [{"not": []}]},
)
"""RFC 31: each of these matches everything."""


def spec_of(limit_s: float = 0.0, *, constraint: object = None, **asked: object) -> Jobspec:
    """A job, in the words of `Jobspec.from_command`; the same words are read once."""
    return _read(limit_s, json.dumps(constraint), **asked)


@lru_cache(SPECS_KEPT)
def _read(limit_s: float, constraint: str, **asked: Any) -> Jobspec:
    return Jobspec.from_command(["true"], duration_s=limit_s, constraint=json.loads(constraint), **asked)


def any_spec(chance: Chance, limit_s: float) -> Jobspec:
    """Parts of a target, slots anywhere, or whole targets."""
    kind = chance.random()
    if kind < 0.5:
        return spec_of(limit_s, cores_per_task=chance.randint(1, 4), gpus_per_task=int(chance.random() < 0.2))
    if kind < 0.7:
        return spec_of(limit_s, ntasks=chance.randint(2, 6))
    constraint = {"ranks": ["0-5"]} if chance.random() < 0.3 else None
    return spec_of(limit_s, nodes=chance.randint(1, 6), exclusive=chance.random() < 0.5, constraint=constraint)


def arrive(harness: Harness, chance: Chance, jobs: int, urgencies: Sequence[int] = (URGENCY,)) -> None:
    """So many jobs of any kind, all with limits, some of which are too short."""
    for _ in range(jobs):
        limit_s = chance.choice(LIMITS_S)
        run_s = limit_s * chance.uniform(0.2, 1.2)
        harness.submit(any_spec(chance, limit_s), run_s, chance.choice(urgencies))


def days(harness: Harness, chance: Chance, happens: Callable[[Harness, Chance], None] | None = None) -> None:
    """Jobs come and go, and something happens now and then."""
    for _ in range(INSTANTS):
        arrive(harness, chance, chance.randint(0, ARRIVALS))
        if happens is not None:
            happens(harness, chance)
        harness.decide()
        harness.advance(harness.now_s + chance.uniform(1.0, STEP_S))


def some(harness: Harness, chance: Chance) -> Idset:
    """About half of the targets."""
    return Idset.of([rank for rank in harness.ranks if chance.random() < 0.5])


def take_away(harness: Harness, chance: Chance) -> None:
    """Some targets go offline, are drained, moved away, or lost with their jobs."""
    targets = some(harness, chance)
    if targets:
        chance.choice((harness.offline, harness.drain, harness.move, harness.lose))(targets)


def change_availability(harness: Harness, chance: Chance) -> None:
    """Targets go and come, jobs of other urgencies come, and jobs are withdrawn."""
    arrive(harness, chance, 1, URGENCIES)
    what = chance.random()
    if what < 0.3:
        take_away(harness, chance)
    elif what < 0.6:
        harness.restore()
    elif what < 0.7 and harness.truth.waiting:
        harness.cancel(chance.choice(sorted(harness.truth.waiting)))


def disorder(harness: Harness, chance: Chance) -> None:
    """Most waiting jobs are canceled, held, or moved in the queue."""
    for jobid in sorted(harness.truth.waiting):
        what = chance.random()
        if what < 0.4:
            harness.cancel(jobid)
        elif what < 0.8:
            harness.prioritize(jobid, chance.choice((0, 5, 31)))


def dropped(make: MakeHarness, chance: Chance, happens: Callable[[Harness, Chance], None]) -> bool:
    """Pass after pass is dropped, since something happens; the next one begins with what has become of it."""
    harness = make(MACHINE)
    for _ in range(ROUNDS):
        arrive(harness, chance, MANY)
        harness.decide(chance.randint(1, 3))
        happens(harness, chance)
        harness.decide()
        harness.restore()
        harness.advance(harness.now_s + STEP_S)
    for jobid in sorted(harness.truth.on_hold):
        harness.prioritize(jobid, URGENCY)
    harness.finish()
    return True


# ---- the cases


def ordinary(make: MakeHarness, chance: Chance) -> bool:
    """Mixed jobs on a machine whose targets come and go."""
    harness = make(MACHINE)
    days(harness, chance, change_availability)
    harness.restore()
    harness.finish()
    return True


def head(make: MakeHarness, chance: Chance) -> bool:
    """Nothing happens that would excuse a broken promise: limits hold, the order stays, no target goes."""
    harness = make(MACHINE)
    harness.checker.promises_hold = True
    days(harness, chance)
    harness.finish()
    return bool(harness.checker.promised)


def deterministic(make: MakeHarness, chance: Chance) -> bool:
    """The same days twice."""
    seed = chance.getrandbits(32)
    said = []
    for _ in range(2):
        harness, again = make(MACHINE), seeded(seed)
        days(harness, again)
        said.append(harness.checker.said)
    for at, (one, other) in enumerate(zip(*said, strict=False)):
        if one != other:
            raise RuleBroken(
                "deterministic", f"decision {at} is {one[0]} {one[1]} the first time, and {other[0]} {other[1]}"
            )
    return True


def targets(make: MakeHarness, chance: Chance) -> bool:
    """Targets go while a pass is under way: it is dropped, and the next one begins on what is left."""
    return dropped(make, chance, take_away)


def jobs(make: MakeHarness, chance: Chance) -> bool:
    """Jobs are withdrawn, held and moved in the queue while a pass is under way."""
    return dropped(make, chance, disorder)


def expiration(make: MakeHarness, chance: Chance) -> bool:
    """Limits of running jobs are changed, some to nearly nothing, and so is the end of the resources."""
    harness = make(MACHINE)

    def change(harness: Harness, chance: Chance) -> None:
        for jobid in [jobid for jobid in harness.running if chance.random() < 0.3]:
            harness.limit(jobid, chance.choice((0.5, 30.0, 500.0)))
        if chance.random() < 0.2:
            harness.resources_end(FAR_S * chance.randint(2, 5))

    harness.submit(spec_of(cores_per_task=2), run_s=FAR_S)  # it has no limit of its own
    days(harness, chance, change)
    harness.finish()
    return True


def reload(make: MakeHarness, chance: Chance) -> bool:
    """The scheduler module is reloaded in the middle of a pass: another policy object takes over running jobs."""
    harness = make(MACHINE)
    for _ in range(ROUNDS):
        arrive(harness, chance, MANY)
        harness.decide()
        harness.advance(harness.now_s + STEP_S)
        harness.decide(1)
        harness = harness.reloaded()
    harness.finish()
    return True


def preempts(make: MakeHarness, chance: Chance) -> bool:
    """The jobs of one user fill the machine, and most may be preempted; then others come, and nothing else happens."""
    harness = make("8x4")  # where there are GPUs, whose cores are all taken may be within the share
    for _ in range(MANY * 4):
        spec = spec_of(FAR_S, cores_per_task=chance.randint(1, 2))
        harness.submit(_preemptible(spec, chance.choice(AFTER_S)), FAR_S)
    harness.decide()
    for user in (2, 3):
        for _ in range(chance.randint(1, ARRIVALS)):
            harness.submit(any_spec(chance, FAR_S), FAR_S, userid=user)
    for _ in range(2 * INSTANTS):
        harness.decide()
        harness.advance(harness.now_s + chance.uniform(1.0, STEP_S / 4))
    harness.finish()
    return bool(harness.checker.preemptions.preempted)


def _preemptible(spec: Jobspec, after_s: float | None) -> Jobspec:
    raw = spec.raw if after_s is None else with_system(spec, "preemptible-after", after_s)
    return Jobspec.parse(raw)


def burst(make: MakeHarness, chance: Chance) -> bool:
    """60 submits at once behind a blocked head."""
    harness = make("64x4")
    harness.submit(spec_of(nodes=3, exclusive=True), run_s=100.0)
    harness.decide()
    harness.submit(spec_of(100.0, nodes=64, exclusive=True))
    harness.decide()
    for _ in range(BURST):
        harness.submit(spec_of(50.0, nodes=1, exclusive=True))
    harness.finish()
    return True


def recursion(make: MakeHarness, chance: Chance) -> bool:
    """2,000 jobs become runnable in one instant, in one pass."""
    harness = make(f"{RECURSION // 2}x2")
    for _ in range(RECURSION):
        harness.submit(spec_of(10.0))
    harness.finish()
    return True


def not_nothing(make: MakeHarness, chance: Chance) -> bool:
    """Constraints without a word in them: `{"not":[]}` is refused before the policy, the others match everything."""
    harness = make(MACHINE)
    harness.submit(spec_of(10.0, constraint={"not": []}))
    for constraint in EMPTY_CONSTRAINTS:
        harness.submit(spec_of(10.0, nodes=5, constraint=constraint))
    harness.finish()
    return True


def rounding(make: MakeHarness, chance: Chance) -> bool:
    """A reservation begins at a power of two: a difference and a sum disagree on which jobs end by then."""
    harness = make("3x1")
    power_s = 2.0 ** frexp(harness.now_s)[1]
    harness.advance(power_s - 20)
    for rank, run_s in ((1, 13.0), (2, 20.0)):
        harness.submit(spec_of(run_s, nodes=1, constraint={"ranks": [str(rank)]}))
    harness.decide()
    harness.submit(spec_of(5.0, nodes=2, constraint={"ranks": ["0,2"]}))
    harness.submit(spec_of(8.0, nodes=2))
    harness.finish()
    return True


def queue_head(make: MakeHarness, chance: Chance) -> bool:
    """Two queues on disjoint targets; the first job of one needs both of its targets, which come free one by one, while
    the first of the other waits much longer. Jobs of one target go on coming.
    """
    harness = make("4x1")
    for ranks, run_s in (("0-1", FAR_S), ("2", 10.0), ("3", 20.0)):
        harness.submit(_in_queue("batch", run_s, len(Idset.parse(ranks)), ranks), run_s)
    harness.decide()
    far = harness.submit(_in_queue("batch", 100.0, 2, "0-1"), 100.0)
    first = harness.submit(_in_queue("debug", 100.0, 2, "2-3"), 100.0)
    harness.decide()
    if far not in harness.checker.promised or getattr(harness.checker, "ACCOUNTS", False):
        return False  # it reserves for none, or in an order of its own, as that of accounts, which span queues
    begun_s = harness.now_s
    for at in range(1, 13):
        harness.submit(_in_queue("debug", 60.0, 1, "2-3"), 60.0)
        harness.decide()
        harness.advance(begun_s + 5.0 * at)
        harness.decide()
        if at == 6 and first not in harness.running:
            raise RuleBroken(
                "queue-head", f"job {format_f58(first)}, the first of its queue, was overtaken by others of that queue "
                "and still waits, while a job of another queue has the reservation",
            )  # fmt: skip
    harness.finish()
    return True


def _in_queue(queue: str, limit_s: float, nodes: int, ranks: str) -> Jobspec:
    spec = spec_of(limit_s, nodes=nodes, exclusive=True, constraint={"ranks": [ranks]})
    return Jobspec.parse(with_system(spec, "queue", queue))


def frozen(make: MakeHarness, chance: Chance) -> bool:
    """A job ends early, so the reservation of the first in line moves up, and what fitted before it no longer does."""
    harness = make("4x1")
    early = harness.submit(spec_of(1000.0, nodes=2))
    harness.submit(spec_of(100.0, nodes=1))
    harness.decide()
    first = harness.submit(spec_of(10.0, nodes=4))
    harness.decide()
    if first not in harness.checker.promised:
        return False
    harness.advance(harness.now_s + 50.0)
    harness.end(early)
    harness.decide()
    harness.submit(spec_of(900.0, nodes=1))
    harness.submit(spec_of(50.0, nodes=1))
    harness.decide()
    harness.advance(harness.now_s + 50.0)
    harness.decide()
    if first not in harness.running and harness.checker.promised[first] < inf:
        raise RuleBroken("frozen", "the first job in line still waits, although a job ahead of it has ended early")
    harness.finish()
    return True
