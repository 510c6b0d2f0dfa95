"""Figures against what is worked out by hand, and against plain restatements."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.sim import Trace, run
from fluxsched.sim.report import as_json, table
from fluxsched.sim.result import (
    NO_ROW,
    Preemption,
    average,
    averages,
    bounded_slowdown,
    busy_steps,
    jain,
    maximum,
    percentile,
    queue_steps,
    sampled,
    spread,
    steps_of,
    used_core_s,
)


@pytest.mark.parametrize(
    ("wait_s", "run_s", "want"), [(0, 0, 1), (0, 100, 1), (100, 100, 2), (40, 0, 4), (20, 5, 2.5), (0, 5, 1), (5, 5, 1)]
)
def test_bounded_slowdown(wait_s, run_s, want):
    assert bounded_slowdown(wait_s, run_s) == want


def test_spread():
    assert spread([]) is spread([None]) is None
    four = spread([4, None, 1, 2, 3])
    assert four is not None
    assert (four.mean, four.median, four.max) == (2.5, 2.5, 4)
    assert four.p95 == pytest.approx(3.85)
    assert percentile([7], 0.95) == 7


def test_fairness():
    assert jain([]) is None
    assert jain([3, 3, 3]) == 1
    assert jain([1, 0, 0, 0]) == 0.25


def test_the_figures_of_a_small_schedule(trace_of):
    trace = trace_of((0, 10, 10, 2), (0, 20, 20, 1), (5, 10, 10, 2))
    jobs = [job._replace(user=user) for job, user in zip(trace.jobs, ("a", "b", "b"), strict=True)]
    result = run(Trace.of(jobs), procs=2)
    assert result.jobs.start == [0, 10, 30]
    assert busy_steps(result.jobs) == [(0, 2), (10, 1), (30, 2), (40, 0)]
    assert queue_steps(result.jobs) == [(0, 1), (5, 2), (10, 1), (30, 0)]
    figures = result.summary
    assert (figures.makespan_s, figures.utilisation, figures.queue_max) == (40, 60 / 80, 2)
    assert figures.queue_mean == pytest.approx((5 + 10 + 20) / 40)
    assert figures.wait_s is not None
    assert figures.slowdown is not None
    assert (figures.wait_s.mean, figures.wait_s.max) == (35 / 3, 25)
    assert figures.slowdown.mean == pytest.approx((1 + 1.5 + 3.5) / 3)
    assert [(share.name, share.jobs, share.core_s) for share in figures.users] == [("b", 2, 40), ("a", 1, 20)]
    assert figures.fairness_users == pytest.approx((1 + 2.5) ** 2 / (2 * (1 + 2.5**2)))
    assert [share.name for share in figures.queues] == [None]


def test_nothing_at_all_has_figures_too(trace_of):
    figures = run(trace_of((0, 1, 1, 9)), procs=2).summary
    assert (figures.wait_s, figures.slowdown, figures.makespan_s, figures.states) == (None, None, 0, {"denied": 1})
    assert figures.utilisation is figures.fairness_users is None


changes = st.lists(st.tuples(st.integers(0, 20).map(float), st.integers(-3, 3)), max_size=12)


@settings(max_examples=50)
@given(changes, st.integers(0, 20))
def test_steps_are_the_running_sum(rows, at):
    steps = steps_of(rows)
    before = [value for when_s, value in steps if when_s <= at]
    assert (before[-1] if before else 0) == sum(change for when_s, change in rows if when_s <= at)
    assert [when_s for when_s, _ in steps] == sorted({when_s for when_s, _ in steps})
    assert set(sampled(steps, 3)) <= set(steps)
    assert maximum(sampled(steps, 3)) == maximum(steps)


def test_average_is_over_the_time_asked_for():
    steps = [(0.0, 2), (10.0, 4)]
    assert average(steps, 0, 20) == 3
    assert average(steps, 5, 15) == 3
    assert average(steps, 15, 15) == 0
    assert average([], 0, 5) == 0


def test_a_table_becomes_csv(trace_of):
    file = io.StringIO()
    run(trace_of((0.5, 10, 10, 1), (1, 5, 5, 9)), "fifo", procs=1).to_csv(file)
    assert file.getvalue() == (
        "job,submit,start,end,procs,policy,user,queue,wait,slowdown,state,ranks,note,bank,preempted,lost\n"
        "1,0.5,0.5,10.5,1,fifo,,,0,1,completed,,,,,\n"
        "2,1,,,9,fifo,,,,,denied,,needs 9 slots of 1 core; the group has only 1 such slot,,,\n"
    )


def test_what_preemption_cost(trace_of):
    """Job 1 is ended twice, after 10 and after 5 s, then runs to its end; job 3 once, and is not submitted again."""
    result = run(trace_of((0, 10, 10, 4), (10, 5, 5, 4), (11, 9, 9, 4)), procs=4)
    jobs = result.jobs
    jobs.start[:], jobs.end[:], jobs.state[2] = [30.0, 10.0, 20.0], [40.0, 15.0, 22.0], "preempted"
    jobs.bank = ["a", "b", "b"]
    jobs.preemptions += [
        Preemption(0, 0.0, 10.0, 4, 1, True), Preemption(0, 15.0, 20.0, 4, NO_ROW, True),
        Preemption(2, 20.0, 22.0, 4, 0, False),
    ]  # fmt: skip
    assert busy_steps(jobs) == [(0, 4), (22, 0), (30, 4), (40, 0)]
    assert queue_steps(jobs) == [(0, 0), (10, 1), (11, 2), (15, 1), (30, 0)]
    assert used_core_s(jobs, 40.0) == 4 * 32
    summary = result.summary
    assert (summary.preemptions, summary.lost_core_s, summary.utilisation) == (3, 68.0, 0.8)
    lines = [row[-3:] for row in result.rows()]
    assert lines == [("a", 2, 60.0), ("b", None, None), ("b", 1, 8.0)]
    text = "\n".join(table([result]))
    assert "jobs preempted" in text
    assert "preemptions" in text
    assert "work lost [core h]" in text
    (told,) = as_json(trace_of((0, 1, 1, 1)), [result])["policies"]
    assert told["preempted"][1] == {"job": 1, "start": 15.0, "end": 20.0, "lost_core_s": 20.0, "for": None}
    assert told["preempted"][2]["for"] == 1


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(-5, 5)), min_size=1, max_size=8), st.integers(1, 7))
def test_means_over_parts_of_a_time(changes, parts):
    """Against sums second by second."""
    steps = steps_of(changes)

    def value(now_s):
        return ([0] + [amount for when_s, amount in steps if when_s <= now_s])[-1]

    found = averages(steps, 0, 10 * parts, parts)
    assert found == pytest.approx([sum(map(value, range(10 * at, 10 * at + 10))) / 10 for at in range(parts)])
    assert averages(steps, 5, 5, parts) == [0.0] * parts
