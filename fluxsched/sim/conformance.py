"""Conformance suite for policies (`policy check`): cases with drains, moves and elastic jobs, and the cost of a pass.

Law: a case is a function of a harness and a source of chance, so its seed is enough to see it again. It returns False
where the policy does not claim what is judged. Laws (`checker`) are judged in every case, whatever it was made for. As
in `cases`. Judged is the growth, since milliseconds are the machine's. A policy that plans every job has to sort, so n
log n is good; what is measured in a fraction of a millisecond is noise. What is judged is the production code with the
policy in it. A rule is broken by its first failing case, which is reported with its seed, its job and the policy's
line; the same seed gives the same cases.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from math import frexp, inf, log
from typing import Any, NamedTuple, TypeVar

from fluxsched.config.policies import check_files, check_policy
from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.sched.loading import parse_spec, policy_line
from fluxsched.sched.policy import Policy
from fluxsched.sched.registry import make
from fluxsched.sim.harness import BEGIN_S, EXTRAS, GRACE_S, PROGRESS, URGENCY, Harness, MakeHarness, RuleBroken
from fluxsched.sim.site import exit_text, policy_faults, with_system
from fluxsched.system.clock import RandomSource, seeded

__all__ = [
    "CASE_S",
    "Finding",
    "RuleVerdict",
    "check",
    "check_words",
    "unclear",
]

MACHINE = "8x4+1"
LIMITS_S = (10.0, 20.3, 49.9, 100.0, 299.7)
"""Some of them no binary fractions, so that sums with them are rounded."""

BEGINS_S = (2.0**18 - 400, BEGIN_S, 2.0**31 - 200)
"""Times at which cases begin, in turn: from a power of two on, times are coarser than before it, and sums round
otherwise. The first is passed in a simulation, which begins at 0, the last by the clock in 2038.
"""

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
"""Times after which jobs may be preempted, in the case of preemption (seconds)."""

SPECS_KEPT = 512
"""More than there are in the cases but for those of a random limit."""

RESERVED_SHARE = 0.5
"""Share of the outages that are reservations, whose targets stay online."""

OUTAGE_SHARE = 0.3
"""Share of the instants at which an outage is planned, where some are."""

BURST = 60
RECURSION = 2000
FAR_S = 10_000.0

EMPTY_CONSTRAINTS: tuple[dict[str, object], ...] = (
    {"or": []},
    {"and": []},
    {"and": [{"or": []}]},
    {"not": [{"not": []}]},
)
"""RFC 31: each of these matches everything."""


def spec_of(limit_s: float = 0.0, *, constraint: object = None, **asked: object) -> Jobspec:
    """Return a job, in the words of `Jobspec.from_command`; the same words are read once."""
    return _read(limit_s, json.dumps(constraint), **asked)


@lru_cache(SPECS_KEPT)
def _read(limit_s: float, constraint: str, **asked: Any) -> Jobspec:
    return Jobspec.from_command(["true"], duration_s=limit_s, constraint=json.loads(constraint), **asked)


def any_spec(chance: RandomSource, limit_s: float) -> Jobspec:
    """Parts of a target, slots anywhere, or whole targets."""
    kind = chance.random()
    if kind < 0.5:
        return spec_of(limit_s, cores_per_task=chance.randint(1, 4), gpus_per_task=int(chance.random() < 0.2))
    if kind < 0.7:
        return spec_of(limit_s, ntasks=chance.randint(2, 6))
    constraint = {"ranks": ["0-5"]} if chance.random() < 0.3 else None
    return spec_of(limit_s, nodes=chance.randint(1, 6), exclusive=chance.random() < 0.5, constraint=constraint)


def arrive(harness: Harness, chance: RandomSource, jobs: int, urgencies: Sequence[int] = (URGENCY,)) -> None:
    """Submit so many jobs of any kind, all with limits, some of which are too short."""
    for _ in range(jobs):
        limit_s = chance.choice(LIMITS_S)
        run_s = limit_s * chance.uniform(0.2, 1.2)
        harness.submit(any_spec(chance, limit_s), run_s, chance.choice(urgencies))


def days(
    harness: Harness, chance: RandomSource, happens: Callable[[Harness, RandomSource], None] | None = None
) -> None:
    """Jobs come and go, and something happens now and then."""
    for _ in range(INSTANTS):
        arrive(harness, chance, chance.randint(0, ARRIVALS))
        if happens is not None:
            happens(harness, chance)
        harness.decide()
        harness.advance(harness.now_s + chance.uniform(1.0, STEP_S))


def some(harness: Harness, chance: RandomSource) -> Idset:
    """About half of the targets."""
    return Idset.of([rank for rank in harness.ranks if chance.random() < 0.5])


def take_away(harness: Harness, chance: RandomSource) -> None:
    """Take some targets offline, drain them, move them away, or lose them with their jobs."""
    targets = some(harness, chance)
    if targets:
        chance.choice((harness.offline, harness.drain, harness.move, harness.lose))(targets)


def change_availability(harness: Harness, chance: RandomSource) -> None:
    """Targets go and come, jobs of other urgencies come, and jobs are withdrawn."""
    arrive(harness, chance, 1, URGENCIES)
    what = chance.random()
    if what < 0.3:
        take_away(harness, chance)
    elif what < 0.6:
        harness.restore()
    elif what < 0.7 and harness.truth.waiting:
        harness.cancel(chance.choice(sorted(harness.truth.waiting)))


def disorder(harness: Harness, chance: RandomSource) -> None:
    """Most waiting jobs are canceled, held, or moved in the queue."""
    for jobid in sorted(harness.truth.waiting):
        what = chance.random()
        if what < 0.4:
            harness.cancel(jobid)
        elif what < 0.8:
            harness.prioritize(jobid, chance.choice((0, 5, 31)))


def dropped(make: MakeHarness, chance: RandomSource, happens: Callable[[Harness, RandomSource], None]) -> bool:
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


def ordinary(make: MakeHarness, chance: RandomSource) -> bool:
    """Mixed jobs on a machine whose targets come and go."""
    harness = make(MACHINE)
    days(harness, chance, change_availability)
    harness.restore()
    harness.finish()
    return True


def head(make: MakeHarness, chance: RandomSource) -> bool:
    """Nothing happens that would excuse a broken promise: limits hold, the order stays, no target goes."""
    harness = make(MACHINE)
    harness.checker.promises_hold = True
    days(harness, chance)
    harness.finish()
    return bool(harness.checker.promised)


def deterministic(make: MakeHarness, chance: RandomSource) -> bool:
    """Check that the same days, passed twice, give the same decisions."""
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


def targets(make: MakeHarness, chance: RandomSource) -> bool:
    """Targets go while a pass is under way: it is dropped, and the next one begins on what is left."""
    return dropped(make, chance, take_away)


def jobs(make: MakeHarness, chance: RandomSource) -> bool:
    """Jobs are withdrawn, held and moved in the queue while a pass is under way."""
    return dropped(make, chance, disorder)


def outage_end(make: MakeHarness, chance: RandomSource) -> bool:
    """Plan outages while jobs come and go; then one of all targets, which jobs wait for that would cross it."""
    harness = make(MACHINE)

    def plan(harness: Harness, chance: RandomSource) -> None:
        targets = some(harness, chance)
        if targets and chance.random() < OUTAGE_SHARE:
            in_s, lasts_s = chance.uniform(0.0, 3 * STEP_S), chance.uniform(1.0, 3 * STEP_S)
            is_one = chance.random() < RESERVED_SHARE and not harness.is_reserved(targets)
            harness.plan_outage(targets, in_s, lasts_s, is_reservation=is_one)

    days(harness, chance, plan)
    harness.finish()
    harness.plan_outage(harness.ranks, STEP_S, STEP_S)
    end_s = harness.now_s + 2 * STEP_S
    for _ in range(ARRIVALS):
        harness.submit(any_spec(chance, 2 * STEP_S), STEP_S)
    started = harness.decide()
    while harness.now_s < end_s:
        harness.advance(end_s)
        started += harness.decide()
    if not started and not harness.holds:
        raise RuleBroken(OUTAGE_END, "no job is started when an outage of all targets ends, though jobs wait for that")
    harness.finish()
    return True


def expiration(make: MakeHarness, chance: RandomSource) -> bool:
    """Limits of running jobs are changed, some to nearly nothing, and so is the end of the resources."""
    harness = make(MACHINE)

    def change(harness: Harness, chance: RandomSource) -> None:
        for jobid in [jobid for jobid in harness.running if chance.random() < 0.3]:
            harness.limit(jobid, chance.choice((0.5, 30.0, 500.0)))
        if chance.random() < 0.2:
            harness.resources_end(FAR_S * chance.randint(2, 5))

    harness.submit(spec_of(cores_per_task=2), run_s=FAR_S)  # it has no limit of its own
    days(harness, chance, change)
    harness.finish()
    return True


def reload(make: MakeHarness, chance: RandomSource) -> bool:
    """Reload the scheduler module in the middle of a pass: another policy object takes over running jobs."""
    harness = make(MACHINE)
    for _ in range(ROUNDS):
        arrive(harness, chance, MANY)
        harness.decide()
        harness.advance(harness.now_s + STEP_S)
        harness.decide(1)
        harness = harness.reloaded()
    harness.finish()
    return True


def preempts(make: MakeHarness, chance: RandomSource) -> bool:
    """Have the jobs of one user fill the machine, most of which may be preempted; then others come, and nothing else
    happens.
    """
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


def burst(make: MakeHarness, chance: RandomSource) -> bool:
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


def recursion(make: MakeHarness, chance: RandomSource) -> bool:
    """2,000 jobs become runnable in one instant, in one pass."""
    harness = make(f"{RECURSION // 2}x2")
    for _ in range(RECURSION):
        harness.submit(spec_of(10.0))
    harness.finish()
    return True


def not_nothing(make: MakeHarness, chance: RandomSource) -> bool:
    """Constraints without a word in them: `{"not":[]}` is refused before the policy, the others match everything."""
    harness = make(MACHINE)
    harness.submit(spec_of(10.0, constraint={"not": []}))
    for constraint in EMPTY_CONSTRAINTS:
        harness.submit(spec_of(10.0, nodes=5, constraint=constraint))
    harness.finish()
    return True


def rounding(make: MakeHarness, chance: RandomSource) -> bool:
    """Have a reservation begin at a power of two: a difference and a sum disagree on which jobs end by then."""
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


def queue_head(make: MakeHarness, chance: RandomSource) -> bool:
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
    if far not in harness.checker.promised:
        return False  # it reserves for none, or in an order of its own
    begun_s = harness.now_s
    for at in range(1, 13):
        harness.submit(_in_queue("debug", 60.0, 1, "2-3"), 60.0)
        harness.decide()
        harness.advance(begun_s + 5.0 * at)
        harness.decide()
        if at == 6 and first not in harness.running:
            raise RuleBroken(
                "queue-head", f"job {format_f58(first)}, the first of its queue, was overtaken by others of that queue "
                "and still waits, while a job of another queue has the reservation: reserve for the first of each "
                "queue (view.first_beside)",
            )  # fmt: skip
    harness.finish()
    return True


def _in_queue(queue: str, limit_s: float, nodes: int, ranks: str) -> Jobspec:
    spec = spec_of(limit_s, nodes=nodes, exclusive=True, constraint={"ranks": [ranks]})
    return Jobspec.parse(with_system(spec, "queue", queue))


def frozen(make: MakeHarness, chance: RandomSource) -> bool:
    """Have a job end early, so the reservation of the first in line moves up, and what fitted before it no longer
    does.
    """
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


# ---- cases of elastic jobs

FULL = 3
"""Passes after which an elastic job has all of an idle machine, as large as it may be."""

TURNS = 8
"""Passes within which those in line have what others had beyond their minima: each takes some, one after the other."""

TARGETS = 8
"""Targets of the machine in `extras`, all of which elastic jobs have at first."""

USERS = 3
"""Users whose jobs come then, at most."""


def elastic_spec(limit_s: float, least: int, most: int) -> Jobspec:
    """Return a job that may have from `least` to `most` whole targets while it runs."""
    return spec_of(limit_s, nodes=f"{least}-{most}", exclusive=True, elastic=True)


def parts_spec(limit_s: float, least: int, most: int) -> Jobspec:
    """Return a jobspec with an elastic second part, beside one target of the first part."""
    nodes = []
    for label, count in (("lead", 1), ("work", {"min": least, "max": most, "operator": "+", "operand": 1})):
        slot = {"type": "slot", "count": 1, "label": label, "with": [{"type": "core", "count": 1}]}
        nodes.append({"type": "node", "count": count, "exclusive": True, "with": [slot]})
    tasks = [{"command": ["true"], "slot": label, "count": {"per_slot": 1}} for label in ("lead", "work")]
    system = {"duration": limit_s, "fluxsched": {"elastic": True}}
    return Jobspec.parse({"version": 999, "resources": nodes, "tasks": tasks, "attributes": {"system": system}})


def elastic(make: MakeHarness, chance: RandomSource) -> bool:
    """Elastic jobs among others, on a machine whose targets come and go."""
    harness = make(MACHINE)

    def come(harness: Harness, chance: RandomSource) -> None:
        what = chance.random()
        if what < 0.2:
            take_away(harness, chance)
        elif what < 0.5:
            harness.restore()
        else:
            spec, limit_s = chance.choice((elastic_spec, parts_spec)), chance.choice(LIMITS_S)
            least = chance.randint(1, 3)
            harness.submit(spec(limit_s, least, least + chance.randint(1, 4)), limit_s)

    days(harness, chance, come)
    harness.restore()
    arrive(harness, chance, 1)
    harness.finish()
    return True


def extras(make: MakeHarness, chance: RandomSource) -> bool:
    """Elastic jobs have the machine, when others come that all fit beside the minima, each within its user's share.

    Targets that come free at that moment are not for growing either.
    """
    harness = make(f"{TARGETS}x4")
    users = chance.randint(1, USERS)
    asked = [chance.randint(1, TARGETS // (users + 1)) for _ in range(users)]  # within equal shares of all users
    ends = harness.submit(_whole(chance.randint(1, sum(asked))), FAR_S) if chance.random() < 0.5 else None
    elastic = [harness.submit(spec, FAR_S) for spec in _elastic_specs(chance, TARGETS - sum(asked))]
    for _ in range(FULL):
        harness.decide()
        harness.advance(harness.now_s + STEP_S)
    held = sum([len(held.ranks) for held in harness.running.values()])
    if held < TARGETS or not harness.running.keys() >= set(elastic):
        return False  # whether those start that wait is for other rules
    if ends is not None:
        harness.end(ends)
    others = {harness.submit(_whole(count), FAR_S, userid=2 + at) for at, count in enumerate(asked)}
    for _ in range(TURNS):
        before = _sizes(harness, elastic)
        harness.decide()
        waiting = sorted(others - harness.running.keys())
        if not waiting:
            break
        after = _sizes(harness, elastic)
        for jobid in elastic:
            if after[jobid] > before[jobid]:
                grows, waits = format_f58(jobid), format_f58(waiting[0])
                text = f"job {grows} grows, although job {waits}, which is within its share, could start there"
                raise RuleBroken(EXTRAS, text)
        harness.advance(harness.now_s + GRACE_S)
    else:
        text = f"job {format_f58(waiting[0])} waits, although elastic jobs have more than their minima"
        raise RuleBroken(EXTRAS, f"{text}, and it needs no more")
    harness.finish()
    return True


def _elastic_specs(chance: RandomSource, spare: int) -> Iterator[Jobspec]:
    """One or two elastic jobs whose minima are `spare` together at most."""
    least = chance.randint(1, spare)
    several = least > 1 and chance.random() < 0.5
    yield parts_spec(FAR_S, least - 1, TARGETS) if several else elastic_spec(FAR_S, least, TARGETS)
    if least < spare:
        yield elastic_spec(FAR_S, chance.randint(1, spare - least), TARGETS)


def _whole(count: int) -> Jobspec:
    return spec_of(FAR_S, nodes=count, exclusive=True)


def _sizes(harness: Harness, jobids: Iterable[int]) -> dict[int, int]:
    return {jobid: len(harness.running[jobid].ranks) if jobid in harness.running else 0 for jobid in jobids}


# ---- cost of a policy

SIZES = (100, 1_000, 10_000)
"""Numbers of waiting jobs for which the cost is measured."""

COST_MACHINE, RUNNING = "256x4", 256
NODES = (1, 2, 4, 8, 16)
"""Numbers of nodes that jobs request, with any of the limits: people request few different things."""

SLACK = 3.0
"""Times n log n that are let pass: memory gets slower as it grows, and machines are shared."""

NOISE_S = 0.0005
"""Least duration that is measured (seconds): a shorter one counts as this."""

REPEATS, ENOUGH_S = 5, 1.0
"""Passes that are measured for the shortest, unless they take so long together (seconds)."""


class Growth(NamedTuple):
    """`says` has the figures; `excess` says which growth is too much, if one is."""

    cases: int
    says: str
    excess: str | None


def cost(make: MakeHarness, stopwatch: Callable[[], float], sizes: tuple[int, ...] = SIZES) -> Growth:
    """Measures from the shortest queue on, and goes no further once a step has grown too much."""
    spent_s: list[float] = []
    excess = None
    for size in sizes:
        spent_s.append(_pass_s(make, stopwatch, size))
        if len(spent_s) > 1 and excess is None:
            excess = _excess(sizes[len(spent_s) - 2], size, *spent_s[-2:])
        if excess is not None:
            break
    measured = [f"{spent * 1000:.2f} ms with {size:,}" for size, spent in zip(sizes, spent_s, strict=False)]
    last = len(spent_s) - 1
    growth = f"; {_growth(*spent_s[-2:]):.1f} times as long as with {sizes[last - 1]:,}" if last else ""
    return Growth(len(spent_s), f"a pass takes {', '.join(measured)} waiting{growth}", excess)


def limit(few: int, many: int) -> float:
    """Return the factor by which the cost of a pass may grow: as n log n grows, with slack."""
    return SLACK * (many * log(many)) / (few * log(few))


def _growth(few_s: float, many_s: float) -> float:
    return max(many_s, NOISE_S) / max(few_s, NOISE_S)


def _excess(few: int, many: int, few_s: float, many_s: float) -> str | None:
    grown, allowed = _growth(few_s, many_s), limit(few, many)
    if grown <= allowed:
        return None
    return f"from {few:,} to {many:,} waiting jobs a pass takes {grown:.0f} times as long; n log n allows {allowed:.0f}"


def _pass_s(make: MakeHarness, stopwatch: Callable[[], float], size: int) -> float:
    harness = _full(make, size)
    one = Idset.of([0])
    spent_s: list[float] = []
    while len(spent_s) < REPEATS and sum(spent_s) < ENOUGH_S:
        harness.offline(one)
        harness.restore()
        begun_s = stopwatch()
        harness.decide()
        spent_s.append(stopwatch() - begun_s)
    return min(spent_s)


def _full(make: MakeHarness, size: int) -> Harness:
    """Return a full machine, on which no job can start, and a queue.

    Jobs take targets whole: there planning is counting, so that what is measured is the policy and not the pool.
    """
    harness, chance = make(COST_MACHINE), seeded(size)
    harness.checker.judging = False
    for _ in range(RUNNING):
        harness.submit(spec_of(chance.uniform(*LIMITS_S[::4]), nodes=1, exclusive=True))
    harness.decide()
    kinds = [spec_of(limit_s, nodes=nodes, exclusive=True) for limit_s in LIMITS_S for nodes in NODES]
    for _ in range(size):
        harness.submit(chance.choice(kinds))
    return harness


# ---- the suite

T = TypeVar("T")

KEPT, BROKEN, NO_CLAIM, UNCLEAR = "kept", "broken", "no claim", "unclear"

CASES = 10
"""Cases of each rule that chance has a part in."""

CASE_S = 120.0
"""Time that one case may take (seconds), where a time limit is set: ours take one at most, or some on a busy machine.
"""

LAWS = {
    "usable": "starts no job on targets that are down, drained or leaving",
    "free": "starts no job on resources that are in use",
    "waiting": "starts only waiting jobs, each once, on the resources it requested",
    "progress": "ends its passes, denies no job that can run, leaves no job waiting on an idle machine",
    "allowed": "preempts only running jobs that allow it by then, each once",
    "rate": "preempts no more jobs in a minute than its rate",
    "outage": "starts no job that would still run when an outage of its targets begins, or a reservation that it does "
    "not name",
    "sizes": "keeps every part of an elastic job within its range, on usable targets that are free",
}
"""Laws that are judged in every case."""


class Rule(NamedTuple):
    """Rule for policies: its text, and the case that tests it, often if chance has a part in it."""

    says: str
    case: Callable[[MakeHarness, RandomSource], bool]
    by_chance: bool = True


OUTAGE_END = "outage-end"

RULES = {
    "ordinary": Rule("raises no exception while jobs and targets come and go", ordinary),
    "head": Rule("the first job in line starts no later than its reservation", head),
    "deterministic": Rule("makes the same decisions for the same input", deterministic),
    "targets": Rule("survives targets lost, offline, drained or moved during a pass", targets),
    "jobs": Rule("survives jobs canceled, held and moved in the queue during a pass", jobs),
    "expiration": Rule("survives changes of job limits and of the expiration of the resources", expiration),
    OUTAGE_END: Rule("survives planned outages, and starts at their end what they kept waiting", outage_end),
    "in-vain": Rule("preempts no job in vain: the other one starts or leaves, unless shares change", preempts),
    "extras": Rule("takes what jobs have above their minima for those in line, and gives none while they wait", extras),
    "elastic": Rule("survives elastic jobs, and jobs of several parts, while jobs and targets come and go", elastic),
    "reload": Rule("continues after a reload with the jobs that are already running", reload),
    "burst": Rule("survives 60 jobs submitted at once behind a blocked first job", burst, False),
    "recursion": Rule("survives 2,000 jobs that become runnable at once", recursion, False),
    "not-nothing": Rule("survives empty constraints", not_nothing, False),
    "rounding": Rule("survives a reservation at a time where floating-point resolution changes", rounding, False),
    "queue-head": Rule("the first job of each queue is protected, not only the first of all", queue_head, False),
    "frozen": Rule("moves its reservation forward when a job ends early", frozen, False),
}
COST, COST_SAYS = "cost", "the cost of a pass grows no faster than n log n with the queue"


class Finding(NamedTuple):
    """Fault in the first failing case of a rule; `line` is the policy's, if one was about to decide."""

    seed: int
    what: str
    line: str | None = None

    def __str__(self) -> str:
        return f"seed {self.seed}{f', {self.line}' if self.line else ''}: {self.what}"


class RuleVerdict(NamedTuple):
    """One line of the report; `cases` are those that were judged to their end, and the first that was not."""

    rule: str
    verdict: str
    cases: int
    says: str
    finding: Finding | None = None


class CaseStuck(BaseException):
    """A case does not end. Not an Exception, which a policy may catch, to continue."""


TimeLimit = Callable[[float, BaseException], AbstractContextManager[None]]
"""Raises what it is given in the midst of what takes longer than so many seconds."""


def examine(
    policy: Policy,
    seed: int = 0,
    stopwatch: Callable[[], float] | None = None,
    *,
    cases: int = CASES,
    rules: Sequence[str] = tuple(RULES),
    sizes: tuple[int, ...] = SIZES,
    time_limit: TimeLimit = lambda limit_s, fault: nullcontext(),
    began: Callable[[str, int], None] = lambda rule, seed: None,
) -> Iterator[RuleVerdict]:
    """Try the cases of all rules, or of some, one after the other; with a stopwatch (seconds of CPU) also what a pass
    costs, which is unclear unless all others are kept. All rules and laws get a verdict.

    Without `time_limit` a case may take forever; with it, no other case is run after one that does. `began` is called
    for each case before it begins.
    """
    findings: dict[str, Finding] = {}
    counts = dict.fromkeys([*LAWS, *RULES], 0)
    claims: set[str] = set()

    try:
        for name, at in _tries(rules, seed, cases):
            began(name, at)
            case = partial(RULES[name].case, _making(policy, at), seeded(at))
            claimed, broken, finding = tried(name, at, case, time_limit)
            counts[broken] += 1
            if finding is None:
                counts.update({law: counts[law] + 1 for law in LAWS})
            if claimed or finding is not None:
                claims.add(name)
            if finding is not None:
                findings.setdefault(broken, finding)
    except CaseStuck as stuck:  # so may be all other cases
        findings.setdefault(PROGRESS, Finding(at, f"{stuck} (case {name!r})", policy_line(stuck)))
    for name, says in {**LAWS, **{name: rule.says for name, rule in RULES.items()}}.items():
        claimed = name in LAWS or name in claims
        yield RuleVerdict(
            name, verdict_of(counts[name], claimed, name in findings), counts[name], says, findings.get(name)
        )
    if stopwatch is not None and findings:
        yield RuleVerdict(COST, UNCLEAR, 0, COST_SAYS)
    elif stopwatch is not None:
        began(COST, seed)
        yield _cost(_making(policy, seed), stopwatch, sizes, seed, time_limit)


def _tries(rules: Sequence[str], seed: int, cases: int) -> Iterator[tuple[str, int]]:
    """Rules, and the seeds that each is tried with."""
    return ((name, at) for name in rules for at in range(seed, seed + (cases if RULES[name].by_chance else 1)))


def _making(policy: Policy, seed: int) -> MakeHarness:
    """Stages of a case: when they begin is in its seed as well."""
    return lambda machine: Harness(policy, machine, BEGINS_S[seed % len(BEGINS_S)])


def tried(name: str, seed: int, case: Callable[[], T], time_limit: TimeLimit) -> tuple[T | None, str, Finding | None]:
    """Run a case; return its result, or the law or rule that it has found broken, with the finding. Raises
    CaseStuck.
    """
    try:
        with time_limit(CASE_S, CaseStuck(f"it takes more than {CASE_S:g} s")):
            return case(), name, None
    except RuleBroken as broken:
        where = "" if broken.law == name else f" (case {name!r})"
        return None, broken.law, Finding(seed, f"{broken}{where}", broken.line or policy_line(broken))
    except SystemExit as fault:
        return None, name, Finding(seed, exit_text(fault), policy_line(fault))
    except Exception as fault:  # foreign code: whatever it raises is a finding
        return None, name, Finding(seed, f"{type(fault).__name__}: {fault}", policy_line(fault))


def unclear(case: tuple[str, int] | None, what: str) -> Iterator[RuleVerdict]:
    """Yield the report when the suite itself ended early: `what` happened in a case of this rule; all others are
    unclear.
    """
    return all_unclear({**LAWS, **{name: rule.says for name, rule in RULES.items()}}, case, what)


def all_unclear(says: Mapping[str, str], case: tuple[str, int] | None, what: str) -> Iterator[RuleVerdict]:
    """Yield verdicts on the rules of any suite when no case could be judged: each rule with its text; `progress` is one
    of them.
    """
    rule, seed = case or (PROGRESS, 0)
    if rule == COST:
        yield RuleVerdict(COST, BROKEN, 0, COST_SAYS, Finding(seed, what))
    for name, text in says.items():
        broken = name == rule
        yield RuleVerdict(name, BROKEN if broken else UNCLEAR, 0, text, Finding(seed, what) if broken else None)


def verdict_of(cases: int, claimed: bool, broken: bool) -> str:
    """Of a rule that was judged in so many cases."""
    if broken:
        return BROKEN
    if not cases:
        return UNCLEAR
    return KEPT if claimed else NO_CLAIM


def _cost(
    make: MakeHarness, stopwatch: Callable[[], float], sizes: tuple[int, ...], seed: int, time_limit: TimeLimit
) -> RuleVerdict:
    """Cost is judged by its growth, and is reported even if it is good."""
    try:
        growth, _, finding = tried(COST, seed, lambda: cost(make, stopwatch, sizes), time_limit)
    except CaseStuck as stuck:
        growth, finding = None, Finding(seed, str(stuck), policy_line(stuck))
    if growth is None:
        return RuleVerdict(COST, BROKEN, 0, COST_SAYS, finding)
    if growth.excess is not None:
        return RuleVerdict(COST, BROKEN, growth.cases, COST_SAYS, Finding(seed, growth.excess))
    return RuleVerdict(COST, KEPT, growth.cases, growth.says)


# ---- the policy that is tried


def check_words(spec: str) -> None:
    """Raise InvalidValue for words that name no policy or file, and for options that one of ours does not have."""
    check_policy(spec)
    check_files(spec)


def check(
    spec: str,
    seed: int,
    stopwatch: Callable[[], float],
    time_limit: TimeLimit,
    began: Callable[[str, int], None] = lambda rule, seed: None,
) -> Iterator[RuleVerdict]:
    """Yield the conformance suite on a policy, `NAME:key=value` or a file; `began` is called before each case, with
    rule and seed.

    Raises InvalidValue if it cannot be made.
    """
    return examine(_made(spec), seed, stopwatch, time_limit=time_limit, began=began)


def _made(spec: str) -> Policy:
    with policy_faults(spec, " while it was imported"):
        return make(*parse_spec(spec))
