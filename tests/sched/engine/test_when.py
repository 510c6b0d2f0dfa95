"""When jobs would start that are not submitted: goldens, and against what happens to the job if it is submitted."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.jobfields import SiteLimit
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.outages import Outage, Outages
from fluxsched.sched.engine.scheduler import StartEstimate
from fluxsched.sched.hooks import with_limits
from tests.generated.share import first
from tests.sched.site import Bench, limit, lowered, make_r, spec, started

NOT_WORKED_OUT, TOO_MANY_RESERVED = limit("NOT_WORKED_OUT", "TOO_MANY_RESERVED")
USER = 1000
BEHIND_1 = "behind 1 job, if all use up their limits"
ALONE = "if all use up their limits"
NOW = "it fits now"


def ask(bench: Bench, *wanted: Mapping[str, Any], priority: int = 16) -> list[StartEstimate]:
    jobs = [Jobspec.parse(spec(exclusive=True, **each)) for each in wanted]
    found = bench.scheduler.when(jobs, USER, priority, bench.now_s)
    bench.scheduler.check()
    return found


@pytest.fixture
def four() -> Callable[..., Bench]:
    """At 100 s job 1 runs on two of four nodes until 700; job 2, for four nodes and 3600 s, waits."""

    def build(policy: str, limit_s: float = 600.0, **options: Any) -> Bench:
        bench = Bench(policy, **options)
        bench.grow("0-3")
        bench.submit(1, nodes=2, exclusive=True, duration=limit_s)
        bench.run()
        bench.submit(2, nodes=4, exclusive=True, duration=3600.0)
        bench.run()
        return bench

    return build


@pytest.mark.parametrize(
    ("policy", "want"),
    [
        ("easy", [(100.0, NOW, 0.0), (4300.0, BEHIND_1, 600.0), (4300.0, BEHIND_1, 0.0)]),
        ("conservative", [(100.0, NOW, 0.0), (4300.0, BEHIND_1, 600.0), (4300.0, BEHIND_1, 0.0)]),
        ("firstfit", [(100.0, NOW, 0.0), (100.0, NOW, 0.0), (4300.0, BEHIND_1, 0.0)]),
        ("fifo", [(700.0, BEHIND_1, 0.0), (4300.0, BEHIND_1, 0.0), (4300.0, BEHIND_1, 0.0)]),
    ],
)  # fmt: skip
def test_several_sizes_are_answered_each_as_if_it_came_alone(
    four: Callable[..., Bench], policy: str, want: list[tuple[float, str, float]]
) -> None:
    bench = four(policy)
    sizes = [{"nodes": 2, "duration": 300.0}, {"nodes": 2, "duration": 7200.0}, {"nodes": 4, "duration": 60.0}]
    assert ask(bench, *sizes) == [StartEstimate(*each) for each in want]
    assert [one.start_s for size in sizes for one in ask(bench, size)] == [each[0] for each in want]


def test_a_job_of_higher_priority_goes_ahead_of_those_that_wait(four: Callable[..., Bench]) -> None:
    bench = four("easy")
    assert ask(bench, {"nodes": 4, "duration": 60.0}, priority=17) == [StartEstimate(700.0, ALONE)]
    assert ask(bench, {"nodes": 2, "duration": 7200.0}, priority=17) == [StartEstimate(100.0, NOW)]
    (held,) = ask(bench, {"nodes": 1}, priority=0)
    assert (held.start_s, held.when) == (None, "not known: a job on hold is skipped; give it an urgency above 0")


@pytest.mark.parametrize("policy", ["easy", "fifo", "firstfit", "fair:backfill=easy"])
def test_where_a_running_job_has_no_limit_nothing_is_known(four: Callable[..., Bench], policy: str) -> None:
    (found,) = ask(four(policy, limit_s=0.0), {"nodes": 4, "duration": 60.0})
    assert found == StartEstimate(None, "not known: ƒ2, running, has no time limit")


def test_drained_and_planned_outages_are_honoured(four: Callable[..., Bench]) -> None:
    bench = four("easy")
    assert "can never run: needs 5 exclusive nodes" in ask(bench, {"nodes": 5})[0].when
    bench.cancel(2)
    bench.did(bench.scheduler.went_offline(Idset.parse("3"), bench.now_s))
    down = ask(bench, {"nodes": 4, "duration": 60.0}, {"nodes": 3, "duration": 60.0})
    assert down == [
        StartEstimate(None, "not known: it needs nodes that are out of service"),
        StartEstimate(700.0, ALONE),
    ]
    bench.did(bench.scheduler.went_online(Idset.parse("3"), bench.now_s))
    planned = Outages([Outage("work", Idset.parse("2-3"), 400.0, 1000.0)])
    bench.did(bench.scheduler.updated("default", now_s=bench.now_s, outages=planned))
    assert ask(bench, {"nodes": 2, "duration": 600.0}) == [StartEstimate(700.0, ALONE, 300.0)]
    assert ask(bench, {"nodes": 4, "duration": 600.0}) == [StartEstimate(1000.0, ALONE)]


def test_without_targets_and_after_their_end_nothing_is_known() -> None:
    bench = Bench("easy")
    (found,) = ask(bench, {"nodes": 1})
    assert found.when == "not known: waits for the resources of group 'default' to be acquired"
    bench.grow(make_r("0-3", expiration=50.0))
    (found,) = ask(bench, {"nodes": 1})
    assert (found.start_s, found.when[:45]) == (None, "not known: the resources of group 'default' e")


def test_a_limit_of_the_site_keeps_a_job_waiting() -> None:
    plugins = with_limits({}, [SiteLimit(user=USER, nodes=3, user_name="ann")])
    bench = Bench("easy", plugins=plugins)
    bench.grow("0-7")
    bench.submit(1, nodes=2, exclusive=True, duration=600.0)
    assert bench.starts() == {1: "0-1"}
    one, two = ask(bench, {"nodes": 1, "duration": 60.0}, {"nodes": 2, "duration": 60.0})
    assert one == StartEstimate(100.0, NOW)
    assert two == StartEstimate(None, "not known: limit of user ann: 2 + 2 nodes exceed 3")


def test_a_budget_of_an_account_keeps_a_job_waiting() -> None:
    bench = Bench("fair:backfill=easy,cap=0.5")
    bench.grow("0-3")
    bench.submit(1, nodes=2, exclusive=True, duration=600.0)
    assert bench.starts() == {1: "0-1"}
    (found,) = ask(bench, {"nodes": 2, "duration": 60.0})
    assert found.start_s is None
    assert found.when.startswith("not known: ")
    assert "cap" in found.when


def test_of_many_jobs_ahead_only_the_first_are_planned() -> None:
    for shared in (False, True):
        bench = Bench("easy")
        bench.grow("0-3")
        for jobid in range(1, 7):
            bench.submit(jobid, nodes=4, exclusive=not shared, duration=100.0, cores=3 if shared else 1)
        bench.run()
        with lowered(AHEAD_MAX=3, PLANNED_PARTS_MAX=16):
            (found,) = ask(bench, {"nodes": 4, "duration": 60.0})
            text = "not before: more than 3 jobs ahead of it, and only these are planned"
            assert found == StartEstimate(500.0, text)
    three = [{"nodes": 4, "duration": limit_s} for limit_s in (1.0, 2.0, 3.0)]
    with lowered(PLANNED_PARTS_MAX=4, FORESEEN_PARTS_MAX=8):
        found, other, last = ask(bench, *three)
    assert (found.start_s, other.start_s, last) == (300.0, 300.0, NOT_WORKED_OUT)
    assert found.when == "not before: more than 0 jobs ahead of it, and only these are planned"


def test_jobs_that_need_a_place_to_be_found_are_fewer() -> None:
    bench = Bench("easy")
    bench.grow("0-3")
    for jobid in range(1, 7):
        bench.submit(jobid, nodes=4, exclusive=False, duration=100.0, cores=3)
    bench.run()
    planned = Outages([Outage("work", Idset.parse("0"), 10_000.0, 20_000.0)])
    bench.did(bench.scheduler.updated("default", now_s=bench.now_s, outages=planned))
    three = [{"nodes": 4, "duration": limit_s} for limit_s in (1.0, 2.0, 3.0)]
    with lowered(PLANNED_PARTS_MAX=8, FORESEEN_PARTS_MAX=40):
        found, other, last = ask(bench, *three)
    assert (found.start_s, other.start_s, last) == (300.0, 300.0, NOT_WORKED_OUT)


def test_plans_of_several_queues_share_what_an_answer_may_take() -> None:
    bench = Bench("easy", "one", "two", queues={"a": "one", "b": "two"})
    for group, ranks, queue in (("one", "0-3", "a"), ("two", "4-7", "b")):
        bench.grow(ranks, group=group)
        for jobid in range(1, 6):
            bench.submit(jobid + 10 * int(ranks[0]), nodes=4, exclusive=True, duration=100.0, queue=queue)
    bench.run()
    wanted = {"nodes": 4, "duration": 60.0}
    with lowered(AHEAD_MAX=6):
        (alone,) = ask(bench, {**wanted, "queue": "a"})
        both = ask(bench, {**wanted, "queue": "a"}, {**wanted, "queue": "b"})
    assert alone == StartEstimate(600.0, "behind 4 jobs, if all use up their limits")
    text = "not before: more than 3 jobs ahead of it, and only these are planned"
    assert both == [StartEstimate(500.0, text)] * 2


def test_of_too_many_reservations_nothing_is_worked_out() -> None:
    bench = Bench("conservative")
    bench.grow("0-3")
    for jobid in range(1, 7):
        bench.submit(jobid, nodes=4, exclusive=False, duration=100.0, cores=3)
    bench.run()
    with lowered(RESERVED_PARTS_MAX=16):
        found, never = ask(bench, {"nodes": 4, "duration": 60.0}, {"nodes": 5})
    assert (found, never.when[:13]) == (TOO_MANY_RESERVED, "can never run")
    with lowered(RESERVED_PARTS_MAX=20):
        assert ask(bench, {"nodes": 4, "duration": 60.0})[0].start_s == 700.0


POLICIES = ["fifo", "easy", "conservative", "firstfit", "hybrid:depth=2", "fair:backfill=easy"]


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", first(range(12)))
def test_a_job_starts_now_just_where_the_answer_says_so_and_asking_changes_nothing(policy: str, seed: int) -> None:
    rng = random.Random(seed)
    whole = seed % 2 == 0
    asked, unasked = Bench(policy), Bench(policy)
    size = rng.choice([4, 8])
    for bench in (asked, unasked):
        bench.grow(make_r(f"0-{size - 1}"))
    for jobid in range(1, 25):
        wanted = {"nodes": rng.randint(1, size), "exclusive": whole, "cores": 1 if whole else rng.randint(1, 4),
                  "duration": float(rng.choice([60, 120, 600, 1800]))}  # fmt: skip
        priority = rng.choice([16, 16, 16, 20])
        (found,) = asked.scheduler.when([Jobspec.parse(spec(**wanted))], USER, priority, asked.now_s)
        assert found.start_s is not None
        for bench in (asked, unasked):
            bench.submit(jobid, priority=priority, **wanted)
        effects = asked.run()
        assert unasked.starts() == started(effects)
        assert (jobid in started(effects)) == (found.start_s == asked.now_s), found
        planned = {kept.jobid: kept.start_s for kept in asked.scheduler.report.planned()}
        if policy == "conservative" and jobid in planned:
            assert found.start_s == planned[jobid]
        if found.short_s:
            shorter = {**wanted, "duration": found.short_s}
            assert asked.scheduler.when([Jobspec.parse(spec(**shorter))], USER, priority, asked.now_s)
        later_s = rng.choice([0.0, 30.0, 100.0])
        for bench in (asked, unasked):
            bench.now_s += later_s
            for ended in [each for each in bench.granted if not (each + jobid) % 5][:1]:
                bench.free(ended)
            bench.run()
        assert asked.places == unasked.places


def test_the_limits_are_named() -> None:
    assert (limit("AHEAD_MAX"), limit("PLANNED_PARTS_MAX"), limit("WHEN_MAX")) == (1000, 20_000, 32)
    assert (limit("RESERVED_PARTS_MAX"), limit("FORESEEN_PARTS_MAX")) == (200_000, 300_000)
