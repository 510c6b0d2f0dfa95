"""Which running jobs go: the search against the words of its law done plainly, on generated machines."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.sched.policies.fair_preemption import Levels
from fluxsched.sched.pool.find_fit import find_fit
from fluxsched.sched.pool.placement import BEST_FIT, Shape
from fluxsched.sched.preemption import Openings
from tests.generated.share import examples
from tests.sched.policies.plain_victims import Machine, Plainly
from tests.sched.site import limit, make_r, request_of

VICTIMS_MAX = limit("VICTIMS_MAX")


@pytest.fixture
def machine():
    return lambda ranks, cores: Machine(make_r(ranks, cores=cores))


RUNNING = st.tuples(
    st.integers(0, 5),  # account
    st.sampled_from([1, 1, 2, 3, 4, 8]),  # cores
    st.integers(1, 2),  # nodes
    st.integers(0, 20),  # begin
    st.sampled_from([None, 0.0, 0.0, 0.0, 985.0]),
)
PATHS = [("x", "a"), ("x", "b"), ("y", "c"), ("d",), ("e",), ("z", "f")]


@given(
    st.lists(RUNNING, min_size=1, max_size=40),
    st.sampled_from(
        [(None, 1, 1), (None, 1, 4), (None, 6, 1), (None, 3, 2), (1, 1, 8), (2, 1, 8), (2, 2, 2), (3, 1, 3)]
    ),
    st.booleans(),
    st.sampled_from([("w",), ("x", "w"), ("y", "w")]),
    st.lists(st.sampled_from([0.25, 1.0, 2.0]), min_size=7, max_size=7),
)
@settings(max_examples=examples(300), deadline=None)
def test_the_search_does_what_its_law_says(jobs, wanted, exclusive, path, weights):
    made = Machine(make_r("0-3", cores=8))
    accounts = [made.account(*path, weight=weight) for path, weight in zip(PATHS, weights, strict=False)]
    for jobid, (at, cores, nodes, begun, after_s) in enumerate(sorted(jobs, key=lambda job: job[3])):
        made.run(jobid, accounts[at], request_of(nodes=nodes, cores=cores), float(begun), after_s)
    nodes, slots, cores = wanted
    request = request_of(nodes=nodes, slots=slots, cores=cores, exclusive=exclusive and nodes is not None)
    beneficiary = made.account(*path, weight=weights[-1], waits=1)
    found = made.search(beneficiary, request)
    if Levels(made.tree).scope(beneficiary, float((nodes or 1) * slots * cores)) != [*beneficiary.up()][1:]:
        return  # only some banks give; what these are is tested below
    assert list(found.victims) == Plainly(made, beneficiary, request).victims()
    assert (found.fit is not None) == (bool(found.victims) or find_fit(made.pool, Shape(request), BEST_FIT) is not None)
    made.ledger.check()


# ---- by hand


def test_a_bank_over_its_share_takes_only_from_its_own_users(machine):
    """x holds 7 of its 4, y 1; b of x wants one core: of a, also of x, but not of c, of y."""
    made = machine("0", 8)
    a, c = made.account("x", "a"), made.account("y", "c")
    for jobid in range(7):
        made.run(jobid, a, request_of(), float(jobid), 0.0)
    made.run(7, c, request_of(), 7.0, 0.0)
    b = made.account("x", "b", waits=1)
    assert list(made.search(b, request_of()).victims) == [6]
    d = made.account("y", "d", waits=1)
    assert list(made.search(d, request_of()).victims) == [6], "a bank within its share takes of others"


def test_of_several_the_account_furthest_over_goes_first(machine):
    made = machine("0", 8)
    a, b = made.account("a", weight=2.0), made.account("b")
    for jobid in range(5):
        made.run(jobid, a, request_of(), float(jobid), 0.0)
    for jobid in range(5, 8):
        made.run(jobid, b, request_of(), float(jobid) - 100, 0.0)
    c = made.account("c", waits=1)
    assert list(made.search(c, request_of()).victims) == [7], "3 of 2 is more than 5 of 4"


def test_what_is_too_young_names_the_time_from_which_it_may_go(machine):
    made = machine("0", 8)
    a, b = made.account("a"), made.account("b", waits=1)
    for jobid in range(8):
        made.run(jobid, a, request_of(), float(jobid), 1000.0)
    found = made.search(b, request_of(), 999.0)
    assert (list(found.victims), found.early_s) == ([], 1000.0)
    assert list(made.search(b, request_of(), 1000.0).victims) == [0]


@pytest.mark.plain_only("replaces a method")
def test_so_many_are_looked_at_and_no_more(machine, lower, monkeypatch):
    assert VICTIMS_MAX == 65_536
    made = machine("0-31", 4)
    a, b, c = made.account("a"), made.account("b"), made.account("c", waits=1)
    made.run(0, b, request_of(nodes=32), 0.0, None)
    for jobid in range(1, 97):
        made.run(jobid, a, request_of(), float(jobid), 0.0)
    whole = request_of(nodes=1, exclusive=True, cores=4)
    assert made.search(c, request_of()).fit is not None
    lower(VICTIMS_MAX=64)
    lower(LOOKED_AT_ONCE=16)
    looked = []
    at = Openings.at
    monkeypatch.setattr(Openings, "at", lambda openings, rank: (looked.append(rank), at(openings, rank))[1])
    found = made.search(c, whole)
    assert (found.fit, dict(found.victims), found.early_s) == (None, {}, inf)
    assert len(looked) < 32
