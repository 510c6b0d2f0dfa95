"""The table of leases: every event in every state, and what must never follow."""

from __future__ import annotations

from itertools import product

import pytest

from fluxsched.leases.states import STEPS, LeaseAction, LeaseEvent, LeaseState, Wish

CERTAIN = {LeaseEvent.ABSENT, LeaseEvent.CLOSED, LeaseEvent.REFUSED, LeaseEvent.FORGOTTEN}
"""Who learns one of these knows that nothing runs there, and nothing will."""
GIVEN_UP = {LeaseAction.RETURN, LeaseAction.DROP}


def reachable():
    """Pairs of state and wish that a lease can come to, from the first."""
    found = set()
    open_ends = [(state, Wish.RUN) for state in (LeaseState.WANTED, LeaseState.SENT, LeaseState.RUNNING)]
    while open_ends:
        pair = open_ends.pop()
        if pair not in found:
            found.add(pair)
            open_ends += [(step.state, step.wish) for step in STEPS[pair].values()]
    return found


def test_the_table_has_a_row_for_each_pair_that_can_occur_and_no_others():
    assert reachable() == STEPS.keys()


@pytest.mark.parametrize(("pair", "event"), [*product(STEPS, LeaseEvent)], ids=str)
def test_every_event_in_every_state(pair, event):
    state, _ = pair
    step = STEPS[pair][event]
    if state is LeaseState.ENDED:
        assert step == (LeaseState.ENDED, Wish.RUN, LeaseAction.NOTHING)
    if state is LeaseState.RUNNING:  # it runs once
        assert step.action not in GIVEN_UP | {LeaseAction.SUBMIT, LeaseAction.BEGIN}
    if step.action in GIVEN_UP:
        assert state is LeaseState.WANTED or event in CERTAIN
    if step.action is LeaseAction.SUBMIT:
        assert event is LeaseEvent.ABSENT
        assert step.state is LeaseState.SENT
    ends = {LeaseAction.FINISH, LeaseAction.FAIL, LeaseAction.LOSE} | GIVEN_UP
    if state is not LeaseState.ENDED:
        assert (step.state is LeaseState.ENDED) == (step.action in ends), "a lease ends with a word to its job"
    if event is LeaseEvent.FINISHED and state is not LeaseState.ENDED:
        assert step.action is LeaseAction.FINISH
