"""Batched semantics on small traces, worked out by hand, and what the site does to running jobs."""

from math import inf, nan

import pytest

from fluxsched.errors import InvalidValue
from fluxsched.sched.policies.backfill import Fifo
from fluxsched.sim import Ask, Trace, run
from fluxsched.sim.site import parse_site


def simulate(trace, resources, *events, policy="fifo", **options):
    steps = parse_site(events, "site", resources)
    return run(trace, policy, resources=resources, site=steps, check=True, **options)


def test_ends_free_what_submissions_of_the_same_instant_get(trace_of):
    result = run(trace_of((0, 10, 10, 4), (10, 5, 5, 4)), procs=4, check=True)
    assert (result.jobs.start, result.jobs.end) == ([0, 10], [10, 15])


def test_a_job_ends_after_the_shorter_of_run_and_limit(trace_of):
    result = run(trace_of((0, 10, 4, 1), (0, 4, 10, 1), (0, 4, 4, 1), (0, 7, None, 1)), procs=4)
    assert result.jobs.end == [4, 4, 4, 7]
    assert result.jobs.state == ["timeout", "completed", "completed", "completed"]


def test_run_time_zero_ends_at_once_and_frees_within_the_instant(trace_of):
    result = run(trace_of((3, 0, 5, 2), (3, 0, 5, 2), (3, 1, 5, 2)), procs=2, check=True)
    assert (result.jobs.start, result.jobs.end) == ([3, 3, 3], [3, 3, 4])
    assert result.cost.instants == 4


def test_floats_are_exact(trace_of):
    result = run(trace_of((0.1, 0.2, 1, 1), (0.15, 0.5, 1, 1)), procs=1)
    assert result.jobs.start == [0.1, 0.1 + 0.2]


def test_what_can_never_run_is_denied_and_does_not_block(trace_of):
    result = run(trace_of((0, 5, 5, 9), (0, 5, 5, 4)), procs=4)
    assert result.jobs.state == ["denied", "completed"]
    assert result.jobs.start == [None, 0]
    assert "4" in result.jobs.notes[0]


def test_until_leaves_the_rest_undone(trace_of):
    trace = trace_of((0, 10, 10, 2), (1, 10, 10, 2), (20, 1, 1, 1))
    result = run(trace, procs=2, until_s=5)
    assert result.jobs.state == ["running", "waiting", "unsubmitted"]
    assert result.jobs.end == [None, None, None]
    assert run(trace, procs=2, until_s=10).jobs.start == [0, 10, None]


def test_figures_are_of_the_time_that_was_simulated(trace_of):
    trace = trace_of((0, 10, 10, 2), (1, 10, 10, 2), (40, 1, 1, 1))
    early = run(trace, procs=2, until_s=5).summary
    assert (early.makespan_s, early.utilisation, early.queue_max, early.queue_mean) == (5, 1.0, 1, 0.8)
    assert run(trace, procs=2, until_s=39).summary.makespan_s == 39
    assert run(trace, procs=2, until_s=50).summary.makespan_s == 41
    assert run(trace_of((30, 10, 10, 2)), procs=2, until_s=5).summary.makespan_s == 0


def test_progress_and_cost_are_told(trace_of):
    seen, ticks = [], iter(range(10**6))
    trace = trace_of(*[(at, 1, 1, 1) for at in range(300)])
    result = run(trace, procs=1, progress=lambda *told: seen.append(told), stopwatch=lambda: float(next(ticks)))
    assert seen == [(255, 300, 255.0)]
    assert result.cost.instants == len(result.cost.pass_s) == 301
    assert result.cost.passes == 300
    assert set(result.cost.pass_s) == {1.0}
    assert result.cost.wall_s == 603


def test_ids_of_a_trace_may_be_anything(trace_of):
    trace = trace_of((0, 5, 5, 1), (0, 5, 5, 1))
    twice = Trace.of([job._replace(job="x", user=user) for job, user in zip(trace.jobs, ("ann", None), strict=True)])
    result = run(twice, procs=1)
    assert (result.jobs.job, result.jobs.start) == (["x", "x"], [0, 5])


def test_placements_are_shown_if_asked_for(trace_of, four_nodes):
    trace = trace_of((0, 5, 5, Ask(2, nodes=2)), (0, 5, 5, Ask(gpus=1)), (0, 5, 5, Ask(nodes=1, exclusive=True)))
    result = run(trace, "firstfit", resources=four_nodes, placements=True)
    assert result.jobs.ranks is not None
    assert all(result.jobs.ranks)
    assert result.jobs.procs == [2, 1, 2]
    assert run(trace, "firstfit", resources=four_nodes).jobs.ranks is None


def test_constraints_and_jobspecs_are_obeyed(trace_of, four_nodes):
    from fluxsched.core.jobspec import Jobspec

    whole = Jobspec.from_command(["x"], nodes=2, duration_s=3, constraint={"not": [{"properties": ["gpu"]}]})
    import json

    asks = [Ask(constraint='{"properties": ["gpu"]}'), Ask(jobspec=json.dumps(whole.to_json())), Ask(jobspec="{}")]
    result = run(trace_of(*[(0, 5, None, ask) for ask in asks]), resources=four_nodes, placements=True)
    assert result.jobs.ranks == ["2", "0-1", None]
    assert (result.jobs.end, result.jobs.procs) == ([5, 3, None], [1, 2, 1])
    assert result.jobs.state == ["completed", "timeout", "denied"]


def test_a_drained_target_finishes_its_job_and_takes_no_other(trace_of, four_nodes):
    trace = trace_of((0, 10, 10, 8), (1, 10, 10, 7))
    result = simulate(
        trace, four_nodes, '{"at": 5, "do": "drain", "targets": "n0"}', '{"at": 50, "do": "undrain", "targets": "0"}'
    )
    assert (result.jobs.start, result.jobs.end) == ([0, 50], [10, 60])
    assert result.capacity == [(0, 8), (5, 6), (50, 8)]


def test_offline_is_like_drained_for_jobs_and_an_outage_ends_them(trace_of, four_nodes):
    trace = trace_of((0, 10, 10, 8), (1, 10, 10, 2))
    off = simulate(trace, four_nodes, '{"at": 5, "do": "offline", "targets": "0-3"}',
                   '{"at": 20, "do": "online", "targets": "2"}')  # fmt: skip
    assert (off.jobs.start, off.jobs.end) == ([0, 20], [10, 30])
    out = simulate(trace, four_nodes, '{"at": 5, "do": "outage", "targets": "3", "for": "1m"}')
    assert (out.jobs.start, out.jobs.end, out.jobs.state) == ([0, 5], [5, 15], ["failed", "completed"])
    assert out.capacity == [(0, 8), (5, 6), (65, 8)]


def test_no_job_that_is_told_of_a_maintenance_starts_into_it(trace_of, four_nodes):
    event = '{"at": 100, "do": "maintenance", "targets": "0-3", "for": 50, "notice": 30}'
    result = simulate(trace_of((60, 20, 20, 1), (65, 90, 90, 1), (75, 5, 5, 1), (76, 30, 30, 1)), four_nodes, event)
    assert result.jobs.start == [60, 65, 75, 150]
    assert result.jobs.end == [80, 100, 80, 180]
    assert result.jobs.state == ["completed", "failed", "completed", "completed"]


def test_what_leaves_its_group_takes_its_jobs_along_and_comes_back(trace_of, four_nodes):
    result = simulate(
        trace_of((0, 10, 10, 8), (1, 10, 10, 8), (2, 10, 10, 6)), four_nodes,
        '{"at": 5, "do": "assign", "targets": "3", "group": "exclude"}',
        '{"at": 40, "do": "include", "targets": "3"}',
    )  # fmt: skip
    assert result.jobs.state == ["failed", "completed", "completed"]
    assert result.jobs.start == [0, 40, 5]  # it waits, and delays no other job
    assert result.capacity == [(0, 8), (5, 6), (40, 8)]


def test_a_graceful_move_waits_for_the_jobs(trace_of, four_nodes):
    result = simulate(
        trace_of((0, 10, 10, 8), (1, 10, 10, 6)), four_nodes,
        '{"at": 5, "do": "assign", "targets": "3", "group": "spare", "graceful": true}',
    )  # fmt: skip
    assert result.jobs.state == ["completed", "completed"]
    assert result.jobs.start == [0, 10]


CONFIG = """
[resource.groups]
gpu = "2-3"
[queues.batch]
policy.jobspec.defaults.system.duration = "1m"
policy.limits.duration = "1h"
[queues.gpu]
group = "gpu"
[policy.jobspec.defaults.system]
queue = "batch"
"""


def test_groups_and_queues_of_a_configuration(trace_of, tmp_path):
    (tmp_path / "site.toml").write_text(CONFIG)
    trace = trace_of((0, 100, None, 1), (0, 100, None, 1), (0, 5, 7200, 1), (0, 5, 5, 3))
    jobs = [job._replace(queue=queue) for job, queue in zip(trace.jobs, ("batch", "gpu", None, "gpu"), strict=True)]
    result = run(Trace.of(jobs), procs=4, config=tmp_path / "site.toml", placements=True, check=True)
    assert result.jobs.ranks == ["0", "2", None, None]
    assert result.jobs.end == [60, 100, None, None]
    assert result.jobs.state == ["timeout", "completed", "denied", "denied"]
    assert "limit of queue batch" in result.jobs.notes[2]


def test_the_machine_is_said_once(trace_of, four_nodes):
    trace = trace_of((0, 1, 1, 1))
    for options, why in (
        ({}, "does not define a machine"),
        ({"procs": 1, "nodes": 1}, "procs and nodes"),
        ({"procs": -1}, "procs -1 is not a count of at least 1"),
        ({"cores": 2}, "give the number of nodes"),
        ({"procs": 0}, "procs 0 is not a count"),
        ({"resources": four_nodes, "procs": 2}, "do not give procs"),
        ({"resources": "/nowhere/R.json"}, "cannot be read"),
        ({"procs": 1, "policy": "nope"}, "no policy 'nope'"),
    ):
        with pytest.raises(InvalidValue, match=why):
            run(trace, **options)


def test_two_runs_give_the_same_schedule(trace_of):
    from fluxsched.sim import generate

    trace = generate(jobs=200, procs=16, seed=3, load=1.2)
    assert run(trace, "firstfit").jobs == run(trace, "firstfit", check=True).jobs


def test_a_policy_may_be_given_as_it_is(trace_of):
    assert run(trace_of((0, 1, 1, 1)), "fifo:placement=best-fit", procs=1).policy == "fifo:placement=best-fit"
    assert run(trace_of((0, 1, 1, 1)), Fifo("best-fit"), procs=1).policy == "fifo"


def test_a_result_in_a_session(trace_of):
    import fluxsched

    result = fluxsched.sim.run(trace_of((0, 1, 1, 1)), "fifo", procs=1)
    assert repr(result) == "<Result of fifo on jobs: 1 jobs, 1 targets>"
    many = trace_of(*[(at, 1, 1, 1) for at in range(300)])
    assert repr(many) == "<Trace jobs: 300 jobs>"
    result = fluxsched.sim.run(many, "fifo", procs=1, placements=True)
    assert repr(result.jobs) == (
        "<Columns of 300 jobs: job, submit, start, end, procs, user, queue, state, ranks, notes, bank, preemptions, "
        "resizes, hops>"
    )
    assert "over_time" not in repr(result.summary)


@pytest.mark.parametrize(
    ("trace", "why"),
    [
        (5, "^5 is not a trace: give a file name, a Trace, or TraceJobs$"),
        (None, "^None is not a trace"),
        ([1, 2], "^1 is not a TraceJob$"),
        (["x" * 1000], r"^'x+\.\.\.x+' is not a TraceJob$"),
    ],
)
def test_what_is_no_trace_is_refused(trace, why):
    with pytest.raises(InvalidValue, match=why) as refused:
        run(trace, procs=1)
    assert len(str(refused.value)) < 100


@pytest.mark.parametrize("policy", [3, None, Fifo])
def test_what_is_no_policy_is_refused(trace_of, policy):
    with pytest.raises(InvalidValue, match="is not a policy: give a name, or an object with `name` and `schedule`"):
        run(trace_of((0, 1, 1, 1)), policy, procs=1)


@pytest.mark.parametrize("until_s", [-5, -inf, nan])
def test_the_end_is_not_before_the_beginning(trace_of, until_s):
    with pytest.raises(InvalidValue, match=f"until_s {until_s} is not a number of seconds of 0 or more"):
        run(trace_of((0, 1, 1, 1)), procs=1, until_s=until_s)
    assert run(trace_of((0, 1, 1, 1)), procs=1, until_s=0).jobs.state == ["running"]


SHRINK = '{"at": 5, "do": "assign", "targets": "3", "group": "exclude"}'


def test_who_waits_aside_to_the_end_is_told_why(trace_of, four_nodes):
    result = simulate(trace_of((0, 10, 10, 8), (1, 10, 10, 8), (6, 10, 10, 8)), four_nodes, SHRINK)
    assert result.jobs.state == ["failed", "waiting", "denied"]  # the last was too large when it was submitted
    short = "needs 8 slots of 1 core; the group has only 6 such slots"
    assert result.jobs.notes == {1: f"{short}; it had 8 until 5 s", 2: short}
