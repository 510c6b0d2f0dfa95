"""`View.step`: what a policy may give a running elastic job next, and that one that decides so is asked to."""

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.topology import Topology
from fluxsched.sched.decisions import Grown
from fluxsched.sched.policy import Grow, Shrink
from tests.sched.elastic.elastic_site import ElasticSite, jobspec
from tests.sched.site import limit, policy_of, under_fair

SHRINK_PAUSE_S = limit("SHRINK_PAUSE_S")


class Stepping(type(policy_of("easy"))):
    """EASY, and then a step for each of `grows`; `found` are the targets of each, None where there is none."""

    name = "stepping"
    OPTIONS = {}  # noqa: RUF012
    GROWS = True

    def __init__(self):
        super().__init__()
        self.grows = []
        self.shrinks = []
        self.found = []

    def schedule(self, view, now_s):
        yield from super().schedule(view, now_s)
        yield from self.shrinks
        for jobid in self.grows:
            fit = view.step(jobid)
            self.found.append(None if fit is None else str(Idset.of([part.rank for part in fit.parts])))
            if fit is not None:
                yield Grow(jobid, fit)
        self.grows, self.shrinks = [], []


def site_of(policy, *specs, ranks="0-7", **options):
    """Jobs 1, 2 ... were submitted at once, so that elastic ones have their minima."""
    site = ElasticSite(policy, ranks, **options)
    for jobid, spec in enumerate(specs, 1):
        site.submit(jobid, spec)
    site.run()
    return site


def steps(site, policy, *jobids):
    policy.grows, policy.found = list(jobids), []
    site.look()
    return policy.found


@pytest.fixture
def policy():
    return Stepping()


def test_steps_are_values_of_the_range_up_to_the_largest(policy):
    site = site_of(policy, jobspec("2-6:2"), jobspec(1, elastic=False))
    assert site.sizes(1) == [2]
    assert steps(site, policy, 1, 1, 1, 2, 77) == ["3-4", "5-6", None, None, None]
    assert site.sizes(1) == [6]


def test_the_part_that_is_least_beyond_its_minimum_comes_next(policy):
    site = site_of(policy, jobspec("1-2", "2-4"), jobspec(1, elastic=False))
    assert steps(site, policy, 1, 1, 1, 1) == ["4", "5", "6", None]
    parts = site.elastic(1).parts
    assert [(part.size, str(part.ranks - part.base)) for part in parts] == [(2, "4"), (4, "5-6")]


def test_a_step_is_within_the_bound_of_hops(policy):
    leaves = Topology.parse([{"name": "a", "hosts": "n[0-3]"}, {"name": "b", "hosts": "n[4-7]"}])
    site = site_of(policy, jobspec("1-8", max_hops=2), jobspec(1, elastic=False), topology=leaves)
    (rank,) = site.held[1].ranks
    found = Idset.of([int(str(one)) for one in steps(site, policy, 1, 1, 1, 1) if one is not None])
    assert found <= Idset.parse("0-3" if rank < 4 else "4-7")
    assert 2 <= len(found) <= 3  # job 2 may be there


def test_there_is_none_for_a_minute_after_a_shrink_and_then_the_policy_is_asked(policy):
    site = site_of(policy, jobspec("1-4"), jobspec(1, elastic=False))
    assert steps(site, policy, 1) == ["2"]
    policy.shrinks = [Shrink(1, Idset.parse("2"), "a test")]
    site.look()
    assert steps(site, policy, 1) == [None]  # it is leaving
    site.gone(1)
    assert steps(site, policy, 1) == [None]
    site.now_s += SHRINK_PAUSE_S
    policy.grows, policy.found = [1], []
    assert [type(effect) for effect in site.run()] == [Grown]
    assert policy.found == ["2"]


@pytest.mark.parametrize("first", [jobspec(6, elastic=False), jobspec(3, 3, elastic=False)], ids=["counted", "placed"])
def test_a_step_delays_no_reservation_and_the_plan_knows_of_it(policy, first):
    """Of four idle targets job 3 is to have three, with those of job 2; as soon as 1 has the other, none is left."""
    site = site_of(policy, jobspec("1-8"), jobspec(3, elastic=False, duration=100.0), first)
    assert site.sizes(1, 2, 3) == [1, 3, 0]
    assert steps(site, policy, 1, 1) == ["4", None]


def test_a_job_that_ends_before_a_reservation_begins_may_have_what_is_idle_until_then(policy):
    running, first = jobspec(3, elastic=False, duration=100.0), jobspec(6, elastic=False)
    site = site_of(policy, jobspec("1-8", duration=90.0), running, first)
    assert steps(site, policy, 1, 1) == ["4", "5"]


def test_under_fair_the_inner_policy_is_asked(policy):
    site = site_of(under_fair(policy), jobspec("1-4"), jobspec(1, elastic=False))
    assert steps(site, policy, 1, 1) == ["2", "3"]


def test_the_engine_leaves_growing_to_who_wants_to(policy):
    site = site_of(policy, jobspec("1-4"), jobspec(1, elastic=False))
    site.look()
    assert site.sizes(1) == [1]
    assert site_of("easy", jobspec("1-4"), jobspec(1, elastic=False)).sizes(1) == [4]
