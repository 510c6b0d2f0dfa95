"""Leases with a cluster that loses what it can lose: each job runs once, and each comes to an end."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from .unreliable import RETURN_AFTER_S, Site

FAULTS = ("crash", "cut", "die", "lose state")
STEPS = ("submit", "commit", "connect", "deliver", "hear", "begin", "end", "late", "kill", *FAULTS)
WEIGHTS = (4, 8, 4, 12, 12, 4, 3, 1, 1, 1, 2, 1, 1)


def step(site: Site, chance: random.Random, *, faults: tuple[str, ...]) -> None:
    """Something happens."""
    weighted = zip(STEPS, WEIGHTS, strict=True)
    kinds = [(kind, weight) for kind, weight in weighted if kind not in FAULTS or kind in faults]
    (kind,) = chance.choices(*zip(*kinds, strict=True))
    alive = [job for job in site.cluster.values() if job.state != "ended"] if site.is_up else []
    match kind:
        case "submit" | "commit" | "deliver" | "hear" | "crash":
            getattr(site, kind)()
        case "connect":
            site.is_up = True
            site.connect()
        case "begin" | "end" if alive:
            getattr(site, kind)(chance.choice(alive))
        case "late":
            site.late(chance.choice((1.0, RETURN_AFTER_S)))
        case "kill" if site.jobs:
            site.kill(chance.randint(1, site.jobs))
        case "cut":
            site.disconnect()
        case "die":
            site.die()
        case "lose state":
            site.die(is_state_lost=True)


def calm(site: Site) -> None:
    """No more faults, and time enough."""
    site.is_up = True
    for _ in range(50 + 20 * site.jobs):
        site.commit()
        site.connect()
        site.deliver()
        site.hear()
        for job in list(site.cluster.values()):
            site.begin(job)
            site.end(job)


def run(seed: int, faults: tuple[str, ...], *, once: bool = True) -> Site:
    """A site that has had a bad time, and then a good one."""
    site, chance = Site(once=once), random.Random(seed)
    for _ in range(150):
        step(site, chance, faults=faults)
        running = [job.name for job in site.cluster.values() if job.state == "running"]
        assert len(running) == len(set(running)) or not once, "two copies run"
    calm(site)
    return site


def judge(site: Site) -> None:
    """What holds whatever happened: by what the outside saw."""
    assert not site.disk, "every job comes to an end"
    assert not site.cluster, "the cluster need not remember any name"
    for jobid, how in site.ended.items():
        name = f"here/{jobid}"
        if how in ("returned", "dropped") and name not in site.lost:
            assert not site.begun[name], f"{name} was {how}, and has run"


@settings(max_examples=30)
@given(st.integers(0, 1 << 32))
def test_each_lease_runs_once_through_crashes_of_both_sides(seed):
    site = run(seed, ("crash", "cut", "die"))
    judge(site)
    assert all(count == 1 for count in site.begun.values()), "a program began twice"


@settings(max_examples=30)
@given(st.integers(0, 1 << 32))
def test_a_cluster_that_loses_its_state_has_no_two_copies_at_a_time(seed):
    site = run(seed, FAULTS)
    judge(site)
    for name, count in site.begun.items():
        assert count == 1 or name in site.lost, f"{name} began {count} times"


@settings(max_examples=30)
@given(st.integers(0, 1 << 32))
def test_a_cluster_that_knows_no_names_ends_with_one_copy(seed):
    """A real Flux: a submit whose answer was lost may have been taken, which is seen by its name."""
    site = run(seed, ("crash", "cut", "die"), once=False)
    assert not site.disk
    assert not site.cluster
