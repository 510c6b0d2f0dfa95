"""Others go for a job of several parts where they help it: none is spent where no lacking part has any use for it."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.sched.decisions import Raise, Shrunk
from fluxsched.sched.fair.accounts import FairSettings
from tests.sched.elastic.elastic_site import ElasticSite, jobspec

LAST_THREE = (0, 0, 0, 0, 0, 1, 1, 1)
"""GPUs of each target."""

WEIGHTLESS = FairSettings(weights={"core": 1})


def site_of(policy, gpus):
    return ElasticSite(policy, f"0-{len(gpus) - 1}", gpus=gpus, fair=WEIGHTLESS)


def left(site, jobid=1):
    """What the job is to leave."""
    return list(site.leaving.get(jobid, ()))


@pytest.mark.parametrize("sizes", ["1-8", "1-8:2:*", "2-8:2:+"])
def test_extras_go_within_the_excess_over_the_share_where_they_help(sizes):
    site = site_of("fair:backfill=easy", LAST_THREE)
    site.submit(1, jobspec(sizes), 1000)
    site.run()
    site.now_s += 10
    site.submit(2, jobspec(1, 1, elastic=False, gpus=(1, 0)), 1001)
    site.run()
    gone = left(site)
    assert any(LAST_THREE[rank] for rank in gone)
    assert len(gone) == (4 if sizes == "1-8:2:*" else 2)
    site.gone()
    assert site.sizes(2) == [2]


@pytest.mark.parametrize("policy", ["easy", "conservative", "firstfit", "fair:backfill=easy"])
def test_the_few_extras_of_a_job_go_where_they_help(policy):
    site = site_of(policy, LAST_THREE)
    site.submit(1, jobspec("6-8"), 1000)
    site.run()
    site.now_s += 10
    site.submit(2, jobspec(1, 1, elastic=False, gpus=(0, 1)), 1001)
    site.run()
    assert left(site) == [1, 5]  # the first task is on rank 0
    site.gone()
    assert site.sizes(1, 2) == [6, 2]


def test_none_goes_where_they_do_not_suffice():
    site = site_of("easy", LAST_THREE)
    site.submit(1, jobspec("7-8"), 1000)
    site.run()
    site.submit(2, jobspec(1, 1, elastic=False, gpus=(1, 0)), 1001)
    assert site.run() == []


def test_whole_jobs_go_within_the_excess_over_the_share_where_they_help():
    site = site_of("fair:backfill=easy", LAST_THREE)
    for jobid in range(1, 9):
        site.submit(jobid, jobspec(1, elastic=False, **{"preemptible-after": 0.0}), 1000)
    site.run()
    on_rank = {rank: jobid for jobid, held in site.held.items() for rank in held.ranks}
    site.now_s += 10
    site.submit(10, jobspec(2, 1, elastic=False, gpus=(0, 1)), 1001)
    site.run()
    assert sorted(one.jobid for one in site.raised) == sorted(on_rank[rank] for rank in (0, 1, 5))
    site.gone()
    assert site.sizes(10) == [3]


def test_extras_that_do_not_suffice_leave_of_the_excess_what_whole_jobs_need():
    site = site_of("fair:backfill=easy", LAST_THREE)
    site.submit(1, jobspec("1-5"), 1000)
    site.run()
    for jobid in range(2, 5):
        site.submit(jobid, jobspec(1, elastic=False, gpus=(1,), **{"preemptible-after": 0.0}), 1000)
    site.run()
    site.now_s += 10
    site.submit(10, jobspec(2, 1, elastic=False, gpus=(0, 1)), 1001)
    effects = site.run()
    assert [len(one.ranks) for one in effects if isinstance(one, Shrunk)] == [2]
    assert len([one for one in effects if isinstance(one, Raise)]) == 1
    site.gone()
    assert site.sizes(10) == [3]


@given(st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=20)
def test_the_fewest_go_that_would_do_and_none_if_none_would(chance, fair):
    gpus = [chance.choice([0, 0, 1, 2]) for _ in range(8)]
    site = site_of("fair:backfill=easy" if fair else "easy", gpus)
    least = {}
    for jobid in range(1, chance.randint(2, 4)):
        least[jobid] = chance.randint(1, 2)
        site.submit(jobid, jobspec(f"{least[jobid]}-8"), 1000)
    site.submit(4, jobspec(chance.randint(1, 2), elastic=False), 1000)
    for _ in range(8):
        site.look()
        site.now_s += 70
    wanted = [(1, chance.choice([0, 1])), (1, chance.choice([1, 2])), (chance.randint(1, 2), 0)]
    counts, needs = zip(*chance.sample(wanted, chance.randint(2, 3)), strict=True)
    ranks = {jobid: set(held.ranks) for jobid, held in site.held.items()}
    leads = {site.elastic(jobid).first for jobid in least}
    free = set(range(8)).difference(*ranks.values())
    may_leave = [(jobid, rank) for jobid in least for rank in ranks[jobid] - leads]
    most = 4 if fair else 8  # of its 8 at most; then the account is at its share
    sizes = [
        size
        for size in range(len(may_leave) + 1)
        for some in combinations(may_leave, size)
        if fits(free | {rank for _, rank in some}, gpus, list(zip(counts, needs, strict=True)))
        and all(len(ranks[jobid]) - sum(one == jobid for one, _ in some) >= least[jobid] for jobid in least)
        and size <= max(0, most - len(free))
    ]
    site.submit(5, jobspec(*counts, elastic=False, gpus=needs), 1001)
    site.run()
    gone = [rank for jobid in least for rank in left(site, jobid)]
    assert len(gone) == (sizes[0] if sizes else 0)
    site.gone()
    assert site.sizes(5) == [sum(counts) if sizes else 0]


@given(st.randoms(use_true_random=False))
@settings(max_examples=20)
def test_the_fewest_whole_jobs_go_that_would_do_and_none_if_none_would(chance):
    gpus = [chance.choice([0, 0, 1, 2]) for _ in range(8)]
    site = site_of("fair:backfill=easy", gpus)
    for jobid in range(1, chance.randint(6, 9)):
        firm = {} if chance.random() < 0.7 else {"preemptible-after": 1e9}
        site.submit(jobid, jobspec(1, elastic=False, **{"preemptible-after": 0.0, **firm}), 1000)
    site.run()
    site.now_s += 70
    wanted = [(1, chance.choice([0, 1])), (1, chance.choice([1, 2])), (chance.randint(1, 2), 0)]
    counts, needs = zip(*chance.sample(wanted, chance.randint(2, 3)), strict=True)
    may_go = [
        rank
        for jobid, held in site.held.items()
        for rank in held.ranks
        if site.specs[jobid]["attributes"]["system"]["preemptible-after"] == 0.0
    ]
    free = set(range(8)).difference(*[held.ranks for held in site.held.values()])
    most = max(0, 4 - len(free))  # of its 8 at most; then the account is at its share
    sizes = [
        size
        for size in range(min(most, len(may_go)) + 1)
        for some in combinations(may_go, size)
        if fits(free.union(some), gpus, list(zip(counts, needs, strict=True)))
    ]
    site.submit(10, jobspec(*counts, elastic=False, gpus=needs), 1001)
    site.run()
    assert len(site.raised) == (sizes[0] if sizes else 0)
    site.gone()
    assert site.sizes(10) == [sum(counts) if sizes else 0]


def fits(free, gpus, parts):
    """Whether each part has as many targets with as many GPUs."""
    if not parts:
        return True
    (count, need), *others = parts
    able = [rank for rank in free if gpus[rank] >= need]
    return any(fits(free.difference(some), gpus, others) for some in combinations(able, count))
