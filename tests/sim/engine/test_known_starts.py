"""Job by job against schedules that other people's simulators computed for the same trace and semantics."""

from dataclasses import replace
from math import inf

import pytest

from fluxsched.sim import run
from tests.generated.share import ALL, examples

POLICIES = {
    "fifo": "start_fcfs",
    "easy": "start_easy_batched",
    "easy:order=sjf": "start_easy_sjbf_batched",
    "conservative": "start_conservative_replan_batched",
}

PUBLISHED = {"fifo": {"slowdown": 6814.97, "wait_s": 353776.4}, "easy": {"slowdown": 92.688}}
"""Means, to all digits that were published."""


def some_of(kth):
    """The trace, of which the plain build has an eighth."""
    return replace(kth.trace, jobs=kth.trace.jobs[: examples(len(kth.trace.jobs))])


def different_so_far(kth, result, column):
    """Of some first jobs: those after them change nothing before they are submitted."""
    later = kth.trace.jobs[len(result.jobs) :]
    until_s = later[0].submit_s if later else inf
    rows = zip(result.jobs.job, result.jobs.start, kth.starts[column], strict=False)
    begun = [row for row in rows if row[2] < until_s]
    assert len(begun) > 0.9 * len(result.jobs)
    return [(job, start, want) for job, start, want in begun if start != want]


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_every_start_is_the_known_one(kth, policy):
    """And their means those that were published, where the whole trace is scheduled."""
    result = run(some_of(kth), policy)
    assert different_so_far(kth, result, POLICIES[policy]) == []
    if not ALL:
        return
    assert len(result.jobs) == 28_481
    slowdown, wait_s = result.summary.slowdown, result.summary.wait_s
    assert slowdown is not None
    assert wait_s is not None
    published = PUBLISHED.get(policy, {})
    means = {"slowdown": slowdown.mean, "wait_s": wait_s.mean}
    assert {name: round(means[name], str(mean)[::-1].index(".")) for name, mean in published.items()} == published


@pytest.mark.parametrize(
    ("policy", "column"), [("fifo", "start_fcfs"), ("easy", "start_easy"), ("easy:order=sjf", "start_easy_sjbf")]
)
def test_every_start_of_the_trace_kept_here_is_that_of_another_simulator(lublin, policy, column):
    result = run(lublin.trace, policy)
    assert len(result.jobs) == 2000
    starts = [round(start, 3) for start in result.jobs.start]
    differing = [(job, *pair) for job, *pair in zip(result.jobs.job, starts, lublin.starts[column], strict=True)
                 if pair[0] != pair[1]]  # fmt: skip
    assert differing == []


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fifo", "easy"])
def test_one_node_of_all_cores_is_scheduled_alike(kth, policy):
    assert different_so_far(kth, run(some_of(kth), policy, nodes=1, cores=100), POLICIES[policy]) == []


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_with_one_account_fair_shares_change_no_start(kth, policy):
    name, _, options = policy.partition(":")
    some = kth.trace.jobs[: examples(3000 if name == "conservative" else 8000)]  # each pass plans all that wait anew
    jobs = [job._replace(user=1, bank="all") for job in some]
    result = run(replace(kth.trace, jobs=jobs), f"fair:backfill={name}" + (f",{options}" if options else ""))
    assert different_so_far(kth, result, POLICIES[policy]) == []


@pytest.mark.slow
def test_the_other_tie_rule_is_told_apart(kth):
    ours, other = kth.starts["start_easy_batched"], kth.starts["start_easy_pyss"]
    differing = sum(start != want for start, want in zip(ours, other, strict=True))
    assert 0.014 < differing / len(kth.trace.jobs) < 0.018
