"""Every short history of a small world, and what that notices; more with `python -m tests.chaos --exhaustive`."""

from __future__ import annotations

import time

import pytest

from tests.chaos.checkers.base import Violation
from tests.chaos.exhaustive.machines import Mask, Memo, SchedulerMachine, Symbol
from tests.chaos.exhaustive.search import explore
from tests.chaos.exhaustive.world import World
from tests.chaos.mutations.report import notice_law
from tests.chaos.mutations.rfc28 import LAWS
from tests.chaos.mutations.sabotage import Sabotage, sabotaged
from tests.generated.share import ALL, first

LEVELS, STATES_MIN = (2, 10_000) if ALL else (1, 100)
"""How many are completed, and states of these: fewer mean that something is no longer tried."""
SECONDS_MAX = 600.0
(LATE,) = [one for one in LAWS if one.name == "no target shall leave while a job holds it"]
"""To find what breaks this law takes all of one dialect's histories: here one history of the other shows it."""


@pytest.mark.parametrize("typed", first([True, False]), ids=lambda typed: "typed" if typed else "plain")
def test_no_history_breaks_a_law(typed: bool) -> None:
    found = explore(typed, LEVELS, SECONDS_MAX)
    assert not found.violation, "\n".join([found.violation, *map(str, found.history)])
    assert found.levels == LEVELS
    assert found.states > STATES_MIN


@pytest.mark.plain_only("exchanges the code of functions")
@pytest.mark.parametrize("one", [one for one in LAWS if one is not LATE], ids=lambda one: one.name)
def test_each_law_of_the_draft_is_looked_at(one: Sabotage) -> None:
    assert notice_law(one)


@pytest.mark.plain_only("exchanges the code of functions")
def test_no_job_holds_a_target_that_is_released_while_its_scheduler_leaves() -> None:
    running = [("submit", 1, "d", Mask(1)), ("read", 0), ("decide", 0), ("receive", 0), ("commit",)]
    leaving = [("assign", Mask(1), "b", False), ("crash", 0)]

    def follow() -> None:
        world = World(typed=True)
        state = world.begin()
        for event in (*running, *leaving, ("receive", 0)):
            state = world.step(state, event)

    follow()
    with sabotaged(LATE), pytest.raises(Violation, match="job 1 of group default holds 1, the group has 6"):
        follow()


def test_a_search_ends_when_its_time_is_up() -> None:
    began_s = time.monotonic()
    found = explore(True, 100, 0.0)
    assert (found.levels, found.violation) == (0, "")
    assert time.monotonic() - began_s < SECONDS_MAX


def test_a_projection_that_leaves_out_what_matters_is_noticed() -> None:
    class Forgetful(SchedulerMachine):
        def project(self) -> tuple[Symbol, Symbol]:
            state, facts = super().project()
            return state[:5] + state[6:], facts  # not what jobs hold

    memo = Memo(Forgetful, own_checks=False)
    at = memo.first
    one = Mask(1)
    for symbol in (("begin", "default"), ("grow", Mask(7), Mask(7)), ("hello-end",), ("ready",)):
        at, _ = memo.step(at, symbol)
    busy, _ = memo.step(memo.step(at, ("alloc", 1, "d", one))[0], ("decide",))
    other, _ = memo.step(memo.step(at, ("alloc", 2, "d", one))[0], ("decide",))
    assert busy == other
    memo.step(busy, ("free", 1, one, True))
    with pytest.raises(AssertionError, match="two histories"):
        memo.audit(100)


def test_equal_states_but_for_the_names_of_targets_are_one() -> None:
    world = World(typed=True)
    first = world.begin()
    drained = {world.canonical(world.step(first, ("drain", Mask(1 << target)))) for target in range(3)}
    assert len(drained) == 1
