"""Outages as numbers: what crosses them, when they recur, and in which stretches of time a job may start."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxsched.core.idset import Idset
from fluxsched.core.outages import LIMITS_KNOWN_MAX, STRETCHES_MAX, USERS_MAX, Outage, Outages, checked
from fluxsched.errors import InvalidValue, LimitExceeded

WEEK_S = 604800.0


def one(ranks=1, from_s=100.0, until_s=200.0, every_s=0.0, name="o"):
    return Outage(name, Idset(ranks), from_s, until_s, every_s)


@pytest.mark.parametrize(
    ("start_s", "end_s", "crosses"),
    [(0, 100, False), (0, 101, True), (150, 160, True), (199, 900, True), (200, 900, False), (0, inf, True)],
)
def test_a_use_crosses_if_it_has_an_instant_in_common(start_s, end_s, crosses):
    assert one().crosses(float(start_s), float(end_s)) is crosses
    assert bool(Outages([one()]).barred(float(start_s), float(end_s))) is crosses


def test_one_that_recurs_has_a_next_occurrence_at_any_time():
    night = one(every_s=1000.0)
    assert night.next(50.0) == night
    assert night.next(200.0) == one(from_s=1100.0, until_s=1200.0, every_s=1000.0)
    assert night.next(1e9 + 150.0).from_s == 1e9 + 100.0
    assert one().next(200.0) is None


MADE = st.builds(
    lambda ranks, from_s, lasts_s, gap_s: Outage(
        "o", Idset(ranks), float(from_s), float(from_s + lasts_s), float(lasts_s + gap_s if gap_s else 0)
    ),
    st.integers(1, 15), st.integers(0, 200), st.integers(1, 50), st.sampled_from([0, 0, 0, 5, 40]),
)  # fmt: skip


def by_instants(outages, start, end):
    """The targets that are out at some whole instant from start to before end."""
    mask = 0
    for outage in outages:
        for at in range(start, end):
            since = at - outage.from_s
            if since >= 0 and outage.every_s:
                since %= outage.every_s
            if 0 <= since < outage.until_s - outage.from_s:
                mask |= outage.targets.mask
                break
    return mask


@given(st.lists(MADE, max_size=4), st.integers(0, 250), st.integers(1, 80))
def test_what_is_barred_is_what_is_out_at_some_instant(made, start, limit):
    outages = Outages(made)
    assert outages.barred(float(start), float(start + limit)) == by_instants(made, start, start + limit)
    assert outages.on(float(start)).mask == by_instants(made, start, start + 1)


@given(st.lists(MADE, max_size=4), st.integers(0, 250), st.integers(1, 80), st.integers(0, 150))
def test_stretches_cover_all_starts_and_bar_what_they_would_cross(made, begin, limit, more):
    ranges = list(Outages(made).stretches(float(limit), float(begin), float(begin + more)))
    assert (ranges[0].from_s, ranges[-1].until_s) == (begin, begin + more)
    assert all(one.until_s == other.from_s for one, other in pairwise(ranges))
    for start in range(begin, begin + more + 1):
        there = [each.barred for each in ranges if each.from_s <= start <= each.until_s]
        wanted = by_instants(made, start, start + limit)
        assert all(barred & wanted == wanted for barred in there)  # nothing is offered that would cross
        assert wanted in there


def test_there_are_so_many_stretches_at_most():
    ranges = list(Outages([one(every_s=1000.0)]).stretches(50.0, 0.0, inf))
    assert len(ranges) == STRETCHES_MAX
    assert list(Outages([one()]).stretches(inf, 0.0, inf)) == [(0.0, 200.0, 1), (200.0, inf, 0)]


def test_the_next_end():
    outages = Outages([one(), one(2, 150.0, 400.0)])
    assert [outages.next_end_s(at) for at in (50.0, 100.0, 200.0, 400.0)] == [200.0, 200.0, 400.0, inf]


def test_what_crosses_comes_in_order():
    outages = Outages([one(2, 150.0, 400.0, name="b"), one(name="a")])
    assert [each.name for each in outages.crossed(0.0, 151.0)] == ["a", "b"]
    assert [each.name for each in outages.crossed(0.0, 150.0)] == ["a"]


def test_it_is_sent_and_stored_as_it_is():
    made = Outages([one(every_s=WEEK_S), Outage("x", Idset(6), 1.0, 2.0, 0.0, "why", ends_jobs=True)])
    assert Outages([Outage.parse(each.to_json()) for each in made.all]) == made
    assert hash(Outages([])) == hash(Outages())


@pytest.mark.parametrize(
    "row",
    [1, {}, {"name": 1}, {"name": "a", "targets": "x", "from": 0, "until": 1}, {"name": "a", "from": "0", "until": 1}],
)
def test_what_is_no_outage_is_refused(row):
    with pytest.raises(InvalidValue):
        Outage.parse(row)


def test_stretches_of_so_many_limits_are_kept_at_most():
    some = [one(), one(2, 300.0, 350.0, 1000.0)]
    known = Outages(some)
    for limit_s in [*range(1, LIMITS_KNOWN_MAX + 4), *range(1, 4)]:
        for from_s in (0.0, 120.0, 90000.0, 50.0):
            fresh = Outages(some).stretches(float(limit_s), from_s, 100000.0)
            for (begin, end, barred), (other_begin, other_end, other) in zip(
                known.stretches(float(limit_s), from_s, from_s + 5000.0), fresh, strict=False
            ):
                if begin < end and other_begin < other_end:
                    assert (begin, barred) == (other_begin, other)


def test_inside_a_reservation_all_else_is_an_outage():
    course = one(0b0110, 100.0, 200.0, every_s=1000.0, name="course")._replace(is_reservation=True)
    known = Outages([course, one(0b0010, 150.0, 160.0)])
    inside = known.inside("course", Idset(0b1111))
    for start_s, end_s, barred in (
        (100.0, 150.0, 0b1001), (100.0, 151.0, 0b1011), (160.0, 200.0, 0b1001), (160.0, 201.0, 0b1111),
        (99.0, 101.0, 0b1111), (200.0, 210.0, 0b1111), (1100.0, 1200.0, 0b1001), (1199.0, 1201.0, 0b1111),
    ):  # fmt: skip
        assert inside.barred(start_s, end_s) == barred, (start_s, end_s)
    assert not known.on(150.0) & Idset(0b0100)  # it is not down
    assert known.inside("talk", Idset(0b1111)).barred(0.0, 1e12) == 0b1111
    assert known.next_end_s(50.0) == 100.0


def test_users_of_a_reservation_are_bounded_and_read_back():
    outage = one(name="course")._replace(is_reservation=True, users=(1, 2))
    assert Outage.parse(outage.to_json()) == outage
    with pytest.raises(InvalidValue, match="users of a reservation are a list of user ids, not 'ann'"):
        Outage.parse({**outage.to_json(), "users": "ann"})
    with pytest.raises(LimitExceeded, match=str(USERS_MAX)):
        checked(outage._replace(users=tuple(range(USERS_MAX + 1))))
