"""The conformance suite: our policies keep it, and for each rule there is a policy that breaks it and nothing else."""

import inspect
import sys
from math import frexp, inf, nextafter

import pytest

from fluxsched.sched.loading import parse_spec
from fluxsched.sched.policies.fair import Fair
from fluxsched.sched.registry import make
from fluxsched.sim import conformance as suite
from fluxsched.sim import examine
from fluxsched.sim.conformance import (
    BEGINS_S,
    LAWS,
    MACHINE,
    NOISE_S,
    RULES,
    SLACK,
    Growth,
    cost,
    extras,
    limit,
    ordinary,
    rounding,
)
from fluxsched.sim.harness import Harness, RuleBroken
from fluxsched.system.clock import seeded
from tests.generated.share import ALL, first
from tests.sim.conformance.breakers import (
    BREAKERS,
    Blind,
    Feeding,
    FirstFit,
    Frozen,
    Hasty,
    Promising,
    Standby,
    Stubborn,
    Twice,
)  # fmt: skip

SEEDS, SIZES = len(BEGINS_S), (50, 500)
"""Each time at which a case may begin comes once; `policy check` tries more."""
SHOWN_BY = {Hasty: 1, Stubborn: 2, Promising: 4}
"""The seed of the first case that shows a policy to break its rule, where that is not the very first."""
CASE_OF_LAW = {"allowed": "in-vain", "rate": "in-vain", "sizes": "elastic", "outage": "outage-end"}
"""The case of another rule that shows a law to be broken, where it is not `ordinary`."""
SEEDS_OF_EXTRAS = 5
"""Some bring one job for which extras go, some several."""
BURST = 1200
"""Jobs that become runnable at once here: more than Python lets calls nest, and no more, since each policy has them."""

OURS = ["conservative:compress", "fair", "fifo", "firstfit", "easy", "easy:order=sjf", "hybrid", "hybrid:depth=3",
        "conservative", "fair:backfill=conservative"]  # fmt: skip
"""The first two have most of what the others have: a plan for all jobs, and accounts above a backfill as in `easy`."""


class Steps:
    """A stopwatch that counts what is called between two looks at it, each as a microsecond: a test must not depend on
    the machine.
    """

    def __init__(self):
        self.steps = 0

    def __call__(self):
        sys.setprofile(None if sys.getprofile() is not None else self._event)
        return self.steps / 1e6

    def _event(self, frame, event, arg):
        self.steps += event == "call"


@pytest.fixture(autouse=True)
def _shorter(monkeypatch):
    assert sys.getrecursionlimit() < BURST < suite.RECURSION
    monkeypatch.setattr(suite, "RECURSION", BURST)


def broken(policy, seeds, **options):
    """What is broken, by its name; all rules and laws have a verdict, whichever cases were tried."""
    verdicts = list(examine(policy, stopwatch=Steps(), cases=seeds, sizes=SIZES, **options))
    found = {one.rule: one for one in verdicts if one.verdict == "broken"}
    assert [one.rule for one in verdicts] == [*LAWS, *RULES, "cost"]
    return found


@pytest.mark.parametrize("spec", first(OURS))
def test_ours_keep_every_rule(spec):
    """Each at another time, or all at all times."""
    cases, seed = (SEEDS, 0) if ALL else (1, OURS.index(spec) % SEEDS)
    assert broken(make(*parse_spec(spec)), cases, seed=seed) == {}


ALSO = {Frozen: "queue-head", Promising: "queue-head", Blind: "outage"}
"""The first two have one reservation for all queues, the third one starts jobs on what an outage has drained."""


@pytest.mark.parametrize(("breaker", "rule"), BREAKERS, ids=[cls.__name__ for cls, _ in BREAKERS])
def test_a_policy_that_breaks_one_rule_breaks_that_rule(breaker, rule):
    """And that alone, but for what `ALSO` says; by all cases, or by the one that shows it."""
    shown_by = SHOWN_BY.get(breaker, 0)
    case = rule if rule in RULES else CASE_OF_LAW.get(rule, "ordinary")
    found = broken(breaker(), max(SEEDS, shown_by + 1)) if ALL else broken(breaker(), 1, seed=shown_by, rules=[case])
    assert [each for each in found if each != ALSO.get(breaker)] == [rule], found
    finding = found[rule].finding
    assert finding is not None
    if rule not in ("progress", "frozen", "cost"):
        assert finding.line is None or finding.line.startswith("breakers.py:")
    if issubclass(breaker, Standby):
        assert finding.line == f"breakers.py:{_line_of_preempt()}"


def test_the_first_failing_case_is_told_and_comes_again_with_its_seed():
    shown_by = SHOWN_BY[Promising]
    found = broken(Promising(), 2, seed=shown_by - 1, rules=["head"])["head"].finding
    assert found is not None
    assert found.seed == shown_by
    again = broken(Promising(), 1, seed=found.seed, rules=["head"])["head"].finding
    assert again == found
    assert str(found).startswith(f"seed {found.seed}")
    assert "job ƒ" in found.what


def test_who_preempts_as_he_may_keeps_every_rule():
    rules = tuple(RULES) if ALL else ("ordinary", "in-vain", "extras")
    verdicts = {one.rule: one for one in examine(Standby(), cases=SEEDS if ALL else 1, rules=rules)}
    assert {verdicts[name].verdict for name in (*LAWS, *rules)} <= {"kept", "no claim"}
    assert verdicts["in-vain"].verdict == "kept"


def _line_of_preempt():
    lines, first = inspect.getsourcelines(Standby)
    return first + next(at for at, line in enumerate(lines) if "yield Preempt" in line)


def test_who_claims_nothing_is_not_judged_by_it():
    claims = ("head", "frozen", "in-vain")
    verdicts = {one.rule: one.verdict for one in examine(make("fifo", {}), cases=1, rules=claims)}
    assert {verdicts[rule] for rule in claims} == {"no claim"}
    sorted_policy = make("conservative", {"order": "sjf"})
    own_order = {one.rule: one.verdict for one in examine(sorted_policy, cases=1, rules=claims)}
    assert own_order["head"] == "no claim"


class Dead(FirstFit):
    """It cannot do anything."""

    def begin(self, view):
        raise KeyError("nothing works")


def test_what_was_never_judged_to_its_end_is_unclear_or_broken():
    verdicts = {one.rule: one for one in examine(Dead(), stopwatch=Steps(), cases=2)}
    assert {one.verdict for name, one in verdicts.items() if name in RULES} == {"broken"}
    assert verdicts["cost"].verdict == "unclear", "it is measured if all else is kept"
    assert verdicts["head"].cases == 2
    twice = {one.rule: one.verdict for one in examine(Twice(), cases=1, rules=["ordinary"])}
    assert twice["recursion"] == "unclear"


def test_cost_is_judged_by_its_growth():
    assert limit(100, 1000) == pytest.approx(SLACK * 15)
    times = iter([0.0, 1.0] * 1 + [0.0, 1.0 * limit(100, 1000) * 1.01])
    growth = cost(lambda machine: Harness(make("fifo", {}), machine), lambda: next(times), (100, 1000, 10_000))
    assert isinstance(growth, Growth)
    assert growth.cases == 2
    assert growth.excess == "from 100 to 1,000 waiting jobs a pass takes 45 times as long; n log n allows 45"
    assert NOISE_S < 0.001


def test_a_clock_too_coarse_for_a_pass_measures_no_growth():
    growth = cost(lambda machine: Harness(make("fifo", {}), machine), lambda: 7.0, (100, 1000))
    assert growth.says == "a pass takes 0.00 ms with 100, 0.00 ms with 1,000 waiting; 1.0 times as long as with 100"
    assert growth.excess is None


@pytest.mark.parametrize("spec", ["hybrid:depth=2", "conservative"])
@pytest.mark.parametrize("begin_s", BEGINS_S)
def test_a_difference_of_times_misleads_who_plans_across_a_power_of_two(spec, begin_s):
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
def test_days_pass_powers_of_two_and_have_limits_that_no_float_is(begin_s, powers):
    harness = Harness(make("easy", {}), MACHINE, begin_s)
    ordinary(lambda machine: harness, seeded(0))
    assert frexp(harness.now_s)[1] - frexp(begin_s)[1] == powers
    assert any(job.spec.duration_s % 0.5 for job in harness.jobs.values())


def judge_extras(make_policy):
    for seed in range(SEEDS_OF_EXTRAS):
        extras(lambda machine: Harness(make_policy(), machine), seeded(seed))


@pytest.mark.parametrize("make_policy", [Feeding, lambda: Fair(Feeding())], ids=["alone", "with accounts"])
def test_growing_before_all_who_wait_were_looked_at_is_noticed(make_policy):
    with pytest.raises(RuleBroken, match="which is within its share, could start there") as broken:
        judge_extras(make_policy)
    assert broken.value.law == "extras"


def test_extras_that_do_not_go_are_noticed(monkeypatch):
    monkeypatch.setattr("fluxsched.sim.harness.GRACE_S", 1e5)
    with pytest.raises(RuleBroken, match="waits, although elastic jobs have more than their minima"):
        judge_extras(lambda: make("easy", {}))


def test_a_law_is_not_kept_by_cases_that_no_pass_came_through():
    class Raises:
        name = "raises"
        OPTIONS = Blind.OPTIONS

        def schedule(self, view, now_s):
            raise KeyError("x")

    verdicts = {each.rule: each for each in examine(Raises(), cases=1)}
    assert {verdicts[law].verdict for law in LAWS} == {"unclear"}
    assert {verdicts[rule].verdict for rule in RULES} == {"broken"}
