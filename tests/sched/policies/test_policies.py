"""The policies and the pass: order, purity, and what happens when a pass is dropped or a policy goes wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.errors import LocalProtocolError
from fluxsched.sched.decisions import Annotated, Denied, Granted
from fluxsched.sched.policy import BEST_FIT, NOTHING, WORST_FIT, Deny, Fits, Option, Pending, Start
from tests.sched.site import Bench, limit, policy_of, spec

REASON_CHARS_MAX = limit("REASON_CHARS_MAX")

NO_OPTIONS = {}


def blocked_head(bench):
    """Two of four nodes are busy, the head needs three, the others one each."""
    bench.grow("0-3")
    bench.submit(1, nodes=2, exclusive=True)
    bench.run()
    bench.submit(2, nodes=3, exclusive=True)
    for jobid in (3, 4, 5):
        bench.submit(jobid, nodes=1, exclusive=True)


def test_fifo_lets_no_job_overtake(bench):
    blocked_head(bench)
    assert [type(effect) for effect in bench.run()] == [Annotated]
    bench.free(1)
    assert [effect.jobid for effect in bench.run() if isinstance(effect, Granted)] == [2, 3]


def test_firstfit_skips_the_blocked():
    bench = Bench("firstfit")
    blocked_head(bench)
    bench.submit(6, nodes=1, exclusive=True)
    effects = bench.run()
    assert [effect.jobid for effect in effects if isinstance(effect, Granted)] == [3, 4]
    reasons = {e.jobid: e.annotations["sched"]["reason_pending"] for e in effects if isinstance(e, Annotated)}
    assert reasons.keys() == {2, 5}  # 6 needs the same as 5
    assert "3 exclusive nodes" in reasons[2]
    assert "2 ahead of it" in bench.why(6)


def test_equal_requests_are_tried_once_a_pass():
    tried = []

    class Tries(type(policy_of("firstfit"))):
        def schedule(self, view, now_s):
            for decision in super().schedule(view, now_s):
                tried.append(getattr(decision, "jobid", None))
                yield decision

    bench = Bench(Tries())
    bench.grow("0")
    bench.submit(1, cores=4)
    for jobid in range(2, 50):
        bench.submit(jobid, cores=2 + jobid % 2)
    bench.run()
    assert tried == [1, 2, 3]


@pytest.mark.parametrize(("placement", "want"), [(BEST_FIT, "rank0/core2"), (WORST_FIT, "rank1/core0")])
@pytest.mark.parametrize("policy", ["fifo", "firstfit"])
def test_placement_option(policy, placement, want):
    bench = Bench(f"{policy}:placement={placement}")
    bench.grow("0-1")
    bench.submit(1, cores=2)
    bench.submit(2, cores=1)
    assert bench.run()[1].annotations["sched"]["resource_summary"] == want


JOBS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.booleans()), min_size=1, max_size=12
)


@given(JOBS, st.sampled_from(["fifo", "firstfit"]), st.sampled_from([BEST_FIT, WORST_FIT]))
@settings(max_examples=40)
def test_policies_are_pure_and_deterministic(jobs, policy, placement):
    """The same view and time give the same decisions, twice on one policy and once on a new one."""
    named = f"{policy}:placement={placement}"
    shared = policy_of(named)
    decided = []
    for used in (shared, shared, named):
        bench = Bench(used)
        bench.grow("0-3")
        for jobid, (nodes, cores, priority, exclusive) in enumerate(jobs):
            bench.submit(jobid, spec(nodes=nodes, cores=cores, exclusive=exclusive), priority)
        decided.append(bench.run())
    assert decided[0] == decided[1] == decided[2]


@given(JOBS, st.integers(0, 6), st.sampled_from(["fifo", "firstfit"]))
@settings(max_examples=40)
def test_a_dropped_pass_loses_nothing(jobs, taken, policy):
    """Dropped between any two effects and begun anew, a pass ends where an undisturbed one does."""
    whole, cut = Bench(policy), Bench(policy)
    for bench in (whole, cut):
        bench.grow("0-3")
        for jobid, (nodes, cores, priority, exclusive) in enumerate(jobs):
            bench.submit(jobid, spec(nodes=nodes, cores=cores, exclusive=exclusive), priority)
    whole.run()
    begun = cut.scheduler.schedule(cut.now_s)
    cut.did([effect for _, effect in zip(range(taken), begun, strict=False)])
    begun.close()
    cut.run()
    assert cut.granted == whole.granted


def test_events_between_slices_of_a_pass():
    bench = Bench("firstfit")
    bench.grow("0-3")
    for jobid in range(1, 5):
        bench.submit(jobid, nodes=1, exclusive=True)
    sliced = bench.scheduler.schedule(bench.now_s)
    bench.did([next(sliced)])
    bench.did(bench.scheduler.cancel(2))
    bench.did(bench.scheduler.went_offline(bench.granted[1].ranks))
    bench.submit(5, nodes=1, exclusive=True, priority=31)
    bench.free(1)
    bench.did(list(sliced))
    bench.run()
    assert set(bench.granted) == {3, 4, 5}


class Rogue:
    """Decides what does not hold, as often as it is let."""

    name = "rogue"
    OPTIONS: ClassVar[Mapping[str, Option]] = NO_OPTIONS

    def __init__(self, decide):
        self._decide = decide

    def schedule(self, view, now_s):
        return self._decide(view)


def start_twice(view):
    jobs = list(view.queue)
    fits = [(job, view.place(job)) for job in jobs]  # all placed before any is committed: on the same cores
    for job, fit in fits * 2:
        assert isinstance(fit, Fits)
        yield Start(job.jobid, fit)


def start_for_ever(view):
    job = next(view.queue)
    fit = view.place(job)
    assert isinstance(fit, Fits)
    while True:
        yield Start(job.jobid, fit)


def deny_then_fail(view):
    yield Deny(next(view.queue).jobid, "not today")
    raise ZeroDivisionError


def test_a_policy_cannot_grant_a_core_twice():
    bench = Bench(Rogue(start_twice))
    bench.grow("0-1")
    for jobid in (1, 2, 3):
        bench.submit(jobid, cores=4)
    bench.run()
    assert set(bench.granted) == {1}
    assert bench.scheduler.report.stats()["refused"] == 5


def test_a_policy_that_decides_for_ever_is_stopped():
    bench = Bench(Rogue(start_for_ever))
    bench.grow("0")
    bench.submit(1, spec())
    with pytest.raises(LocalProtocolError, match="'rogue': over 1000 decisions refused"):
        bench.run()
    stats = bench.scheduler.report.stats()
    assert (stats["refused"], stats["granted"]) == (1001, 1), "what was committed before stands"
    bench.scheduler.check()


def test_what_a_policy_raises_goes_up_and_nothing_is_half_done():
    bench = Bench(Rogue(deny_then_fail))
    bench.grow("0")
    bench.submit(1, spec())
    bench.submit(2, spec())
    effects = bench.scheduler.schedule(1.0)
    assert next(effects) == Denied(1, "not today")
    with pytest.raises(ZeroDivisionError):
        next(effects)
    bench.scheduler.check()
    assert bench.why(2) == "its policy has not looked at it yet"


def test_running_is_a_view_that_cannot_be_changed():
    seen = []

    def look(view):
        seen.extend(view.running)
        for job in view.queue:
            fit = view.place(job)
            assert isinstance(fit, Fits)
            yield Start(job.jobid, fit)

    policy = Rogue(look)
    bench = Bench(policy)
    bench.grow("0")
    bench.submit(1, duration=10.0)
    bench.run()
    bench.submit(2, spec())
    bench.run()
    (running,) = seen
    assert (running.jobid, running.expiration_s, dict(running.parts)) == (1, 110.0, {0: (1, 0)})
    with pytest.raises(TypeError):
        running.parts[0] = (0, 0)


def test_what_a_policy_says_to_an_owner_is_cut():
    def talk(view):
        yield Pending(1, "x" * (REASON_CHARS_MAX + 1))
        yield Deny(2, "y" * (REASON_CHARS_MAX + 1))

    bench = Bench(Rogue(talk))
    bench.grow("0")
    bench.submit(1, spec())
    bench.submit(2, spec())
    told, denied = bench.run()
    assert told.annotations["sched"]["reason_pending"] == bench.why(1) == "x" * REASON_CHARS_MAX
    assert denied == Denied(2, "y" * REASON_CHARS_MAX)


def test_a_schedule_that_is_no_generator_is_told_so():
    class Returns:
        name = "returns"

        def schedule(self, view, now_s): ...

    bench = Bench(Returns())
    bench.grow("0")
    bench.submit(1, spec())
    with pytest.raises(TypeError, match="schedule returned None: it should be a generator, which yields decisions"):
        bench.run()


def test_an_arrival_that_can_change_nothing_makes_no_pass_of_its_policy(monkeypatch):
    policy = policy_of("fifo")
    assert getattr(policy, "ARRIVALS", None) == NOTHING
    passes = []
    schedule = type(policy).schedule
    monkeypatch.setattr(
        type(policy), "schedule", lambda self, view, now_s: (passes.append(now_s), schedule(self, view, now_s))[1]
    )
    bench = Bench(policy)
    bench.grow("0")
    bench.submit(1, cores=4)
    bench.submit(2, cores=2)
    bench.run()
    assert len(passes) == 1
    for jobid in range(3, 9):
        bench.submit(jobid, spec())
        bench.run()
    assert len(passes) == 1, "job 2 still waits, and the others are behind it"
    bench.scheduler.prioritize([(8, 31)])
    bench.run()
    assert len(passes) == 2


def test_a_policy_that_inherits_from_ours_may_say_by_its_class_how_jobs_are_placed():
    class Packed(type(policy_of("fifo"))):
        placement = BEST_FIT

        def __init__(self):
            """Not that of the base, which sets a placement, too."""

    placements = {}
    for policy in (Packed(), policy_of("fifo")):
        bench = Bench(policy)
        bench.grow("0-3")
        for jobid in (1, 2):
            bench.submit(jobid, cores=1)
        granted = [effect.R for effect in bench.run() if isinstance(effect, Granted)]
        ranks = [R["execution"]["R_lite"][0]["rank"] for R in granted]
        placements[type(policy).__name__] = len(ranks), len(set(ranks))
    assert placements == {"Packed": (2, 1), "Fifo": (2, 2)}
