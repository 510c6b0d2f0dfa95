"""Virtual time that passes while the scheduler works, by a stopwatch that the test winds."""

import pytest

from fluxsched.errors import InvalidValue
from fluxsched.sched.policies.backfill import Fifo
from fluxsched.sim import run
from fluxsched.sim.report import as_json, table


class Stopwatch:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


class Slow(Fifo):
    """Takes two seconds for each decision, and one more to find that there is none."""

    def __init__(self, watch):
        super().__init__()
        self.watch = watch

    def schedule(self, view, now_s):
        for decision in super().schedule(view, now_s):
            self.watch.now_s += 2.0
            yield decision
        self.watch.now_s += 1.0


def simulate(trace, **options):
    watch = Stopwatch()
    return run(trace, Slow(watch), stopwatch=watch, own_time=True, check=True, **options)


def test_a_job_starts_when_it_is_decided_and_what_is_due_meanwhile_is_for_the_next_pass(trace_of):
    jobs = simulate(trace_of((0, 10, 99, 1), (0, 10, 99, 1), (3, 10, 99, 1)), procs=4)
    assert jobs.jobs.start == [2, 4, 7]
    assert jobs.cost.considered_s == [5, 5, 5]  # the first pass ends at 5, the second at 8


def test_a_job_ends_in_its_time_though_nothing_is_freed_before_a_pass_is_over(trace_of):
    jobs = simulate(trace_of((0, 1, 99, 1), (0, 9, 99, 1), (1, 1, 99, 3)), procs=4).jobs
    assert jobs.end[:2] == [3, 13]
    assert jobs.start[2] == 7  # freed at 3, found at 5


def test_the_report_says_how_soon_jobs_are_considered(trace_of):
    trace = trace_of((0, 10, 99, 1), (0, 10, 99, 1), (3, 10, 99, 1))
    result = simulate(trace, procs=4)
    lines = {line.rpartition(" ")[0].strip(): line.rpartition(" ")[2] for line in table([result])}
    assert (lines["considered p50 [s]"], lines["considered p99 [s]"]) == ("5.000", "5.000")
    assert lines["started [jobs/s]"] == f"{3 / 17:.3f}"
    cost = as_json(trace, [result])["policies"][0]["cost"]
    assert (cost["considered_p99_s"], cost["considered_max_s"]) == (5, 5)
    plain = run(trace, "fifo", procs=4)
    assert not any("considered" in line or "started" in line for line in table([plain]))


def test_a_stopwatch_that_steps_back_does_not_turn_time_back(trace_of):
    times = iter([100.0] * 4 + [50.0] * 1000)
    trace = trace_of((0, 10, 99, 1), (5, 10, 99, 1))
    jobs = run(trace, "fifo", procs=2, stopwatch=lambda: next(times), own_time=True).jobs
    assert all(start is not None and start >= submit for start, submit in zip(jobs.start, jobs.submit, strict=True))


def test_it_needs_a_stopwatch(trace_of):
    with pytest.raises(InvalidValue, match="own_time needs a stopwatch"):
        run(trace_of((0, 1, 1, 1)), procs=1, own_time=True)
