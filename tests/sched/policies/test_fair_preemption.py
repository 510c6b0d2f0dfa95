"""Preemption under `fair` through the real scheduler: the table of its page, for whom, how many, and how it goes on."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.sched.decisions import PAUSED, Raise
from fluxsched.sched.fair.accounts import RATE_WINDOW_S, Bank
from tests.generated.share import examples
from tests.sched.policies.preemption_site import Site
from tests.sched.site import beneficiaries, holding, spec

INNER = ("easy", "fifo", "conservative", "hybrid", "firstfit")


def full_of_a(targets, cores, **options):
    """A site on each core of which a job of a's runs."""
    site = Site(targets, cores, **options)
    site.submit("a", targets * cores)
    site.passes()
    return site


# ---- the table


@pytest.mark.parametrize("inner", INNER)
def test_an_account_within_its_share_gets_it(inner):
    site = Site(1, 32, policy=f"fair:backfill={inner}")
    a = site.submit("a", 32)
    assert site.passes() == []
    site.submit("b", 32)
    assert site.passes(60) == list(reversed(a[16:])), "A31 ... A16"
    site.settle()
    assert site.held == {"a": 16, "b": 16}


def test_a_third_takes_of_both_and_then_none_goes():
    site = full_of_a(1, 32)
    site.submit("b", 32)
    site.settle()
    site.submit("c", 10)
    preempted = site.settle()
    assert Counter(site.user[jobid] for jobid in preempted) == {"a": 5, "b": 5}
    assert site.held == {"a": 11, "b": 11, "c": 10}
    assert site.settle(1000) == []


def test_weights_say_how_much():
    banks = {"default": Bank(users={"a": 0.5, "b": 1.0})}
    site = full_of_a(1, 32, banks=banks)
    site.submit("b", 32)
    site.settle()
    assert site.held == {"a": 11, "b": 21}


def test_for_more_than_the_share_none_goes():
    site = full_of_a(1, 32)
    site.submit("b", cores=32)
    assert site.passes(60) == []


def test_for_a_whole_target_those_on_one_target_go():
    site = Site(2, 32)
    a = site.submit("a", 64)
    site.passes()
    site.submit("b", nodes=1)
    preempted = site.passes(60)
    assert len(preempted) == 32
    ranks = {rank for jobid in preempted for rank in holding(site.scheduler, jobid).parts}
    assert ranks == {0}, "both lose as much work: the lower rank"
    assert set(preempted) < set(a)
    site.settle()
    assert site.held == {"a": 32, "b": 32}


def test_for_a_job_of_parts_those_go_where_its_parts_can_be():
    site = Site(5, 4)
    alone = site.submit("a", 5, nodes=1)
    site.passes()
    place = {rank: jobid for jobid in alone for rank in holding(site.scheduler, jobid).parts}
    wanted = spec(parts=((1, {"ranks": ["3"]}), (1, {"ranks": ["2-3"]})))
    assert not site.scheduler.alloc(100, 16, 2, site.now_s, wanted, site.now_s)
    assert sorted(site.passes()) == sorted([place[2], place[3]])
    site.end(place[2], place[3])
    site.passes()
    assert 100 in site.running


def test_the_later_of_the_account_that_is_over():
    site = Site(3, 4)
    site.submit("b", nodes=1)
    _, later = site.submit("c", nodes=1), []
    site.passes()
    later = site.submit("c", nodes=1)
    site.passes(10)
    site.submit("a", nodes=1)
    assert site.passes(60) == later


# ---- how it goes on


def test_the_note_names_the_beneficiary_and_whose_share_it_was():
    site = full_of_a(1, 32)
    site.submit("b")
    (preempted,) = site.passes(1)
    wanted = "preempted so that job ƒZ can start: account default/a uses 32 of its share of 16"
    assert site.notes[preempted] == wanted


def test_no_more_go_for_a_job_until_these_are_gone():
    site = full_of_a(2, 4)
    (b,) = site.submit("b", nodes=1)
    preempted = site.passes(1)
    assert len(preempted) == 4
    for jobid in preempted[:-1]:
        site.end(jobid)
        assert site.passes(1) == []
        assert b not in site.running
    site.end(preempted[-1])
    site.passes()
    assert b in site.running


@pytest.mark.parametrize("inner", INNER)
def test_no_other_job_gets_the_place(inner):
    """b waits for a whole target whose jobs go one by one; c's small jobs arrive meanwhile and find no place there."""
    site = full_of_a(2, 4, policy=f"fair:backfill={inner}")
    (b,) = site.submit("b", nodes=1, duration=100)
    preempted = site.passes(1)
    c = site.submit("c", 2)
    more = [site.passes(0.1)]
    for jobid in preempted:
        site.end(jobid)
        more.append(site.passes(0.1))
    assert b in site.running
    taken = [jobid for found in more for jobid in found]
    assert all(site.user[jobid] == "a" for jobid in taken)
    site.settle()
    assert all(jobid in site.running for jobid in c)


def test_a_beneficiary_that_leaves_changes_nothing_for_those_that_go():
    site = full_of_a(1, 4)
    (b,) = site.submit("b")
    preempted = site.passes(1)
    site.scheduler.cancel(b)
    assert site.passes(1) == []
    assert site.going == preempted
    site.settle()
    assert site.held == {"a": 3}
    assert not beneficiaries(site.scheduler)


def test_none_goes_within_an_account_nor_before_its_time():
    site = Site(1, 4)
    site.submit("a", 4, after=50)
    site.passes()
    site.submit("b", 1)
    site.submit("a", 1)
    assert site.passes(10) == []
    assert site.scheduler.next_notice_s == 50.0
    assert site.passes(39.9) == []
    assert len(site.passes(0.1)) == 1


def test_what_allows_no_preemption_stays():
    site = Site(1, 4)
    site.submit("a", 4, after=None)
    site.passes()
    site.submit("b", 1)
    assert site.passes(1e6) == []


def test_the_rate_holds_back_and_then_a_pass_comes():
    site = full_of_a(1, 32, rate=10)
    site.submit("b", 32)
    assert len(site.passes(1)) == 10
    site.settle()
    assert site.scheduler.next_notice_s == 1 + RATE_WINDOW_S
    assert site.passes(site.scheduler.next_notice_s - site.now_s - 0.1) == []
    assert len(site.passes(0.1)) == 6
    site.settle()
    assert site.held == {"a": 16, "b": 16}


def test_more_than_the_rate_allows_ever_is_not_preempted():
    site = full_of_a(2, 4, rate=3)
    site.submit("b", nodes=1)
    assert site.passes(1) == []
    assert site.settle(1000) == []


def test_a_slot_may_need_several_that_share_a_target():
    site = full_of_a(2, 8)
    (b,) = site.submit("b", cores=5)
    preempted = site.passes(1)
    assert len(preempted) == 5
    site.settle()
    assert b in site.running


def test_a_first_job_that_is_owed_nothing_stops_it():
    """b is first, and not within its share with its job: what c wants, behind it, is not preempted for, either."""
    site = full_of_a(1, 32)
    (b,) = site.submit("b", cores=32)
    site.submit("c")
    assert site.passes(60) == []
    site.scheduler.cancel(b)
    assert len(site.passes(1)) == 1


def test_banks_share_first_and_users_within_them():
    """x holds 12 of its 8, all a's: y's c takes 4 of it; b of x takes what a has above its share of x."""
    site = Site(1, 16, banks={"x": Bank(), "y": Bank()})
    site.submit("a", 12, bank="x")
    site.submit("d", 4, bank="y")
    site.passes()
    site.submit("c", 4, bank="y")
    assert [site.user[jobid] for jobid in site.settle()] == ["a"] * 4
    assert site.held == {"a": 8, "c": 4, "d": 4}
    site.submit("b", 8, bank="x")
    assert [site.user[jobid] for jobid in site.settle()] == ["a"] * 4
    assert site.held == {"a": 4, "b": 4, "c": 4, "d": 4}


# ---- what it costs


@pytest.mark.plain_only("replaces a method")
@pytest.mark.parametrize("after", [None, 0])
def test_where_none_may_go_nothing_is_searched(after, monkeypatch):
    """No job allows it, or no account is above its share."""

    def no_search(*_):
        raise AssertionError("a search")

    site = Site(1, 4)
    monkeypatch.setattr(type(site.scheduler.group("default").preemptions), "if_gone", no_search)
    site.submit("a", 4 if after is None else 2, after=after)
    site.submit("b", 2, after=after)
    site.passes()
    site.submit("b" if after is not None else "c")
    assert site.passes(60) == []


@pytest.mark.plain_only("constants are compiled in")
def test_a_long_search_lets_questions_be_answered(lower):
    lower(LOOKED_AT_ONCE=8)
    site = full_of_a(8, 4)
    (b,) = site.submit("b", nodes=3)
    effects = list(site.scheduler.schedule(site.now_s))
    first = next(at for at, effect in enumerate(effects) if isinstance(effect, Raise))
    assert effects[:first].count(PAUSED) > 1
    assert len([effect for effect in effects if isinstance(effect, Raise)]) == 12
    site.scheduler.cancel(b)


# ---- generated histories

EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.just("submit"),
            st.sampled_from("abcd"),
            st.integers(1, 6),  # jobs
            st.sampled_from([1, 1, 2, 3, 4]),  # cores
            st.sampled_from([None, None, 1, 2]),  # whole nodes
            st.sampled_from([0.0, 0.0, 5.0, None]),  # preemptible after
            st.sampled_from([0.0, 30.0, 300.0]),  # limit
        ),
        st.tuples(st.just("end"), st.integers(0, 20)),
        st.tuples(st.just("wait"), st.sampled_from([1.0, 10.0, 70.0])),
    ),
    min_size=1,
    max_size=25,
)


def played(site, events):
    """What is preempted at each event; before the next, all that are going are gone."""
    found = []
    for event, *rest in events:
        if event == "submit":
            user, jobs, cores, nodes, after, limit = rest
            site.submit(user, jobs, cores, nodes, after, duration=limit)
        elif event == "end" and site.running:
            site.end(sorted(site.running)[rest[0] % len(site.running)])
        elif event == "wait":
            site.now_s += rest[0]
        found.append(site.passes(1.0))
        yield_to = beneficiaries(site.scheduler)
        site.end(*site.going)
        again = site.passes()
        for jobid in yield_to:
            assert jobid in site.running, "it was preempted in vain"
        while site.going:
            site.end(*site.going)
            again += site.passes()
        assert not {*again} & {*yield_to}, "for whom others went is preempted in turn, though shares stay"
        found.append(again)
    return found


@given(EVENTS, st.sampled_from(INNER), st.integers(2, 4), st.sampled_from([3, 1000]))
@settings(max_examples=examples(150), deadline=None)
def test_none_is_preempted_in_vain_and_it_comes_to_an_end(events, inner, targets, rate):
    site = Site(targets, 4, policy=f"fair:backfill={inner}", rate=rate)
    played(site, events)
    assert not site.going
    assert not beneficiaries(site.scheduler)


@given(EVENTS, st.sampled_from(INNER))
@settings(max_examples=examples(100), deadline=None)
def test_where_nothing_happens_any_more_preemption_ends(events, inner):
    """Once all are old enough, each of those that run is preempted at most once more."""
    site = Site(3, 4, policy=f"fair:backfill={inner}")
    played(site, events)
    ran = len(site.running)
    assert len(site.settle(1000.0)) <= ran
    assert site.settle(1000.0) == []
    assert site.settle(0.0) == []


@pytest.mark.parametrize("inner", INNER)
def test_a_job_behind_does_not_use_up_the_cap_meanwhile(inner):
    site = Site(2, 20, policy=f"fair:backfill={inner}", cap=1.0)
    site.submit("b", cores=18)
    site.submit("b", cores=17)
    site.passes()
    (job,) = site.submit("a", cores=20, after=None)
    assert len(site.passes(60)) == 1
    (behind,) = site.submit("a", cores=2, after=None)
    site.passes(1)
    site.settle()
    assert job in site.running, "else one has gone in vain"
    assert behind not in site.running
