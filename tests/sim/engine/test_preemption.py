"""Preemption in virtual time: when victims end, when they run again, and what the table says of it."""

from math import inf

import pytest

from fluxsched.errors import InvalidValue
from fluxsched.sched.policy import Preempt, Start, Wake
from fluxsched.sim import Ask, Trace, TraceJob, run, simulation
from fluxsched.sim.result import NO_ROW, Preemption
from fluxsched.sim.site import parse_site


class Impatient:
    """First come, first served; a job of urgency above 16 preempts who may be preempted, the last begun first."""

    name = "impatient"
    OPTIONS = {}  # noqa: RUF012

    def schedule(self, view, now_s):
        for job in view.queue:
            fit = view.find(job)
            if fit is not None:
                yield Start(job.jobid, fit)
                continue
            if job.priority <= 16:
                return
            for victim in reversed(list(view.running)):
                after_s = victim.preemptible_after_s
                if after_s is not None and victim.started_s + after_s <= now_s:
                    yield Preempt(victim.jobid, job.jobid, "urgent")
                    return
                if after_s is not None:
                    yield Wake(victim.started_s + after_s)
            return


def standby(job, submit_s, run_s, slots, after_s=0.0, **more):
    return TraceJob(job, submit_s, run_s, 100.0, Ask(slots), preemptible_after_s=after_s, **more)


def urgent(job, submit_s, run_s, slots):
    return TraceJob(job, submit_s, run_s, 100.0, Ask(slots), urgency=20)


def simulate(*jobs, **options):
    return run(Trace.of(jobs), Impatient(), procs=4, check=True, **options)


def test_a_preempted_job_ends_and_the_other_starts():
    jobs = simulate(standby(1, 0, 50, 4), urgent(2, 10, 5, 2)).jobs
    assert (jobs.start, jobs.end, jobs.state) == ([0, 10], [10, 15], ["preempted", "completed"])
    assert jobs.preemptions == [Preemption(0, 0.0, 10.0, 4, 1, False)]
    assert jobs.preemptions[0].lost_core_s == 40.0


def test_it_runs_again_in_line_by_its_first_submission():
    jobs = simulate(standby(1, 0, 50, 4, requeue=1), standby(2, 5, 10, 4, None), urgent(3, 10, 5, 2)).jobs
    assert (jobs.start, jobs.end) == ([15, 65, 10], [65, 75, 15])


@pytest.mark.slow
def test_an_attempt_that_was_preempted_is_drawn_on_its_targets():
    pytest.importorskip("matplotlib")
    from fluxsched.sim.plots import draw

    trace = Trace.of([standby(1, 0, 50, 4, requeue=1), urgent(2, 10, 5, 2)])
    result = run(trace, Impatient(), procs=4, placements=True)
    assert [each.ranks for each in result.jobs.preemptions] == ["0-3"]
    (drawn,) = [axes.collections[0] for axes in draw(trace, [result]).axes if axes.get_ylabel() == "target"]
    assert len(drawn.get_paths()) == 3
    assert min(path.get_extents().xmin for path in drawn.get_paths()) == 0.0


def test_each_attempt_is_counted_and_the_row_has_the_last_one():
    jobs = simulate(standby(1, 0, 50, 4, requeue=1), urgent(2, 10, 5, 2), urgent(3, 20, 5, 2)).jobs
    assert (jobs.start, jobs.end) == ([15, 10, 20], [20, 15, 25])
    assert jobs.state == ["preempted", "completed", "completed"]
    assert jobs.preemptions == [Preemption(0, 0.0, 10.0, 4, 1, True), Preemption(0, 15.0, 20.0, 4, 2, False)]


def test_the_timer_of_a_preempted_attempt_does_not_end_the_next_one():
    jobs = simulate(standby(1, 0, 50, 4, requeue=3), urgent(2, 10, 5, 4)).jobs
    assert (jobs.start, jobs.end, jobs.state) == ([15, 10], [65, 15], ["completed", "completed"])


def test_victims_take_the_time_of_grace():
    jobs = simulate(standby(1, 0, 50, 4, requeue=1), urgent(2, 10, 5, 4), preempt_grace_s=3.0).jobs
    assert (jobs.start, jobs.end) == ([18, 13], [68, 18])
    assert jobs.preemptions == [Preemption(0, 0.0, 13.0, 4, 1, True)]


def test_a_job_that_ends_within_its_grace_was_preempted_nevertheless():
    jobs = simulate(standby(1, 0, 11, 4), urgent(2, 10, 5, 4), preempt_grace_s=3.0).jobs
    assert (jobs.start, jobs.end, jobs.state) == ([0, 11], [11, 16], ["preempted", "completed"])


def test_a_policy_wakes_when_a_job_may_be_preempted():
    jobs = simulate(standby(1, 0, 50, 4, 20.0), urgent(2, 10, 5, 4)).jobs
    assert (jobs.start, jobs.end) == ([0, 20], [20, 25])


def test_a_job_that_never_may_is_left_alone():
    jobs = simulate(standby(1, 0, 50, 4, None), urgent(2, 10, 5, 4)).jobs
    assert (jobs.start, jobs.preemptions) == ([0, 50], [])


class Restless(Impatient):
    """Wakes for ever."""

    def schedule(self, view, now_s):
        yield from super().schedule(view, now_s)
        yield Wake(now_s + 10)


def test_wakes_that_lead_nowhere_come_to_an_end(monkeypatch):
    monkeypatch.setattr(simulation, "IDLE_WAKES_MAX", 7)
    held = TraceJob(1, 0.0, 1.0, 1.0, Ask(1), urgency=0)
    result = run(Trace.of([held, TraceJob(2, 100.0, 5.0, 9.0, Ask(1))]), Restless(), procs=1)
    assert result.jobs.state == ["waiting", "completed"]
    assert result.cost.instants < 40


def test_a_victim_that_an_outage_ends_is_submitted_again(four_nodes):
    trace = Trace.of([standby(1, 0, 50, 4, requeue=1), urgent(2, 10, 5, 8)])
    steps = parse_site(['{"at": 11, "do": "outage", "targets": "0", "for": 4}'], "site", four_nodes)
    result = run(trace, Impatient(), resources=four_nodes, site=steps, check=True, preempt_grace_s=3.0)
    jobs = result.jobs
    assert jobs.preemptions == [Preemption(0, 0.0, 11.0, 4, 1, True)]
    assert (jobs.start, jobs.end) == ([20, 15], [70, 20])


def test_the_grace_is_no_longer_than_the_timeout(tmp_path):
    jobs = [standby(1, 0, 50, 4), urgent(2, 10, 5, 4)]
    with pytest.raises(InvalidValue, match="preempt-grace 6 s is not within 0-5 s, the preempt-timeout"):
        simulate(*jobs, preempt_grace_s=6.0)
    for bad in (-1.0, inf, float("nan")):
        with pytest.raises(InvalidValue, match="is not within 0-5 s"):
            simulate(*jobs, preempt_grace_s=bad)
    config = tmp_path / "c.toml"
    config.write_text('[exec]\npreempt-timeout = "10s"\n')
    assert run(Trace.of(jobs), Impatient(), procs=4, config=config, preempt_grace_s=6.0).jobs.start == [0, 16]


def test_it_may_not_be_known_for_which_job():
    assert Preemption(0, 0.0, 2.0, 3, NO_ROW, False).lost_core_s == 6.0
