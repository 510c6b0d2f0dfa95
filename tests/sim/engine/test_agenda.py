"""The order of virtual time: ends, then the site, then submissions; then the order of planning."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.sim.simulation import END, SITE, SUBMIT, Agenda


class Incomparable:
    """A payload that breaks whoever compares it."""

    __lt__ = __gt__ = __eq__ = None
    __hash__ = None


def drain(agenda, until_s=float("inf")):
    found = []
    while events := agenda.next_instant(until_s):
        found.append((agenda.now_s, [kind for kind, _ in events]))
    return found


def test_one_instant_in_order():
    agenda = Agenda([5.0, 5.0, 7.0])
    for kind in (SITE, END, SITE, END):
        agenda.at(5.0, kind, Incomparable())
    assert drain(agenda) == [(5.0, [END, END, SITE, SITE, SUBMIT, SUBMIT]), (7.0, [SUBMIT])]


def test_what_is_planned_for_now_makes_another_instant():
    agenda = Agenda([5.0])
    assert agenda.next_instant(5.0) == [(SUBMIT, 0)]
    agenda.at(5.0, END, 0)
    agenda.at(6.0, END, 1)
    assert agenda.next_instant(5.0) == [(END, 0)]
    assert agenda.next_instant(5.0) == []
    assert drain(agenda) == [(6.0, [END])]


def test_the_past_is_closed():
    agenda = Agenda([5.0])
    assert drain(agenda) == [(5.0, [SUBMIT])]
    with pytest.raises(AssertionError, match="before"):
        agenda.at(4.0, END, 0)


times = st.integers(0, 5).map(float)


@settings(max_examples=50)
@given(st.lists(times), st.lists(st.tuples(times, st.sampled_from([END, SITE]))))
def test_nothing_is_lost_and_time_never_runs_back(submits, planned):
    agenda = Agenda(sorted(submits))
    for at, (when_s, kind) in enumerate(planned):
        agenda.at(when_s, kind, at)
    found = drain(agenda)
    assert [when_s for when_s, _ in found] == sorted({*submits, *(when_s for when_s, _ in planned)})
    for when_s, kinds in found:
        want = [kind for at_s, kind in planned if at_s == when_s] + [SUBMIT] * submits.count(when_s)
        assert kinds == sorted(want)
