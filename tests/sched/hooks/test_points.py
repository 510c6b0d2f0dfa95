"""Each point of a plugin: when it is called, and what comes of each of its answers."""

import pytest

from fluxsched.core.idset import Idset
from fluxsched.sched.decisions import PREEMPT, Denied, Preempt, Raise
from fluxsched.sched.hooks import ARRIVAL, FREE, LOOKS_MAX, PASS, SCORE_MAX, SKIP, START, TARGETS, Gate, Later, Never
from tests.sched.site import Bench, make_r, spec, started

from .conftest import faults, told


def test_whether_a_job_could_ever_run_is_judged_for_its_user(bench_with, plugin):
    one = plugin(
        "one", reads=("user",), pre_filter=lambda shape, group: PASS if shape.label("user") == 7 else Never("no")
    )
    scheduler = bench_with(one).scheduler
    assert scheduler.feasible(spec(), 7) is None
    assert "plugin 'one': no" in scheduler.feasible(spec(), 8)
    assert "plugin 'one': no" in scheduler.feasible(spec()), "of no user that is known"


# ---- before the queue


def test_a_gated_job_is_not_offered_until_its_event(bench_with, plugin):
    waits = {1: Gate("later", on=(FREE,)), 2: PASS}
    gate = plugin("gate", pre_enqueue=lambda job: waits[job.jobid])
    bench = bench_with(gate, policy="fifo")
    assert told(bench.submit(1, nodes=4)) == {1: "plugin 'gate': later"}
    assert bench.submit(2, spec()) == []
    assert started(bench.run()) == {2: "0"}  # a job that is not offered holds back no other
    why = bench.scheduler.why(1, 100.0)
    assert why.reason == "plugin 'gate': later"
    assert "plugin" in why.rule
    bench.run()
    assert gate.count("pre_enqueue") == 2
    waits[1] = PASS
    bench.free(2)
    found = bench.run()
    assert started(found) == {1: "0-3"}
    assert gate.count("pre_enqueue") == 3


@pytest.mark.parametrize("event", [ARRIVAL, START, FREE, TARGETS])
def test_the_events_of_a_gate(bench_with, plugin, event):
    gate = plugin("gate", pre_enqueue=lambda job: Gate("no", on=(event,)) if job.jobid == 1 else PASS)
    bench = bench_with(gate)
    bench.submit(1, spec())
    bench.run()
    before = gate.count("pre_enqueue")
    bench.submit(2, spec())
    asked = [gate.count("pre_enqueue") - before - 1]  # of which one was about job 2
    bench.run()
    bench.free(2)
    bench.run()
    bench.scheduler.went_offline(Idset.parse("3"), 100.0)
    bench.run()
    assert asked == [0]
    assert gate.count("pre_enqueue") - before - 1 == 1


def test_a_gate_has_its_time(bench_with, plugin):
    night = plugin("night", pre_enqueue=lambda job: PASS if job.now_s >= 200.0 else Gate("at night", at_s=200.0))
    bench = bench_with(night)
    bench.submit(1, spec())
    assert started(bench.run()) == {}
    assert bench.scheduler.next_notice_s == 200.0
    bench.now_s = 200.0
    assert started(bench.run()) == {1: "0"}


def test_a_gated_job_is_canceled_and_prioritized(bench_with, plugin):
    closed = [True]
    bench = bench_with(plugin(pre_enqueue=lambda job: Gate("no", at_s=200.0) if closed else PASS))
    bench.submit(1, spec())
    bench.submit(2, spec())
    bench.scheduler.prioritize([(2, 0)])
    assert len(bench.scheduler.cancel(1)) == 1
    closed.clear()
    bench.now_s = 200.0
    assert started(bench.run()) == {}  # it is held
    bench.scheduler.prioritize([(2, 1)])
    assert started(bench.run()) == {2: "0"}


def test_a_plugin_sorts_the_queue(bench_with, plugin):
    bench = bench_with(plugin(queue_sort=lambda job: (-job.request.nodes.min, 0.5)), policy="fifo", ranks="0-3")
    for jobid, nodes in ((1, 1), (2, 3), (3, 2)):
        bench.submit(jobid, nodes=nodes, exclusive=True, priority=16 + jobid)
    assert list(started(bench.run())) == [2]
    bench.free(2)
    assert list(started(bench.run())) == [3, 1]


def test_a_tuple_that_does_not_compare_is_a_fault(bench_with, plugin):
    keys = {1: (1, "a"), 2: ("a", 1), 3: [1], 4: (float("nan"), "a"), 5: (0.5, "b")}
    bench = bench_with(plugin(queue_sort=lambda job: keys[job.jobid]))
    for jobid in keys:
        bench.submit(jobid, spec())
    found = bench.run()
    assert set(started(found)) == {1, 5}
    assert len(faults(found)) == 3
    assert "of the same kinds for all jobs" in bench.why(2)


# ---- shapes and classes


def test_filters_are_asked_once_a_shape_and_class(plugin):
    asked = plugin(pre_filter=PASS, filter=lambda shape, kind: PASS if "ssd" in kind.properties else Later("no ssd"))
    bench = Bench("firstfit", plugins={"": [asked]})
    for resources in (make_r("0-1", 4, ssd="0"), make_r("2-3", 8, ssd="2")):
        bench.grow(resources)
    for jobid in range(300):
        bench.submit(jobid, cores=2)
    found = bench.run()
    assert (asked.count("pre_filter"), asked.count("filter")) == (1, 4)
    assert set(started(found).values()) == {"0", "2"}
    assert bench.why(299) == "plugin 'p': no ssd"
    bench.free(0)
    bench.run()
    assert asked.count("filter") == 4


def test_an_idset_later_and_never(bench_with, plugin):
    says = [Idset.parse("1-2")]
    bench = bench_with(plugin(pre_filter=lambda shape, group: says[0] & group.ranks if len(says) == 1 else says[1]))
    bench.submit(1, nodes=3)
    bench.submit(2, nodes=2)
    assert started(bench.run()) == {2: "1-2"}
    assert "leaves it only n[1-2]" in bench.why(1)
    says.append(Never("not here"))
    assert bench.submit(3, nodes=2, cores=2) == [Denied(3, "plugin 'p': not here")]
    says[1] = Later("closed")
    bench.submit(4, nodes=2, cores=3)
    assert started(bench.run()) == {}
    assert bench.why(4) == "plugin 'p': closed"
    assert told(bench.run()) == {}


def test_an_idset_that_leaves_nothing_is_said_in_words(bench_with, plugin):
    bench = bench_with(plugin(pre_filter=lambda shape, group: Idset.parse("")))
    bench.submit(1, spec())
    assert started(bench.run()) == {}
    assert "plugin 'p' leaves it no target" in bench.why(1)
    assert bench.scheduler.report.stats()["plugins"] == {"": ["p"]}


def test_a_group_tells_the_ranks_on_the_hosts_of_a_hostlist(bench_with, plugin):
    asked = ["n[1-2,7],n0"]
    bench = bench_with(plugin(pre_filter=lambda shape, group: group.ranks_of(asked[0])))
    bench.submit(1, nodes=4)
    bench.submit(2, nodes=3, cores=2)
    assert started(bench.run()) == {2: "0-2"}
    assert "leaves it only n[0-2]" in bench.why(1)
    bench.free(2)
    bench.shrink("1")
    bench.submit(3, nodes=3, cores=2)
    assert started(bench.run()) == {}
    assert "leaves it only n[0,2]" in bench.why(3)
    asked[0] = "n[1-"
    bench.submit(4, nodes=2, cores=3)
    assert "InvalidValue: hostlist" in faults(bench.run())[0]


def test_an_answer_about_a_shape_has_its_time(bench_with, plugin):
    open_at = [300.0]
    asked = plugin(pre_filter=lambda shape, group: Later("closed", at_s=open_at[0]) if open_at else PASS)
    bench = bench_with(asked)
    bench.submit(1, spec())
    bench.run()
    bench.now_s = 299.0
    bench.run()
    assert asked.count("pre_filter") == 1
    assert bench.scheduler.next_notice_s == 300.0
    open_at.clear()
    bench.now_s = 300.0
    assert started(bench.run()) == {1: "0"}


def test_a_time_that_has_come_already_is_none(bench_with, plugin):
    late, early = plugin("late", pre_filter=Later("no", at_s=50.0)), plugin("early", reserve=Later("no", at_s=100.0))
    gate = plugin("gate", pre_enqueue=Gate("no", at_s=99.0))
    for each in (late, early, gate):
        bench = bench_with(each)
        bench.submit(1, spec())
        bench.run()
        assert bench.scheduler.next_notice_s > 1e9


def test_a_plugins_own_generation_has_it_asked_again(bench_with, plugin):
    """One that counts: at most two jobs at a time."""
    running = set()
    quota = plugin("quota", pre_filter=lambda shape, group: PASS if len(running) < 2 else Later("2 run"))
    other = plugin("other", filter=PASS)
    quota.generation = 0

    def reserve(job, fit):
        running.add(job.jobid)
        quota.generation += 1
        return PASS

    def give(job, fit):
        running.discard(job.jobid)
        quota.generation += 1

    quota.reserve, quota.unreserve, quota.on_free = reserve, give, give
    bench = bench_with(quota, other)
    for jobid in range(1, 9):
        bench.submit(jobid, spec())
    assert len(started(bench.run())) == 2
    assert bench.why(8) == "plugin 'quota': 2 run"
    bench.free(1)
    assert len(started(bench.run())) == 1
    assert other.count("filter") == 1
    assert len(running) == 2


def test_skip_reaches_its_own_filter_alone(bench_with, plugin):
    skips, filters = plugin("a", pre_filter=SKIP, filter=Never("no")), plugin("b", pre_filter=PASS, filter=Later("no"))
    bench = bench_with(skips, filters)
    bench.submit(1, spec())
    assert started(bench.run()) == {}
    assert (skips.count("filter"), filters.count("filter")) == (0, 1)


def test_scores_choose_the_class_and_ties_go_by_placement(bench_with, plugin):
    def score(shape, kind):
        return SCORE_MAX if "fast" in kind.properties else 10 if "ssd" in kind.properties else 0

    heavy = plugin("heavy", score=lambda shape, kind: 0 if "ssd" in kind.properties else 30)
    heavy.weight = 3.0
    never = plugin("never", pre_score=SKIP, score=SCORE_MAX + 1)
    bench = bench_with(plugin("a", score=score), never, fast="2", ssd="3")
    bench.submit(1, spec())
    assert started(bench.run()) == {1: "2"}
    bench = bench_with(plugin("a", score=score), heavy, ssd="0,3")
    for jobid in range(1, 4):
        bench.submit(jobid, nodes=1, exclusive=True)
    assert started(bench.run()) == {1: "1", 2: "2", 3: "0"}
    bench = bench_with(plugin("a", score=SCORE_MAX + 1))
    bench.submit(1, spec())
    found = bench.run()
    assert started(found) == {}
    assert "a number from 0 to 100" in bench.why(1)


# ---- the chosen targets


def test_the_next_target_after_an_objection(bench_with, plugin):
    asked = plugin(look=lambda job, rank: PASS if rank == 2 else Later(f"not {rank}"))
    bench = bench_with(asked)
    bench.submit(1, spec())
    assert started(bench.run()) == {1: "2"}
    bench.submit(2, nodes=2)
    assert started(bench.run()) == {}
    assert bench.why(2).startswith("plugin 'p': not ")


def test_looks_are_limited(bench_with, plugin):
    asked = plugin(look=lambda job, rank: Later("no"))
    bench = bench_with(asked, ranks="0-99")
    bench.submit(1, spec())
    assert started(bench.run()) == {}
    assert asked.count("look") == LOOKS_MAX
    wide = plugin(look=PASS)
    bench = bench_with(wide, ranks="0-99")
    bench.submit(1, nodes=100)
    assert started(bench.run()) == {1: "0-99"}


def test_post_filter_may_preempt(bench_with, plugin):
    late = plugin("late", post_filter=lambda job, view: [Preempt(1, job.jobid, "never asked")])
    asked = plugin(
        post_filter=lambda job, view: [Preempt(each.jobid, job.jobid, "older") for each in view.running][:1] or None
    )
    bench = bench_with(plugin("none", post_filter=None), asked, late)
    bench.submit(1, nodes=4, exclusive=True, preemptible_after=0.0)
    assert started(bench.run()) == {1: "0-3"}
    bench.submit(2, spec())
    found = bench.run()
    assert [(each.jobid, each.type) for each in found if isinstance(each, Raise)] == [(1, PREEMPT)]
    assert late.count("post_filter") == 0
