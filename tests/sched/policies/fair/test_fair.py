"""Policy `fair` through the real scheduler: the worked examples of its order, its options, and walks within walks."""

import random
from collections import Counter
from math import inf

import pytest

from fluxsched.core.idset import Idset
from fluxsched.errors import InvalidValue
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.fair.accounts import Bank, FairSettings, Signal
from fluxsched.sched.loading import parse_spec
from fluxsched.sched.policy import Skips, Start
from fluxsched.sched.registry import load, make
from tests.generated.share import first as first_of
from tests.sched.site import make_r, scheduler_of, simulate, spec, under_fair

# ---- order: progressive filling


@pytest.mark.parametrize(
    ("signal", "expected"), [("flow", "B4 B8 A10 B12 B16 A20 B20"), ("decayed-usage", "A10 B4 B8 B12 A20 B16 B20")]
)
@pytest.mark.parametrize("inner", ["easy", "fifo", "firstfit", "hybrid", "conservative"])
def test_tens_and_fours(shared, inner, signal, expected):
    site = shared(40, f"fair:backfill={inner},signal={signal}")
    site.submit("a", 10, 9)
    site.submit("b", 4, 9)
    assert site.sequence() == expected.split()


@pytest.mark.parametrize("signal", ["flow", "decayed-usage"])
@pytest.mark.parametrize(
    ("weights", "banks", "used"),
    [
        ({"a": 1.0, "b": 3.0}, "xx", {"a": 10, "b": 30}), ({}, "xxy", {"a": 10, "b": 10, "c": 20}),
        ({"a": 1.0, "b": 0.5, "c": 0.1}, "xxx", {"a": 60, "b": 30, "c": 6}),
    ],
)  # fmt: skip
def test_weights_of_users_and_banks(shared, signal, weights, banks, used):
    site = shared(sum(used.values()), f"fair:signal={signal}", banks={"x": Bank(users=weights)})
    for user, bank in zip(used, banks, strict=True):
        site.submit(user, 1, 99, bank)
    site.starts()
    assert site.used() == used


@pytest.mark.slow
@pytest.mark.parametrize(("signal", "expected"), [("flow", (0, 1000)), ("decayed-usage", (275, 725))])
def test_whole_machine_jobs(shared, signal, expected):
    banks = {"x": Bank(users={"a": 1.0, "b": 3.0})}
    site = shared(4, "fair", banks=banks, half_life_s=3600.0, signal=Signal(signal))
    for user in "ab":
        site.submit(user, 4, 2, "x")
    count = Counter()
    for turn in range(1000):
        (jobid,) = site.starts(600.0 * turn)
        user = site.users[jobid]
        count[user] += 1
        site.submit(user, 4, 1, "x")
        site.scheduler.free_all(jobid, 600.0 * (turn + 1))
    assert (count["a"], count["b"]) == expected


@pytest.mark.parametrize(("signal", "first"), [("flow", False), ("decayed-usage", True)])
def test_one_large_job_among_small_ones(shared, signal, first):
    site = shared(40, f"fair:signal={signal}", half_life_s=600.0)
    (large,) = site.submit("a", 30)
    for user in "bc":
        site.submit(user, 1, 60)
    started = site.starts()
    assert (started[0] == large) == first
    for turn in first_of(range(1, 200)):
        for jobid in started:
            if jobid != large:
                site.submit(site.users[jobid], 1)
                site.scheduler.free_all(jobid, 60.0 * turn)
        started = site.starts(60.0 * turn)
        assert first or large not in started


def test_expedited_jobs_come_before_all_accounts_and_held_ones_never(shared):
    site = shared(4)
    site.submit("a", 1, 9)
    (urgent,) = site.submit("b", 4, priority=4294967295)
    site.submit("b", 1, 1, priority=0)
    assert site.starts() == [urgent]
    site.scheduler.free_all(urgent)
    assert {site.users[jobid] for jobid in site.starts()} == {"a"}


def test_a_reservation_counts_and_a_job_passed_over_does_not(shared):
    site = shared(8, "fair:backfill=hybrid,depth=1")
    site.submit("c", 4, 1, limit=100.0)
    site.starts()
    (large,) = site.submit("a", 8, 1, limit=100.0)
    small = site.submit("a", 1, 2, limit=50.0)
    other = site.submit("b", 1, 2, limit=50.0)
    assert site.starts() == [*other, *small], "a, which has a reservation of 8, comes after b"
    assert site.scheduler.group("default").queues[""].planned.keys() == {large}


# ---- options, and several policies


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fair:backfill=nothing", "no policy 'nothing'"),
        ("fair:backfill=fair", "runs another policy itself"),
        ("fair:depth=3", "no option 'depth'"),
        ("fair:signal=x", "one of flow, decayed-usage"),
        ("fair:cap=-1", "at least 0"),
        ("fair:cap=nan", "at least 0"),
        ("fair:rate=65537", "0-65536"),
        ("fair:half-life=0.1s", None),
    ],
)
def test_wrong_options(text, words):
    if words is None:
        with pytest.raises(InvalidValue, match="half-life"):
            scheduler_of(text)
        return
    with pytest.raises(InvalidValue, match=words):
        make(*parse_spec(text))


def test_options_pass_through_and_win():
    policy = make(*parse_spec("fair:backfill=hybrid,depth=3,order=sjf,signal=flow,cap=1.2,half-life=1h,usage=dominant"))
    assert policy.inner.name == "hybrid"
    book = Scheduler(policy, fair=FairSettings(cap=2.0, rate=7)).accounts
    assert book is not None
    assert (book.settings.cap, book.settings.rate, book.settings.half_life_s) == (1.2, 7, 3600.0)
    assert book.settings.dominant
    assert book.settings.signal is Signal.FLOW


def test_policies_that_contradict_each_other_are_refused():
    one, own, _ = load("fair:cap=1;debug=fair:cap=2")
    with pytest.raises(InvalidValue, match=r"contradict each other: cap is 1\.0 for one and 2\.0 for another"):
        Scheduler(one, ("default",), {"debug": "default"}, own)
    one, own, _ = load("fair:signal=flow;debug=fair:signal=decayed-usage")
    with pytest.raises(InvalidValue, match="signal is flow for one and decayed-usage for another"):
        Scheduler(one, ("default",), {"debug": "default"}, own)


def test_settings_that_are_not_known_are_refused_with_those_that_are():
    policy = make("fair", {})
    policy.fair_overrides = {"caps": 1.0}
    with pytest.raises(InvalidValue, match="'fair': fair_overrides has caps; there are banks, budget_min, cap, "):
        Scheduler(policy)


def test_no_policy_asks_no_accounts():
    assert scheduler_of("easy").accounts is None


# ---- several walks at once


class Nested:
    """Begins other walks within a walk, and starts jobs in both."""

    name = "nested"

    def __init__(self):
        self.met = []
        self.plain = []

    def schedule(self, view, now_s):
        self.plain = [job.jobid for job in view.queue]
        self.met = []
        for turn, job in enumerate(view.queue):
            self.met.append(job.jobid)
            for other, _ in zip(view.candidates(Skips()), range(turn % 4), strict=False):
                assert other is not None
            assert view.first is not None
            if turn == 5:
                last = list(view.queue)[-1]
                fit = view.find(last)
                assert fit is not None
                yield Start(last.jobid, fit)
                self.plain.remove(last.jobid)


@pytest.mark.parametrize("signal", ["flow", "decayed-usage"])
def test_walks_within_walks_are_told_apart(shared, signal):
    inner = Nested()
    site = shared(64, "fair", signal=Signal(signal))
    site.scheduler = Scheduler(under_fair(inner), fair=FairSettings(signal=Signal(signal)))
    resources = make_r("0", cores=64)
    site.scheduler.grown("default", resources, resources.ranks, Idset())
    for user, cores in (("a", 3), ("b", 1), ("c", 9), ("a", 1), ("b", 4)):
        site.submit(user, cores, 4)
    assert len(site.starts()) == 1
    assert sorted(inner.met) == sorted(inner.plain)
    if signal == "decayed-usage":  # under flow the start moves others
        assert inner.met[:6] == inner.plain[:6]


# ---- one account

INNER = [
    "fifo", "firstfit", "easy", "conservative", "hybrid:depth=3", "firstfit:order=sjf", "easy:order=lxf",
    "conservative:compress", "conservative:order=saf", "hybrid:depth=2,order=ljf", "easy:placement=best-fit",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("inner", INNER)
def test_with_one_account_it_is_the_policy_inside(inner):
    name, _, options = inner.partition(":")
    for whole, signal in enumerate(("flow", "decayed-usage")):
        chance = random.Random(whole)
        jobs = []
        for _ in range(40):
            size = {"nodes": chance.randrange(1, 5), "exclusive": True} if whole else {"cores": chance.randrange(1, 5)}
            limit_s = chance.choice([0.0, 10.0, 20.0, 50.0, 77.0])
            jobs.append((float(chance.randrange(40)), chance.uniform(1.0, 60.0), spec(duration=limit_s, **size)))
        alone = simulate(inner, make_r("0-3", cores=4), jobs)
        around = f"fair:backfill={name},signal={signal}" + (f",{options}" if options else "")
        assert simulate(around, make_r("0-3", cores=4), jobs).starts == alone.starts
        assert max(alone.starts.values()) < inf
