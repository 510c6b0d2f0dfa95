"""The states of an application: the table, walked over all states and events, and what moves and times it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest

from fluxsched.yunikorn.applications import (
    APPLICATION_STATES,
    COMPLETING_S,
    OVER,
    STARTING_S,
    AllocationsTimedOut,
    ApplicationEvent,
    ApplicationProgress,
    ApplicationState,
    AsksTimedOut,
    Consequence,
    StateChanged,
)

NEW, ACCEPTED, STARTING, RUNNING = (ApplicationState(name) for name in ("New", "Accepted", "Starting", "Running"))
RESUMING, COMPLETING, COMPLETED = (ApplicationState(name) for name in ("Resuming", "Completing", "Completed"))
FAILING, FAILED = ApplicationState("Failing"), ApplicationState("Failed")

E = ApplicationEvent
ROWS = [
    ([NEW], [E.ASKED, E.RECOVERED], ACCEPTED, "runApplication"),
    ([ACCEPTED], [E.ALLOCATED, E.RESERVED], STARTING, "runApplication"),
    ([STARTING], [E.ALLOCATED, E.STARTING_OVER], RUNNING, "runApplication"),
    ([COMPLETING], [E.ASKED, E.RECOVERED], RUNNING, "runApplication"),
    ([ACCEPTED, STARTING, RUNNING], [E.EMPTY], COMPLETING, "completeApplication"),
    ([NEW, ACCEPTED, STARTING, RUNNING, RESUMING, COMPLETING], [E.REMOVED], COMPLETED, "completeApplication"),
    ([COMPLETING], [E.COMPLETING_OVER], COMPLETED, "completeApplication"),
    ([ACCEPTED], [E.SOFT_TIMEOUT], RESUMING, "ResourceReservationTimeout"),
    ([RESUMING], [E.PLACEHOLDERS_GONE], ACCEPTED, "runApplication"),
    ([ACCEPTED], [E.HARD_TIMEOUT], FAILING, "ResourceReservationTimeout"),
    ([STARTING, RUNNING], [E.EXECUTION_TIMEOUT], FAILING, "ExecutionTimeout"),
    ([FAILING], [E.ALLOCATIONS_GONE], FAILED, "failApplication"),
]


def states(told: Sequence[Consequence]) -> list[str]:
    return [str(each.state) for each in told if isinstance(each, StateChanged)]


@pytest.mark.parametrize(("state", "event"), list(product(ApplicationState, ApplicationEvent)))
def test_each_state_and_event_goes_where_the_specification_says(
    state: ApplicationState, event: ApplicationEvent
) -> None:
    found = [(after, message) for before, events, after, message in ROWS if state in before and event in events]
    listed = APPLICATION_STATES.get((state, event))
    assert ([] if listed is None else [listed]) == found


def test_nothing_leaves_the_last_states() -> None:
    assert not [state for state, _ in APPLICATION_STATES if state in OVER]
    assert {COMPLETED, FAILED} == OVER


def test_an_application_runs_completes_and_frees_its_id() -> None:
    one = ApplicationProgress(0.0)
    assert one.asked(3, 1.0) == [StateChanged(ACCEPTED, "runApplication", 1_000_000_000)]
    assert states(one.allocated(2.0)) == [STARTING]
    assert states(one.allocated(2.5)) == [RUNNING]
    assert states(one.allocated(3.0)) == []
    assert [states(one.released(at_s)) for at_s in (4.0, 5.0, 6.0)] == [[], [], [COMPLETING]]
    assert one.next_wake_s == 6.0 + COMPLETING_S
    assert states(one.wake(35.9)) == []
    assert one.wake(36.0) == [StateChanged(COMPLETED, "completeApplication", 36_000_000_000)]
    assert one.is_over
    assert one.next_wake_s is None


def test_an_ask_ends_the_completion() -> None:
    one = ApplicationProgress(0.0)
    one.asked(1, 0.0)
    assert states(one.unasked(1, 1.0)) == [COMPLETING]
    assert states(one.asked(1, 30.0)) == [RUNNING]
    assert one.next_wake_s is None


def test_starting_ends_after_five_minutes_and_at_once_where_that_is_asked_for() -> None:
    one = ApplicationProgress(0.0)
    one.asked(2, 0.0)
    one.allocated(10.0)
    assert one.next_wake_s == 10.0 + STARTING_S
    assert states(one.wake(310.0)) == [RUNNING]
    other = ApplicationProgress(0.0, is_stateaware_disabled=True)
    other.asked(2, 0.0)
    assert states(other.allocated(10.0)) == [STARTING, RUNNING]


def test_recovered_allocations_make_an_application_run() -> None:
    one = ApplicationProgress(0.0)
    assert states(one.recovered(-50.0, 0.0)) == [ACCEPTED, STARTING]
    assert states(one.recovered(-50.0, 0.0)) == [RUNNING]
    assert states(one.released(1.0)) == []
    assert states(one.released(1.0)) == [COMPLETING]


def test_the_execution_timeout_counts_from_the_first_allocation_and_ends_all() -> None:
    one = ApplicationProgress(0.0, execution_timeout_s=60.0)
    one.asked(3, 0.0)
    assert one.next_wake_s is None
    one.allocated(100.0)
    one.allocated(120.0)
    assert one.next_wake_s == 160.0
    assert one.wake(160.0) == [
        StateChanged(FAILING, "ExecutionTimeout", 160_000_000_000),
        AsksTimedOut(False, "ExecutionTimeout"),
        AllocationsTimedOut("ExecutionTimeout"),
    ]
    assert one.pending == 0
    assert states(one.released(161.0)) == []
    assert one.released(162.0) == [StateChanged(FAILED, "failApplication", 162_000_000_000)]


def test_the_execution_timeout_of_a_recovered_application_counts_from_its_allocation() -> None:
    one = ApplicationProgress(1000.0, execution_timeout_s=60.0)
    one.recovered(970.0, 1000.0)
    assert one.next_wake_s == 1030.0


def test_a_removed_application_completes_without_a_call_for_what_it_had() -> None:
    one = ApplicationProgress(0.0)
    one.asked(3, 0.0)
    one.allocated(0.0)
    assert states(one.removed(1.0)) == [COMPLETED]
    assert (one.pending, one.allocations) == (0, 0)


def test_a_failing_application_that_is_removed_has_failed() -> None:
    one = ApplicationProgress(0.0, execution_timeout_s=1.0)
    one.asked(1, 0.0)
    one.allocated(0.0)
    assert states(one.wake(1.0)) == [FAILING]
    assert states(one.removed(2.0)) == [FAILED]
