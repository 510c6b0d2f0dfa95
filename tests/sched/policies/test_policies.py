"""The policies and the pass: order, purity, and what happens when a pass is dropped or a policy goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.resources import ResourceSet
from fluxsched.errors import LocalProtocolError
from fluxsched.sched.effects import Annotated, Denied, Granted
from fluxsched.sched.engine.scheduling_pass import SchedulingPass
from fluxsched.sched.engine.waiting.notices import REASON_CHARS_MAX
from fluxsched.sched.policies.fifo import Fifo
from fluxsched.sched.policies.firstfit import FirstFit
from fluxsched.sched.policy import BEST_FIT, WORST_FIT, Decision, Deny, Fits, Option, Pending, Policy, Start, View

MakeR = Callable[..., ResourceSet]
Spec = Callable[..., dict[str, Any]]
NO_OPTIONS: Mapping[str, Option] = {}


def blocked_head(bench: Any, make_r: MakeR, spec: Spec) -> None:
    """Two of four nodes are busy, the head needs three, the others one each."""
    bench.grow(make_r("0-3"))
    bench.submit(1, spec(nodes=2, exclusive=True))
    bench.run()
    bench.submit(2, spec(nodes=3, exclusive=True))
    for jobid in (3, 4, 5):
        bench.submit(jobid, spec(nodes=1, exclusive=True))


def test_fifo_lets_no_job_overtake(bench: Any, make_r: MakeR, spec: Spec) -> None:
    blocked_head(bench, make_r, spec)
    assert [type(effect) for effect in bench.run()] == [Annotated]
    bench.free(1)
    assert [effect.jobid for effect in bench.run() if isinstance(effect, Granted)] == [2, 3]


def test_firstfit_skips_the_blocked(bench_of: Any, make_r: MakeR, spec: Spec) -> None:
    bench = bench_of(FirstFit())
    blocked_head(bench, make_r, spec)
    bench.submit(6, spec(nodes=1, exclusive=True))
    effects = bench.run()
    assert [effect.jobid for effect in effects if isinstance(effect, Granted)] == [3, 4]
    reasons = {e.jobid: e.annotations["sched"]["reason_pending"] for e in effects if isinstance(e, Annotated)}
    assert reasons.keys() == {2, 5}  # 6 needs the same as 5
    assert "3 exclusive nodes" in reasons[2]
    assert "2 ahead of it" in bench.why(6)


@pytest.mark.plain_only("replaces a method of SchedulingPass")
def test_equal_requests_are_tried_once_a_pass(
    bench_of: Any, make_r: MakeR, spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    find = SchedulingPass.find
    monkeypatch.setattr(SchedulingPass, "find", lambda view, job, p: (tried.append(job.jobid), find(view, job, p))[1])
    bench = bench_of(FirstFit())
    bench.grow(make_r("0"))
    bench.submit(1, spec(cores=4))
    for jobid in range(2, 50):
        bench.submit(jobid, spec(cores=2 + jobid % 2))
    bench.run()
    assert tried == [1, 2, 3]


@pytest.mark.parametrize(("placement", "want"), [(BEST_FIT, "rank0/core2"), (WORST_FIT, "rank1/core0")])
@pytest.mark.parametrize("policy", [Fifo, FirstFit])
def test_placement_option(
    bench_of: Any, make_r: MakeR, spec: Spec, policy: type[Fifo | FirstFit], placement: str, want: str
) -> None:
    bench = bench_of(policy(placement))
    bench.grow(make_r("0-1"))
    bench.submit(1, spec(cores=2))
    bench.submit(2, spec(cores=1))
    assert bench.run()[1].annotations["sched"]["resource_summary"] == want


JOBS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.booleans()), min_size=1, max_size=12
)


@given(JOBS, st.sampled_from([Fifo, FirstFit]), st.sampled_from([BEST_FIT, WORST_FIT]))
@settings(max_examples=40)
def test_policies_are_pure_and_deterministic(
    bench_of: Any,
    make_r: MakeR,
    spec: Spec,
    jobs: list[tuple[int, int, int, bool]],
    policy: type[Fifo | FirstFit],
    placement: str,
) -> None:
    """The same view and time give the same decisions, twice on one policy and once on a new one."""
    shared = policy(placement)
    decided = []
    for used in (shared, shared, policy(placement)):
        bench = bench_of(used)
        bench.grow(make_r("0-3"))
        for jobid, (nodes, cores, priority, exclusive) in enumerate(jobs):
            bench.submit(jobid, spec(nodes=nodes, cores=cores, exclusive=exclusive), priority)
        decided.append(bench.run())
    assert decided[0] == decided[1] == decided[2]


@given(JOBS, st.integers(0, 6), st.sampled_from([Fifo, FirstFit]))
@settings(max_examples=40)
def test_a_dropped_pass_loses_nothing(
    bench_of: Any,
    make_r: MakeR,
    spec: Spec,
    jobs: list[tuple[int, int, int, bool]],
    taken: int,
    policy: type[Fifo | FirstFit],
) -> None:
    """Dropped between any two effects and begun anew, a pass ends where an undisturbed one does."""
    whole, cut = bench_of(policy()), bench_of(policy())
    for bench in (whole, cut):
        bench.grow(make_r("0-3"))
        for jobid, (nodes, cores, priority, exclusive) in enumerate(jobs):
            bench.submit(jobid, spec(nodes=nodes, cores=cores, exclusive=exclusive), priority)
    whole.run()
    begun = cut.scheduler.schedule(cut.now_s)
    cut.did([effect for _, effect in zip(range(taken), begun, strict=False)])
    begun.close()
    cut.run()
    assert cut.granted == whole.granted


def test_events_between_slices_of_a_pass(bench_of: Any, make_r: MakeR, spec: Spec) -> None:
    bench = bench_of(FirstFit())
    bench.grow(make_r("0-3"))
    for jobid in range(1, 5):
        bench.submit(jobid, spec(nodes=1, exclusive=True))
    sliced = bench.scheduler.schedule(bench.now_s)
    bench.did([next(sliced)])
    bench.did(bench.scheduler.cancel(2))
    bench.did(bench.scheduler.went_offline(bench.granted[1].ranks))
    bench.submit(5, spec(nodes=1, exclusive=True), priority=31)
    bench.free(1)
    bench.did(list(sliced))
    bench.run()
    assert set(bench.granted) == {3, 4, 5}


class Rogue:
    """Decides what does not hold, as often as it is let."""

    name: ClassVar[str] = "rogue"
    OPTIONS: ClassVar[Mapping[str, Option]] = NO_OPTIONS

    def __init__(self, decide: Callable[[View], Iterator[Decision]]) -> None:
        self._decide = decide

    def schedule(self, view: View, now_s: float) -> Iterator[Decision]:
        return self._decide(view)


def start_twice(view: View) -> Iterator[Decision]:
    jobs = list(view.queue)
    fits = [(job, view.place(job)) for job in jobs]  # all placed before any is committed: on the same cores
    for job, fit in fits * 2:
        assert isinstance(fit, Fits)
        yield Start(job.jobid, fit)


def start_for_ever(view: View) -> Iterator[Decision]:
    job = next(view.queue)
    fit = view.place(job)
    assert isinstance(fit, Fits)
    while True:
        yield Start(job.jobid, fit)


def deny_then_fail(view: View) -> Iterator[Decision]:
    yield Deny(next(view.queue).jobid, "not today")
    raise ZeroDivisionError


def test_a_policy_cannot_grant_a_core_twice(bench_of: Any, make_r: MakeR, spec: Spec) -> None:
    bench = bench_of(Rogue(start_twice))
    bench.grow(make_r("0-1"))
    for jobid in (1, 2, 3):
        bench.submit(jobid, spec(cores=4))
    bench.run()
    assert set(bench.granted) == {1}
    assert bench.scheduler.stats()["refused"] == 5


def test_a_policy_that_decides_for_ever_is_stopped(bench_of: Any, make_r: MakeR, spec: Spec) -> None:
    bench = bench_of(Rogue(start_for_ever))
    bench.grow(make_r("0"))
    bench.submit(1, spec())
    with pytest.raises(LocalProtocolError, match="'rogue': over 1000 decisions refused"):
        bench.run()
    bench.scheduler.check()


def test_what_a_policy_raises_goes_up_and_nothing_is_half_done(bench_of: Any, make_r: MakeR, spec: Spec) -> None:
    bench = bench_of(Rogue(deny_then_fail))
    bench.grow(make_r("0"))
    bench.submit(1, spec())
    bench.submit(2, spec())
    effects = bench.scheduler.schedule(1.0)
    assert next(effects) == Denied(1, "not today")
    with pytest.raises(ZeroDivisionError):
        next(effects)
    bench.scheduler.check()
    assert bench.why(2) == "its policy has not looked at it yet"


def test_running_is_a_view_that_cannot_be_changed(bench_of: Any, make_r: MakeR, spec: Spec) -> None:
    seen: list[Any] = []

    def look(view: View) -> Iterator[Decision]:
        seen.extend(view.running)
        for job in view.queue:
            fit = view.place(job)
            assert isinstance(fit, Fits)
            yield Start(job.jobid, fit)

    policy: Policy = Rogue(look)
    bench = bench_of(policy)
    bench.grow(make_r("0"))
    bench.submit(1, spec(duration=10.0))
    bench.run()
    bench.submit(2, spec())
    bench.run()
    (running,) = seen
    assert (running.jobid, running.expiration_s, dict(running.parts)) == (1, 110.0, {0: (1, 0)})
    with pytest.raises(TypeError):
        running.parts[0] = (0, 0)


def test_what_a_policy_says_to_an_owner_is_cut(bench_of: Any, make_r: MakeR, spec: Spec) -> None:
    def talk(view: View) -> Iterator[Decision]:
        yield Pending(1, "x" * (REASON_CHARS_MAX + 1))
        yield Deny(2, "y" * (REASON_CHARS_MAX + 1))

    bench = bench_of(Rogue(talk))
    bench.grow(make_r("0"))
    bench.submit(1, spec())
    bench.submit(2, spec())
    told, denied = bench.run()
    assert told.annotations["sched"]["reason_pending"] == bench.why(1) == "x" * REASON_CHARS_MAX
    assert denied == Denied(2, "y" * REASON_CHARS_MAX)


def test_a_schedule_that_is_no_generator_is_told_so(bench_of: Any, make_r: MakeR, spec: Spec) -> None:
    class Returns:
        name = "returns"

        def schedule(self, view: View, now_s: float) -> None: ...

    bench = bench_of(Returns())
    bench.grow(make_r("0"))
    bench.submit(1, spec())
    with pytest.raises(TypeError, match="schedule returned None: it should be a generator, which yields decisions"):
        bench.run()
