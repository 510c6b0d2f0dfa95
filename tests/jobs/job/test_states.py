"""The table of RFC 21, walked over all states and events."""

from __future__ import annotations

import pytest

from fluxsched.errors import InvalidTransition
from fluxsched.jobs.job.job import EVENTS_KEPT, Job
from fluxsched.jobs.job.states import ACTIVE, EVENTS, FATAL, PENDING, RUNNING, TRANSITIONS, State, state_mask, step
from fluxsched.jobs.queue.queues import JobQueue, QueueConfig

CONTEXTS = {
    "submit": {"urgency": 16, "userid": 1, "flags": 0, "version": 1},
    "urgency": {"urgency": 5, "userid": 1},
    "priority": {"priority": 5},
    "dependency-add": {"description": "afterok=7"},
    "dependency-remove": {"description": "afterok=7"},
    "jobspec-update": {"attributes.system.duration": 60.0},
    "resource-update": {"expiration": 60.0},
    "memo": {"uri": "ssh://host/path"},
    "finish": {"status": 0},
    "grow": {"R": {"version": 1, "execution": {"R_lite": [{"rank": "3", "children": {"core": "0"}}]}}},
    "shrink": {"ranks": "3", "note": ""},
    "release": {"ranks": "3", "final": False},
    "exception": {"type": "x", "severity": 1, "note": ""},
    FATAL: {"type": "x", "severity": 0, "note": ""},
}

# RFC 21's diagram, written down a second time: every event that is listed for a state, and the moves
MOVES = {
    (State.NEW, "validate"): State.DEPEND,
    (State.DEPEND, "depend"): State.PRIORITY,
    (State.PRIORITY, "priority"): State.SCHED,
    (State.SCHED, "alloc"): State.RUN,
    (State.SCHED, "flux-restart"): State.PRIORITY,
    (State.RUN, "finish"): State.CLEANUP,
    (State.CLEANUP, "clean"): State.INACTIVE,
    **{(state, FATAL): State.CLEANUP for state in State if state & ACTIVE},
}
ANYWHERE = {"exception", "flux-restart", "memo"}
STAYS = {
    State.NEW: {"submit"},
    State.DEPEND: {"dependency-add", "dependency-remove", "urgency", "jobspec-update"} | ANYWHERE,
    State.PRIORITY: {"urgency", "jobspec-update"} | ANYWHERE,
    State.SCHED: {"urgency", "jobspec-update", "priority", "exception", "memo"},
    State.RUN: {"start", "resource-update", "grow", "shrink", "release"} | ANYWHERE,
    State.CLEANUP: {"start", "finish", "release", "free"} | ANYWHERE,
    State.INACTIVE: set(),
}
PAIRS = [(state, event) for state in State for event in sorted(EVENTS)]


def job_in(state: State) -> Job:
    job = Job(1, JobQueue(QueueConfig()), None)
    job.state = state
    return job


def event_of(kind: str) -> dict[str, object]:
    name = "exception" if kind == FATAL else kind
    return {"timestamp": 5.0, "name": name, "context": CONTEXTS.get(kind, {})}


def test_the_table_has_a_row_for_every_state() -> None:
    assert TRANSITIONS.keys() == set(State)


@pytest.mark.parametrize(("state", "event"), PAIRS, ids=[f"{state.name}-{event}" for state, event in PAIRS])
def test_every_event_in_every_state(state: State, event: str) -> None:
    target = MOVES.get((state, event), state if event in STAYS[state] else None)
    job = job_in(state)
    if target is None:
        with pytest.raises(InvalidTransition, match=r"job 1: event .* in state"):
            job.apply(event_of(event))
        assert job.state is state
        assert job.recent_events == []
    else:
        assert step(state, event) is target
        job.apply(event_of(event))
        assert job.state is target


@pytest.mark.parametrize("state", list(State))
def test_unlisted_events_change_nothing_and_are_kept(state: State) -> None:
    job = job_in(state)
    job.apply({"timestamp": 5.0, "name": "debug.free-request"})
    assert job.state is state
    assert step(state, "debug.x") is state
    assert [event["name"] for event in job.recent_events or ()] == ["debug.free-request"]


def test_a_refused_event_tells_the_story() -> None:
    job = job_in(State.DEPEND)
    job.apply(event_of("urgency"))
    with pytest.raises(InvalidTransition) as caught:
        job.apply(event_of("alloc"))
    assert "allowed there: " in str(caught.value)
    assert "5.000000 urgency {'urgency': 5" in str(caught.value)


def test_the_story_is_bounded() -> None:
    job = job_in(State.RUN)
    for number in range(EVENTS_KEPT + 10):
        job.apply({"timestamp": float(number), "name": "debug.x"})
    assert [event["timestamp"] for event in job.recent_events or ()] == [float(n) for n in range(10, EVENTS_KEPT + 10)]


def test_virtual_states_are_unions() -> None:
    assert state_mask(("pending", "RUN")) == PENDING | State.RUN
    assert state_mask(("active",)) == PENDING | RUNNING
    with pytest.raises(KeyError):
        state_mask(("asleep",))
