"""Elastic jobs get more in the order in which their queue's policy places jobs, at their start and as they grow."""

import pytest

from fluxsched.core.idset import EMPTY
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.core.topology import Topology
from fluxsched.sched.decisions import Granted, Grown
from fluxsched.sched.policy import BEST_FIT, LEAST_LOST, WORST_FIT, placement_of
from tests.sched.site import policy_of, scheduler_of

GIB = 1 << 30
NODES = ((72, 128), (56, 256), (56, 64))
"""Cores and GiB. Of 50 cores and 32 GiB 46, 62 and 14 are left, by weight."""

ORDERS = {LEAST_LOST: [2, 0], BEST_FIT: [1, 2], WORST_FIT: [0, 1]}
"""The first two of them by each placement."""


def machine():
    entries = [
        {"rank": str(rank), "children": {"core": f"0-{cores - 1}"}, "amounts": {"memory": memory * GIB}}
        for rank, (cores, memory) in enumerate(NODES)
    ]
    execution = {"R_lite": entries, "starttime": 0.0, "expiration": 0.0, "nodelist": ["n[0-2]"]}
    return ResourceSet.parse({"version": 1, "execution": execution})


def ask(nodes, queue="", **ours):
    """So many slots of 50 cores and 32 GiB, each on a node of its own."""
    core, memory = {"type": "core", "count": 50}, {"type": "memory", "count": 32, "unit": "GiB"}
    slot = {"type": "slot", "count": 1, "label": "task", "with": [core, memory]}
    system = {"duration": 0.0, "fluxsched": ours, **({"queue": queue} if queue else {})}
    return Jobspec.parse({
        "version": 1, "resources": [{"type": "node", "count": nodes, "with": [slot]}],
        "tasks": [{"command": ["true"], "slot": "task", "count": {"per_slot": 1}}], "attributes": {"system": system},
    })  # fmt: skip


def machine_under(policy, topology=None, **options):
    scheduler, whole = scheduler_of(policy, **options), machine().with_topology(topology or Topology())
    scheduler.grown("default", whole, whole.ranks, EMPTY, 1000.0)
    return scheduler


def given(scheduler):
    """The ranks that job 1 gets, step by step."""
    effects = list(scheduler.schedule(1001.0))
    scheduler.check()
    found = [effect.R for effect in effects if isinstance(effect, Granted | Grown) and effect.jobid == 1]
    return [list(ResourceSet.parse(R).ranks) for R in found]


def start(scheduler, jobid, spec):
    scheduler.alloc(jobid, 16, 1000, 1.0, spec, 1000.0)


@pytest.mark.parametrize("is_fair", [False, True])
@pytest.mark.parametrize("placement", ORDERS)
def test_it_grows_as_it_was_placed(placement, is_fair):
    inner = "fair:backfill=easy," if is_fair else "easy:"
    scheduler = machine_under(f"{inner}placement={placement}")
    start(scheduler, 1, ask("1-2", elastic=True))
    start(scheduler, 2, ask(3))  # so that the first starts with its minimum
    first, second = ORDERS[placement]
    assert given(scheduler) == [[first], [second]]


@pytest.mark.parametrize("placement", ORDERS)
def test_alone_it_starts_with_as_much_as_fits_likewise(placement):
    scheduler = machine_under(f"fifo:placement={placement}")
    start(scheduler, 1, ask("1-2", elastic=True))
    assert given(scheduler) == [sorted(ORDERS[placement])]


def test_what_is_near_comes_before_what_is_placed_first():
    leaves = Topology.parse([{"name": "a", "hosts": "n0"}, {"name": "b", "hosts": "n[1-2]"}])
    scheduler = machine_under("easy:placement=least-lost", leaves)
    start(scheduler, 1, ask("1-2", elastic=True))
    start(scheduler, 2, ask(3))
    assert given(scheduler) == [[2], [1]]


@pytest.mark.parametrize(("queue", "second"), [("tight", 0), ("other", 1), ("", 1)])
@pytest.mark.parametrize("targets_first", [True, False])
def test_one_that_is_found_running_grows_as_its_queue_places(queue, second, targets_first):
    tight, whole = {"tight": "easy:placement=least-lost"}, machine()
    scheduler = scheduler_of("easy:placement=best-fit", policies=tight, queues={"tight": "default", "other": "default"})
    grow = "default", whole, whole.ranks, EMPTY, 1000.0
    if targets_first:
        scheduler.grown(*grow)
    part = {"memory": 32 * GIB}
    execution = whole.to_json()["execution"]
    entry = {"rank": "2", "children": {"core": "0-49"}, "amounts": part}
    held = ResourceSet.parse({"version": 1, "execution": {**execution, "R_lite": [entry], "nodelist": ["n2"]}})
    scheduler.hello(1, 16, 1000, 1.0, held, EMPTY, ask("1-2", queue, elastic=True), 1000.0)
    if not targets_first:
        scheduler.grown(*grow)
    assert given(scheduler) == [[second]]


def test_the_placement_of_a_policy_is_what_it_says_if_that_is_one():
    class Odd:
        name = "odd"
        placement = "by the moon"

    assert placement_of(Odd()) == WORST_FIT
    assert placement_of(policy_of("fair:backfill=easy,placement=best-fit")) == BEST_FIT
