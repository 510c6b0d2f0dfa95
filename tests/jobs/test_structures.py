"""Data structures with laws of their own: the table of states, walks over ids, the heap, annotations."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.errors import InvalidTransition, LimitExceeded
from fluxsched.jobs.job import EVENTS_KEPT, HISTORIES_KEPT, NO_EVENTS, Job
from fluxsched.jobs.queues import STALE_SLACK, JobQueue, PriorityHeap, QueueConfig
from fluxsched.jobs.states import (
    ACTIVE,
    DEPTH_MAX,
    EVENTS,
    FATAL,
    KEYS_MAX,
    PENDING,
    RUNNING,
    TRANSITIONS,
    State,
    merge,
    state_mask,
    step,
)
from fluxsched.jobs.table import ActiveIds, EndedIds

SLACK = 4

# The table of RFC 21, walked over all states and events.


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
    State.RUN: {"start", "resource-update", "grow", "shrink", "release", "prolog-start", "prolog-finish"} | ANYWHERE,
    State.CLEANUP: {"start", "finish", "release", "free", "prolog-start", "prolog-finish", "epilog-start"}
    | {"epilog-finish"}
    | ANYWHERE,
    State.INACTIVE: set(),
}
PAIRS = [(state, event) for state in State for event in sorted(EVENTS)]


def job_in(state):
    job = Job(1, JobQueue(QueueConfig()))
    job.state = state
    return job


def event_of(kind):
    name = "exception" if kind == FATAL else kind
    return {"timestamp": 5.0, "name": name, "context": CONTEXTS.get(kind, {})}


def test_the_table_has_a_row_for_every_state():
    assert TRANSITIONS.keys() == set(State)


@pytest.mark.parametrize(("state", "event"), PAIRS, ids=[f"{state.name}-{event}" for state, event in PAIRS])
def test_every_event_in_every_state(state, event):
    target = MOVES.get((state, event), state if event in STAYS[state] else None)
    job = job_in(state)
    if target is None:
        with pytest.raises(InvalidTransition, match=r"job 1: event .* in state"):
            job.apply(event_of(event))
        assert job.state is state
        assert job.recent_events == ()
    else:
        assert step(state, event) is target
        job.apply(event_of(event))
        assert job.state is target


@pytest.mark.parametrize("state", list(State))
def test_unlisted_events_change_nothing_and_are_kept(state):
    job = job_in(state)
    job.apply({"timestamp": 5.0, "name": "debug.free-request"})
    assert job.state is state
    assert step(state, "debug.x") is state
    assert job.recent_events == ("debug.free-request",)


def test_a_refused_event_tells_the_story():
    job = job_in(State.DEPEND)
    job.apply(event_of("urgency"))
    with pytest.raises(InvalidTransition) as caught:
        job.apply(event_of("alloc"))
    assert "allowed there: " in str(caught.value)
    assert str(caught.value).endswith("before it: urgency")


def test_the_story_is_bounded():
    job = job_in(State.RUN)
    for number in range(EVENTS_KEPT + 10):
        job.apply({"timestamp": 5.0, "name": f"debug.{number}"})
    assert job.recent_events == tuple(f"debug.{number}" for number in range(10, EVENTS_KEPT + 10))


def test_jobs_share_their_stories_of_which_some_are_remembered():
    jobs = [job_in(State.RUN) for _ in range(HISTORIES_KEPT + 10)]
    for number, job in enumerate(jobs):
        job.apply({"timestamp": 5.0, "name": f"debug.{number}"})
        job.apply({"timestamp": 5.0, "name": "debug.again"})
    assert [job.recent_events for job in jobs] == [(f"debug.{at}", "debug.again") for at in range(len(jobs))]
    assert len(NO_EVENTS) <= HISTORIES_KEPT
    first, second = job_in(State.DEPEND), job_in(State.DEPEND)
    for one in (first, second):
        one.apply(event_of("urgency"))
    assert first.event_names is second.event_names


def test_virtual_states_are_unions():
    assert state_mask(("pending", "RUN")) == PENDING | State.RUN
    assert state_mask(("active",)) == PENDING | RUNNING
    with pytest.raises(KeyError):
        state_mask(("asleep",))


# Walks over those who are present, while they come and go.


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_a_walk_meets_all_from_the_latest(step):
    present = {}
    here = ActiveIds(present)
    for jobid in (2**63, 3, 5, 8, 9):
        present[jobid] = ""
        here.add(jobid)
    steps = list(here.walk(step))
    assert [jobid for some in steps for jobid in some] == [9, 8, 5, 3, 2**63]
    assert max(map(len, steps)) <= step


@pytest.mark.parametrize("seed", range(20))
def test_an_id_that_stays_is_met_once_whatever_is_added_and_removed(seed):
    chance = random.Random(seed)
    present = {}
    here, news = ActiveIds(present, SLACK), iter(range(1, 10_000))

    def happens():
        for _ in range(chance.randrange(12)):
            if present and chance.random() < 0.5:
                del present[chance.choice(list(present))]
            else:
                jobid = next(news)
                present[jobid] = ""
                here.add(jobid)

    for _ in range(30):
        happens()
        there, met = set(present), []
        for some in here.walk(3):
            met += some
            happens()
            there &= set(present)
        assert met == sorted(set(met), reverse=True)
        assert there <= set(met)
        met_now = [jobid for some in here.walk(100) for jobid in some]
        assert len(met_now) <= 2 * len(present) + SLACK + 12


# Walks over ended jobs, while others end and old ones are forgotten.


@pytest.mark.parametrize("seed", range(20))
def test_a_number_stays_whatever_ends_and_is_forgotten(seed):
    chance = random.Random(seed)
    kept = {}
    here, all_ids = EndedIds(kept, SLACK), []
    for jobid in [chance.getrandbits(64) for _ in range(300)]:
        kept[jobid] = ""
        here.add(jobid)
        all_ids.append(jobid)
        if chance.random() < 0.9:
            oldest = next(iter(kept))
            del kept[oldest if chance.random() < 0.9 else chance.choice(list(kept))]
            here.forget()
        low, high = sorted(chance.choices(range(-5, len(all_ids) + 5), k=2))
        assert here.end == len(all_ids)
        found = list(here.between(low, high))

        begin = next((at for at, one in enumerate(all_ids) if one in kept), len(all_ids))
        assert found == all_ids[max(low, begin) : max(high, begin)]
        assert len(here._ids) <= 2 * (len(all_ids) - begin + SLACK)


# Job ids by priority.


def first_of(model):
    return min((key, one) for one, key in model.items()) if model else None


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("+-!?"), st.integers(0, 8), st.integers(0, 5)), max_size=60))
def test_it_orders_like_a_sorted_list(steps):
    heap, model = PriorityHeap(), dict[int, tuple[float, ...]]()
    for what, jobid, rank in steps:
        if what == "+":
            heap.push(jobid, (rank, jobid))
            model[jobid] = (rank, jobid)
        elif what == "-":
            heap.discard(jobid)
            model.pop(jobid, None)
        elif what == "?":
            assert heap.head() == first_of(model)
        elif model:
            first = min(model, key=lambda one: model[one])
            assert heap.pop() == first
            del model[first]
        assert len(heap) == len(model)
    assert heap.head() == first_of(model)
    assert all(jobid in heap for jobid in model)


def test_draining_takes_out_what_is_live():
    heap = PriorityHeap()
    for jobid, key in ((1, 5.0), (2, 3.0), (1, 1.0), (3, 0.0)):
        heap.push(jobid, (key,))
    heap.discard(3)
    assert sorted(heap.drain()) == [((1.0,), 1), ((3.0,), 2)]
    assert (len(heap), heap.head(), heap.drain()) == (0, None, [])


def test_a_heap_of_replaced_entries_stays_small():
    heap = PriorityHeap()
    for turn in range(1000):
        for jobid in range(3):
            heap.push(jobid, (turn,))
        assert heap.head() == ((turn,), 0)
    assert len(heap._heap) <= 2 * 3 + STALE_SLACK + 1
    with pytest.raises(IndexError):
        PriorityHeap().pop()


# How updates change annotations.


def test_annotations_merge_by_the_rules_of_rfc27():
    old = {"sched": {"t_estimate": 5.0, "reason_pending": "full"}, "user": "text"}
    new = merge(old, {"sched": {"t_estimate": None, "queue": 3}, "user": {"a": {"b": None, "c": 1}}, "gone": None})
    assert new == {"sched": {"reason_pending": "full", "queue": 3}, "user": {"a": {"c": 1}}}
    assert old == {"sched": {"t_estimate": 5.0, "reason_pending": "full"}, "user": "text"}


def test_jobs_may_share_annotations_that_merge_with_nothing():
    update = {"sched": {"resource_summary": "rank0/core0"}, "user": 1}
    assert merge({}, update) is update
    assert merge({"user": 2}, update) == update
    assert merge({}, {"sched": {"t_estimate": None}, "user": None}) == {"sched": {}}


def test_annotations_are_bounded():
    deep = {"leaf": 1}
    for _ in range(DEPTH_MAX):
        deep = {"d": deep}
    with pytest.raises(LimitExceeded, match="nest deeper than 8"):
        merge({}, deep)
    with pytest.raises(LimitExceeded, match=f"limit {KEYS_MAX}"):
        merge({}, {str(key): 1 for key in range(KEYS_MAX + 1)})
