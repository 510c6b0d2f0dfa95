"""The conformance suite: our policies keep it, and for each rule there is a policy that breaks it and nothing else."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from math import frexp, inf, nextafter
from typing import Any

import pytest

from fluxsched.runtime.system.clock import seeded
from fluxsched.sched.policy import PAUSE, Deny, Pending, Policy, Reserve, Start, View
from fluxsched.sched.registry import make, parse_spec
from fluxsched.sim import examine
from fluxsched.sim.conformance.cases import BEGINS_S, MACHINE, ordinary, rounding
from fluxsched.sim.conformance.cost import NOISE_S, SLACK, Growth, cost, limit
from fluxsched.sim.conformance.harness import Harness
from fluxsched.sim.conformance.suite import LAWS, RULES, RuleVerdict

SEEDS, SIZES = 5, (100, 1000)
OURS = ["fifo", "firstfit", "easy", "easy:order=sjf", "hybrid", "hybrid:depth=3", "conservative",
        "conservative:compress"]  # fmt: skip


class FirstFit:
    """Keeps everything; those below each break one rule."""

    name = "broken"
    OPTIONS: dict[str, Any] = {}  # noqa: RUF012

    def schedule(self, view: View, now_s: float) -> Iterator[Any]:
        self.begin(view)
        for job in view.queue:
            fit = self.find(view, job)
            if fit is None:
                yield Pending(job.jobid, view.reason(job))
            else:
                yield from self.start(job, fit)
        self.end(view)

    def begin(self, view: View) -> None: ...

    def find(self, view: View, job: Any) -> Any:
        return view.find(job)

    def start(self, job: Any, fit: Any) -> Iterator[Any]:
        yield Start(job.jobid, fit)

    def end(self, view: View) -> None: ...


class Blind(FirstFit):
    """usable: what nobody runs on must be free, it thinks."""

    def __init__(self) -> None:
        self.seen: dict[Any, Any] = {}

    def find(self, view: View, job: Any) -> Any:
        fit = view.find(job)
        if fit is not None:
            return self.seen.setdefault(job.request, fit) and fit
        taken = {rank for running in view.running for rank in running.parts}
        old = self.seen.get(job.request)
        return None if old is None or any(part.rank in taken for part in old.parts) else old


class Greedy(FirstFit):
    """free: two equal jobs are put on the same place."""

    def find(self, view: View, job: Any) -> Any:
        last, fit = getattr(self, "last", None), view.find(job)
        self.last = fit
        return last if fit is None and last is not None and last.request is job.request else fit

    def begin(self, view: View) -> None:
        self.last = None


class Twice(FirstFit):
    """waiting: a job is started again."""

    def start(self, job: Any, fit: Any) -> Iterator[Any]:
        yield Start(job.jobid, fit)
        yield Start(job.jobid, fit)


class Held(FirstFit):
    """waiting: a job gets less than it asked for."""

    def find(self, view: View, job: Any) -> Any:
        fit = view.find(job)
        return fit if fit is None or len(fit.blocks) < 2 else fit._replace(blocks=fit.blocks[:1])


class Picky(FirstFit):
    """progress: it does not like some jobs."""

    def find(self, view: View, job: Any) -> Any:
        return None if job.request.cores == 3 else view.find(job)


class Endless(FirstFit):
    """progress: it asks again and again whether somebody may start."""

    def schedule(self, view: View, now_s: float) -> Iterator[Any]:
        while any(True for _ in view.queue):
            yield from super().schedule(view, now_s)
            yield PAUSE


class Unkind(FirstFit):
    """progress: who does not fit now never will, it says."""

    def find(self, view: View, job: Any) -> Any:
        return view.find(job)

    def schedule(self, view: View, now_s: float) -> Iterator[Any]:
        for job in view.queue:
            fit = view.find(job)
            yield Deny(job.jobid, "too big") if fit is None else Start(job.jobid, fit)


class Jumpy(FirstFit):
    """ordinary: there is no priority that is a little lower than usual, it thinks."""

    def find(self, view: View, job: Any) -> Any:
        assert job.priority != 15
        return view.find(job)


class Promising(FirstFit):
    """head: it tells the first in line when it is to start, and forgets that where larger jobs are concerned."""

    def schedule(self, view: View, now_s: float) -> Iterator[Any]:
        plan, told = view.plan, False
        for job in view.queue:
            fit = view.find(job)
            if fit is not None and (not told or job.request.cores > 1):
                yield Start(job.jobid, fit)
            elif not told:
                told = True
                yield Reserve(plan.reserve(job), view.reason(job))
                plan.drop(job.jobid)


class Dicing(FirstFit):
    """deterministic: now and then it has no wish to start somebody now."""

    def find(self, view: View, job: Any) -> Any:
        busy = any(True for _ in view.running)
        return None if busy and random.random() < 0.5 else view.find(job)


class Stubborn(FirstFit):
    """targets: when it is dropped, it counts on whom it has started last to run on."""

    last: int | None = None

    def begin(self, view: View) -> None:
        assert self.last is None or self.last in [running.jobid for running in view.running]

    def start(self, job: Any, fit: Any) -> Iterator[Any]:
        self.last = job.jobid
        yield Start(job.jobid, fit)

    def end(self, view: View) -> None:
        self.last = None


class Remembering(FirstFit):
    """jobs: when it is dropped, it counts on whom it was to look at next."""

    line: tuple[Any, ...] = ()

    def begin(self, view: View) -> None:
        now = {job.jobid: job for job in view.queue}
        for job in self.line:
            assert now.get(job.jobid, job) is job, "somebody has another priority"
        self.line = tuple(now.values())


class Strict(FirstFit):
    """expiration: limits are limits."""

    def __init__(self) -> None:
        self.ends: dict[int, float] = {}

    def begin(self, view: View) -> None:
        for job in view.running:
            assert self.ends.setdefault(job.jobid, job.expiration_s) == job.expiration_s


class Proud(FirstFit):
    """reload: it knows only whom it started itself."""

    def __init__(self) -> None:
        self.mine: set[int] = set()

    def begin(self, view: View) -> None:
        assert all(job.jobid in self.mine for job in view.running)

    def start(self, job: Any, fit: Any) -> Iterator[Any]:
        self.mine.add(job.jobid)
        yield Start(job.jobid, fit)


class Narrow(FirstFit):
    """burst: it has room for fifty new jobs a pass, but for the first."""

    known: frozenset[int] | None = None

    def begin(self, view: View) -> None:
        now = frozenset(job.jobid for job in view.queue)
        assert self.known is None or len(now - self.known) < 50
        self.known = now


class Recursive(FirstFit):
    """recursion: one call a start."""

    def schedule(self, view: View, now_s: float) -> Iterator[Any]:
        for job in view.queue:
            fit = view.find(job)
            if fit is not None:
                yield Start(job.jobid, fit)
                yield from self.schedule(view, now_s)
                return
            yield Pending(job.jobid, view.reason(job))


class Wordy(FirstFit):
    """not-nothing: every word of a constraint says something."""

    def find(self, view: View, job: Any) -> Any:
        for words in job.request.constraint.to_json().values():
            assert all(words)
        return view.find(job)


class Fine(FirstFit):
    """rounding: the next time is as far as the last one, it thinks."""

    def schedule(self, view: View, now_s: float) -> Iterator[Any]:
        assert nextafter(now_s, inf) - now_s == now_s - nextafter(now_s, 0.0)
        return super().schedule(view, now_s)


class Frozen(FirstFit):
    """frozen: a reservation is made once; whoever ends by then may overtake, and nobody else."""

    def __init__(self) -> None:
        self.made: dict[int, Any] = {}

    def schedule(self, view: View, now_s: float) -> Iterator[Any]:
        head = None
        for job in view.queue:
            fit = view.find(job)
            if head is not None:
                start_s = self.made[head].start_s
                if fit is not None and job.duration_s and now_s + job.duration_s <= start_s < inf:
                    yield Start(job.jobid, fit)
            elif fit is not None:
                yield Start(job.jobid, fit)
            else:
                head = job.jobid
                if head not in self.made:
                    self.made[head] = view.plan.reserve(job)
                yield Reserve(self.made[head], view.reason(job))


class Quadratic(FirstFit):
    """cost: everybody is compared with everybody."""

    def begin(self, view: View) -> None:
        keys = [job.key for job in view.queue]
        for key in keys:
            sum(1 for other in keys if other < key)


BREAKERS = [
    (Blind, "usable"), (Greedy, "free"), (Twice, "waiting"), (Held, "waiting"), (Picky, "progress"),
    (Endless, "progress"), (Unkind, "progress"), (Jumpy, "ordinary"), (Promising, "head"), (Dicing, "deterministic"),
    (Stubborn, "targets"), (Remembering, "jobs"), (Strict, "expiration"), (Proud, "reload"), (Narrow, "burst"),
    (Recursive, "recursion"), (Wordy, "not-nothing"), (Fine, "rounding"), (Frozen, "frozen"),
    (Quadratic, "cost"),
]  # fmt: skip


class Steps:
    """A stopwatch that counts what is called between two looks at it, each as a microsecond: a test must not depend on
    the machine.
    """

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self) -> float:
        sys.setprofile(None if sys.getprofile() is not None else self._event)
        return self.steps / 1e6

    def _event(self, frame: object, event: str, arg: object) -> None:
        self.steps += event == "call"


def broken(policy: Policy, **options: Any) -> dict[str, RuleVerdict]:
    verdicts = list(examine(policy, stopwatch=Steps(), cases=SEEDS, sizes=SIZES, **options))
    found = {one.rule: one for one in verdicts if one.verdict == "broken"}
    assert [one.rule for one in verdicts] == [*LAWS, *RULES, *(["cost"] if not found.keys() - {"cost"} else [])]
    return found


@pytest.mark.parametrize("spec", OURS)
def test_ours_keep_every_rule(spec: str) -> None:
    assert broken(make(*parse_spec(spec))) == {}


@pytest.mark.parametrize(("breaker", "rule"), BREAKERS, ids=[cls.__name__ for cls, _ in BREAKERS])
def test_a_policy_that_breaks_one_rule_breaks_that_rule(breaker: Any, rule: str) -> None:
    found = broken(breaker())
    assert list(found) == [rule], found
    finding = found[rule].finding
    assert finding is not None
    if rule not in ("progress", "frozen", "cost"):
        assert finding.line is None or finding.line.startswith("test_suite.py:")


def test_the_first_failing_case_is_told_and_comes_again_with_its_seed() -> None:
    found = broken(Promising())["head"].finding
    assert found is not None
    again = broken(Promising(), seed=found.seed)["head"].finding
    assert again == found
    assert str(found).startswith(f"seed {found.seed}")
    assert "job ƒ" in found.what


def test_who_claims_nothing_is_not_judged_by_it() -> None:
    verdicts = {one.rule: one.verdict for one in examine(make("fifo", {}), cases=2)}
    assert (verdicts["head"], verdicts["frozen"]) == ("no claim", "no claim")
    own_order = {one.rule: one.verdict for one in examine(make("conservative", {"order": "sjf"}), cases=2)}
    assert own_order["head"] == "no claim"


class Dead(FirstFit):
    """It cannot do anything."""

    def begin(self, view: View) -> None:
        raise KeyError("nothing works")


def test_what_was_never_judged_to_its_end_is_unclear_or_broken() -> None:
    verdicts = {one.rule: one for one in examine(Dead(), stopwatch=Steps(), cases=2)}
    assert {one.verdict for name, one in verdicts.items() if name in RULES} == {"broken"}
    assert "cost" not in verdicts
    assert verdicts["head"].cases == 2
    twice = {one.rule: one.verdict for one in examine(Twice(), cases=1)}
    assert twice["recursion"] == "unclear"


def test_cost_is_judged_by_its_growth() -> None:
    assert limit(100, 1000) == pytest.approx(SLACK * 15)
    times = iter([0.0, 1.0] * 1 + [0.0, 1.0 * limit(100, 1000) * 1.01])
    growth = cost(lambda machine: Harness(make("fifo", {}), machine), lambda: next(times), (100, 1000, 10_000))
    assert isinstance(growth, Growth)
    assert growth.cases == 2
    assert growth.excess == "from 100 to 1,000 waiting jobs a pass takes 45 times as long; n log n allows 45"
    assert NOISE_S < 0.001


def test_a_clock_too_coarse_for_a_pass_measures_no_growth() -> None:
    growth = cost(lambda machine: Harness(make("fifo", {}), machine), lambda: 7.0, (100, 1000))
    assert growth.says == "a pass takes 0.00 ms with 100, 0.00 ms with 1,000 waiting; 1.0 times the last"
    assert growth.excess is None


@pytest.mark.parametrize("spec", ["hybrid:depth=2", "conservative"])
@pytest.mark.parametrize("begin_s", BEGINS_S)
def test_a_difference_of_times_misleads_who_plans_across_a_power_of_two(spec: str, begin_s: float) -> None:
    """By a difference the second job in line ends a little too late to go before the first, by the sum it does not."""
    harness = Harness(make(*parse_spec(spec)), "3x1", begin_s)
    rounding(lambda machine: harness, seeded(0))
    power_s = 2.0 ** frexp(begin_s)[1]
    first, second = (harness.jobs[jobid].spec.duration_s for jobid in (3, 4))
    assert [one for one in harness.checker.said if one[0] == "reserve"][:2] == [
        ("reserve", 3, power_s), ("reserve", 4, power_s + first)
    ]  # fmt: skip
    assert nextafter(power_s - second, inf) > power_s - second
    assert nextafter(power_s - second, inf) + second == power_s


@pytest.mark.parametrize(("begin_s", "powers"), list(zip(BEGINS_S, (1, 0, 1), strict=True)))
def test_days_pass_powers_of_two_and_have_limits_that_no_float_is(begin_s: float, powers: int) -> None:
    harness = Harness(make("easy", {}), MACHINE, begin_s)
    ordinary(lambda machine: harness, seeded(0))
    assert frexp(harness.now_s)[1] - frexp(begin_s)[1] == powers
    assert any(job.spec.duration_s % 0.5 for job in harness.jobs.values())
