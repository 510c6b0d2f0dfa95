"""The production scheduler against plain loops, on workloads that hypothesis makes up and shrinks."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.sim import Ask, Trace, TraceJob, run
from tests.generated.share import examples

PROCS = 8
DECIDE = {"fifo": "fcfs", "easy": "easy", "easy:order=sjf": "easy_sjf", "conservative": "conservative"}

times = st.integers(0, 12)
begins = st.sampled_from([0.0, 850_000_000.0])
units = st.sampled_from([1.0, 0.01, 0.3])  # most sums with decimals are rounded
rows = st.lists(st.tuples(times, times, st.integers(1, 12), st.integers(1, PROCS + 1)), max_size=14)


def as_trace(jobs: list[tuple[float, float, float, int]]) -> Trace:
    return Trace.of([
        TraceJob(at, submit, run_s, limit, Ask(procs))
        for at, (submit, run_s, limit, procs) in enumerate(jobs)
    ])  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("policy", DECIDE)
@pytest.mark.parametrize("machine", [{"procs": PROCS}, {"nodes": 1, "cores": PROCS}], ids=["targets", "cores"])
def test_generated_workloads(policy: str, machine: dict[str, int], reference: ModuleType) -> None:

    @settings(max_examples=examples(80))
    @given(rows, begins, units)
    def check(rows: list[tuple[int, int, int, int]], begin_s: float, unit_s: float) -> None:
        jobs = [
            (begin_s + submit * unit_s, run * unit_s, limit * unit_s, procs)
            for submit, run, limit, procs in sorted(rows, key=lambda row: row[0])
        ]
        want = reference.simulate([reference.Job(*job) for job in jobs], PROCS, getattr(reference, DECIDE[policy]))
        if jobs:
            assert run(as_trace(jobs), policy, check=True, **machine).jobs.start == want

    check()


@pytest.mark.parametrize(("unit_s", "begin", "limit", "later"), [(0.1, 4, 6, 6), (0.01, 2, 21, 8), (0.3, 1, 21, 8)])
@pytest.mark.parametrize("policy", ["easy", "easy:order=sjf", "hybrid:depth=2"])
def test_who_ends_by_the_shadow_time_as_times_are_rounded_is_let_pass(
    policy: str, unit_s: float, begin: int, limit: int, later: int
) -> None:
    """Its limit is more than the difference of the two times, rounded."""
    first, rest = (begin * unit_s, limit * unit_s), (later * unit_s, (begin + limit - later) * unit_s)
    assert sum(rest) <= sum(first)
    assert rest[1] > sum(first) - rest[0]
    trace = as_trace([(*first, limit * unit_s, 5), (first[0], 1.0, 1.0, PROCS), (*rest, rest[1], 2)])
    assert run(trace, policy, procs=PROCS).jobs.start[2] == rest[0]


@pytest.mark.slow
def test_the_loops_are_right_on_the_known_trace(kth, reference: ModuleType) -> None:
    """A thousand jobs, which later ones cannot delay under any of these three; the rest is for the production code."""
    jobs = [reference.Job(job.submit_s, job.run_s, job.limit_s, job.ask.nslots) for job in kth.trace.jobs[:1000]]
    columns = {"start_fcfs": reference.fcfs, "start_easy_batched": reference.easy}
    for column, decide in columns.items():
        assert reference.simulate(jobs, 100, decide)[:900] == kth.starts[column][:900], column
