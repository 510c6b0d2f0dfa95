"""Policy `fair` through the real scheduler: the worked examples of its page, limits, and what it leaves as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue
from fluxsched.sched.accounts.settings import Bank, FairSettings
from fluxsched.sched.accounts.signal import Signal
from fluxsched.sched.effects import Annotated, Denied, Granted
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.registry import load, make, parse_spec


class Shared:
    """A scheduler of one group that `fair` decides for; users are named by their ids, `a` is 1."""

    def __init__(self, make_r: Callable[..., ResourceSet], cores: int, policy: str = "fair", **fair: Any) -> None:
        self.scheduler = Scheduler(load(policy)[0], fair=FairSettings(**fair), user_name=lambda user: chr(96 + user))
        resources = make_r("0", cores=cores)
        self.scheduler.grown("default", resources, resources.ranks, Idset())
        self.jobid = 0
        self.users: dict[int, str] = {}
        self.now_s = 0.0
        self.told: dict[int, str] = {}

    def submit(
        self,
        user: str,
        cores: int,
        jobs: int = 1,
        bank: str | None = None,
        after: float | None = None,
        limit: float = 0.0,
        priority: int = 16,
    ) -> list[int]:
        """So many jobs of as many cores; their ids."""
        found = []
        for _ in range(jobs):
            self.jobid += 1
            system: dict[str, Any] = {"duration": limit}
            if bank is not None:
                system["bank"] = bank
            if after is not None:
                system["preemptible-after"] = after
            spec = {
                "version": 1,
                "resources": [
                    {"type": "slot", "count": 1, "label": "task", "with": [{"type": "core", "count": cores}]}
                ],
                "tasks": [{"command": ["true"], "slot": "task", "count": {"per_slot": 1}}],
                "attributes": {"system": system},
            }
            who = ord(user) - 96
            effects = self.scheduler.alloc(self.jobid, priority, who, float(self.jobid), spec, self.now_s)
            assert not any(isinstance(effect, Denied) for effect in effects), effects
            self.users[self.jobid] = user
            found.append(self.jobid)
        return found

    def starts(self, now_s: float | None = None) -> list[int]:
        """The jobs that start in a pass, in that order."""
        self.now_s = self.now_s if now_s is None else now_s
        started = []
        for effect in self.scheduler.schedule(self.now_s):
            if isinstance(effect, Granted):
                started.append(effect.jobid)
            elif isinstance(effect, Annotated):
                self.told[effect.jobid] = effect.annotations["sched"].get("reason_pending", "")
        self.scheduler.check()
        return started

    def sequence(self) -> list[str]:
        """`A10`: an account starts a job, after which it uses so much."""
        used: Counter[str] = Counter()
        found = []
        book = self.scheduler.accounts
        assert book is not None
        for jobid in self.starts():
            holding = self.scheduler._ledger.get(jobid)
            assert holding is not None
            used[self.users[jobid]] += sum(cores.bit_count() for cores, _ in holding.parts.values())
            found.append(f"{self.users[jobid].upper()}{used[self.users[jobid]]}")
        return found

    def used(self) -> dict[str, float]:
        """What users hold, in units of weight."""
        book = self.scheduler.accounts
        assert book is not None
        return {account.name: account.all_jobs.usage for account in book.tree.root.walk() if not account.children}


@pytest.fixture
def shared(make_r: Callable[..., ResourceSet]) -> Callable[..., Shared]:
    return lambda cores, *args, **options: Shared(make_r, cores, *args, **options)


# ---- order: progressive filling


@pytest.mark.parametrize(
    ("signal", "expected"),
    [("flow", "B4 B8 A10 B12 B16 A20 B20"), ("decayed-usage", "A10 B4 B8 B12 A20 B16 B20")],
)
@pytest.mark.parametrize("inner", ["easy", "fifo", "firstfit", "hybrid", "conservative"])
def test_tens_and_fours(shared: Callable[..., Shared], inner: str, signal: str, expected: str) -> None:
    site = shared(40, f"fair:backfill={inner},signal={signal}")
    site.submit("a", 10, 9)
    site.submit("b", 4, 9)
    assert site.sequence() == expected.split()


@pytest.mark.parametrize("signal", ["flow", "decayed-usage"])
def test_weights(shared: Callable[..., Shared], signal: str) -> None:
    banks = {"x": Bank(users={"a": 1.0, "b": 3.0})}
    site = shared(40, f"fair:signal={signal}", banks=banks)
    site.submit("a", 1, 50, "x")
    site.submit("b", 1, 50, "x")
    site.starts()
    assert site.used() == {"a": 10, "b": 30}


@pytest.mark.parametrize("signal", ["flow", "decayed-usage"])
def test_weights_of_three(shared: Callable[..., Shared], signal: str) -> None:
    banks = {"x": Bank(users={"a": 1.0, "b": 0.5, "c": 0.1})}
    site = shared(96, f"fair:signal={signal}", banks=banks)
    for user in "abc":
        site.submit(user, 1, 99, "x")
    site.starts()
    assert site.used() == {"a": 60, "b": 30, "c": 6}


@pytest.mark.parametrize("signal", ["flow", "decayed-usage"])
def test_banks(shared: Callable[..., Shared], signal: str) -> None:
    site = shared(40, f"fair:signal={signal}")
    site.submit("a", 1, 50, "x")
    site.submit("b", 1, 50, "x")
    site.submit("c", 1, 50, "y")
    site.starts()
    assert site.used() == {"a": 10, "b": 10, "c": 20}


@pytest.mark.parametrize(("signal", "expected"), [("flow", (0, 4000)), ("decayed-usage", (1100, 2900))])
def test_whole_machine_jobs(shared: Callable[..., Shared], signal: str, expected: tuple[int, int]) -> None:
    banks = {"x": Bank(users={"a": 1.0, "b": 3.0})}
    site = shared(4, "fair", banks=banks, half_life_s=3600.0, signal=Signal(signal))
    for user in "ab":
        site.submit(user, 4, 2, "x")
    count: Counter[str] = Counter()
    for turn in range(4000):
        (jobid,) = site.starts(600.0 * turn)
        user = site.users[jobid]
        count[user] += 1
        site.submit(user, 4, 1, "x")
        site.scheduler.free_all(jobid, 600.0 * (turn + 1))
    assert (count["a"], count["b"]) == expected


@pytest.mark.parametrize(("signal", "first"), [("flow", False), ("decayed-usage", True)])
def test_one_large_job_among_small_ones(shared: Callable[..., Shared], signal: str, first: bool) -> None:
    site = shared(40, f"fair:signal={signal}", half_life_s=600.0)
    (large,) = site.submit("a", 30)
    for user in "bc":
        site.submit(user, 1, 60)
    started = site.starts()
    assert (started[0] == large) == first
    for turn in range(1, 200):
        for jobid in started:
            if jobid != large:
                site.submit(site.users[jobid], 1)
                site.scheduler.free_all(jobid, 60.0 * turn)
        started = site.starts(60.0 * turn)
        assert first or large not in started


def test_expedited_jobs_come_before_all_accounts_and_held_ones_never(shared: Callable[..., Shared]) -> None:
    site = shared(4)
    site.submit("a", 1, 9)
    (urgent,) = site.submit("b", 4, priority=4294967295)
    site.submit("b", 1, 1, priority=0)
    assert site.starts() == [urgent]
    site.scheduler.free_all(urgent)
    assert {site.users[jobid] for jobid in site.starts()} == {"a"}


def test_a_reservation_counts_and_a_job_passed_over_does_not(shared: Callable[..., Shared]) -> None:
    site = shared(8, "fair:backfill=hybrid,depth=1")
    site.submit("c", 4, 1, limit=100.0)
    site.starts()
    (large,) = site.submit("a", 8, 1, limit=100.0)
    small = site.submit("a", 1, 2, limit=50.0)
    other = site.submit("b", 1, 2, limit=50.0)
    assert site.starts() == [*other, *small], "a, which has a reservation of 8, comes after b"
    assert site.scheduler._groups["default"].queues[""].planned.keys() == {large}


# ---- limits


def test_a_cap_holds_back_those_that_draw_on_it(shared: Callable[..., Shared]) -> None:
    site = shared(1000, cap=1.2, banks={"x": Bank(users={"d": 2.0})})
    site.submit("b", 1, 1, "x")
    site.submit("a", 290, 1, "x")
    site.submit("d", 500, 1, "x")
    assert len(site.starts()) == 3
    blocked, behind = site.submit("a", 20, 1, "x")[0], site.submit("a", 10, 1, "x")[0]
    (last,) = site.submit("a", 10, 1, "x", after=0.0)
    site.submit("b", 1000, 1, "x")
    assert last in site.starts()
    assert {blocked, behind} <= site.scheduler._groups["default"].queues[""].jobs.by_id.keys()
    assert "290 of 300" in site.told[blocked]
    assert "20" in site.told[blocked]
    assert behind not in site.told


def test_ten_would_start(shared: Callable[..., Shared]) -> None:
    site = shared(1000, cap=1.2, banks={"x": Bank(users={"d": 2.0})})
    for user in "bd":
        site.submit(user, 1, 1, "x")
    site.submit("a", 290, 1, "x")
    assert len(site.starts()) == 3
    (ten,) = site.submit("a", 10, 1, "x")
    assert site.starts() == [ten]


def test_a_flow_lifts_a_cap_by_itself_and_a_pass_comes_then(shared: Callable[..., Shared]) -> None:
    site = shared(100, cap=1.0, half_life_s=600.0)
    (first,) = site.submit("a", 100)
    assert site.starts() == [first]
    site.submit("b", 60)
    site.scheduler.free_all(first, 10.0)
    (second,) = site.submit("a", 10)
    assert site.starts(10.0) == [], "both have a share of 50: b's job is over it, and a's flow is 100"
    wake_s = site.scheduler.next_notice_s
    assert wake_s == pytest.approx(610.0)
    assert site.starts(wake_s) == [second]


def test_a_budget_is_charged_at_the_start_and_comes_back_at_the_end(shared: Callable[..., Shared]) -> None:
    site = shared(1000, budget_min=600.0, banks={"x": Bank(users={"a": 1.0}), "y": Bank(weight=3.0)})
    site.submit("b", 1, 1, "y")
    site.submit("a", 250, 1, "x", after=0.0)
    site.starts()
    book = site.scheduler.accounts
    assert book is not None
    (charged,) = site.submit("a", 10, 1, "x", after=1800.0)
    assert site.starts() == [charged]
    assert book.limits.left("a") == 300.0
    (waits,) = site.submit("a", 10, 1, "x", after=2400.0)
    (free,) = site.submit("a", 10, 1, "x", after=0.0)
    assert site.starts() == [free]
    assert "300 of 600" in site.told[waits]
    assert "400" in site.told[waits]
    site.scheduler.free_all(charged, 0.0)
    assert book.limits.left("a") == 600.0
    assert site.starts() == [waits]


def test_budgets_are_charged_anew_from_hello_in_the_order_of_start(
    shared: Callable[..., Shared], make_r: Callable[..., ResourceSet]
) -> None:
    settings = FairSettings(budget_min=1000.0)
    scheduler = Scheduler(load("fair")[0], fair=settings)
    resources = make_r("0-3", cores=10)
    scheduler.grown("default", resources, resources.ranks, Idset())
    for jobid, started_s in ((1, 50.0), (2, 10.0), (3, 30.0), (4, 20.0)):
        spec = {
            "version": 1,
            "resources": [{"type": "slot", "count": 1, "label": "task", "with": [{"type": "core", "count": 10}]}],
            "tasks": [{"command": ["true"], "slot": "task", "count": {"per_slot": 1}}],
            "attributes": {"system": {"duration": 600.0, "preemptible-after": 600.0}},
        }
        held = resources.restrict(Idset.of([jobid - 1])).with_expiration(started_s, 0.0)
        scheduler.hello(jobid, 16, 1 + jobid % 2, 0.0, held, EMPTY, spec, now_s=60.0)
    list(scheduler.schedule(60.0))
    book = scheduler.accounts
    assert book is not None
    assert [book.charged(jobid) for jobid in (1, 2, 3, 4)] == [0, 0, 0, 0], "20 each, of a share of 20"
    scheduler.hello(5, 16, 2, 0.0, ResourceSet.parse({**resources.restrict(Idset.of([3])).to_json()}), Idset.of([3]))


# ---- options, and several policies


@pytest.mark.parametrize(
    ("spec", "words"),
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
def test_wrong_options(spec: str, words: str | None) -> None:
    if words is None:
        with pytest.raises(InvalidValue, match="half-life"):
            Scheduler(load(spec)[0])
        return
    with pytest.raises(InvalidValue, match=words):
        make(*parse_spec(spec))


def test_options_pass_through_and_win() -> None:
    policy = make(*parse_spec("fair:backfill=hybrid,depth=3,order=sjf,signal=flow,cap=1.2,half-life=1h,usage=dominant"))
    assert policy.inner.name == "hybrid"  # type: ignore[attr-defined]
    book = Scheduler(policy, fair=FairSettings(cap=2.0, rate=7)).accounts
    assert book is not None
    assert (book.settings.cap, book.settings.rate, book.settings.half_life_s) == (1.2, 7, 3600.0)
    assert book.settings.dominant
    assert book.settings.signal is Signal.FLOW


def test_policies_that_contradict_each_other_are_refused() -> None:
    one, own = load("fair:cap=1;debug=fair:cap=2")
    with pytest.raises(InvalidValue, match="contradict"):
        Scheduler(one, ("default",), {"debug": "default"}, own)


def test_no_policy_asks_no_accounts() -> None:
    assert Scheduler(load("easy")[0]).accounts is None


def test_one_account_too_many_is_denied(shared: Callable[..., Shared], monkeypatch: pytest.MonkeyPatch) -> None:
    from fluxsched.sched.accounts import tree

    monkeypatch.setattr(tree, "ACCOUNTS_MAX", 3)
    site = shared(4)
    site.submit("a", 1, 2)
    site.submit("b", 1)
    with pytest.raises(AssertionError, match="there are 3, which is the limit"):
        site.submit("c", 1)
    assert len(site.starts()) == 3


# ---- why a job waits


def test_why_says_which_account_comes_first(shared: Callable[..., Shared]) -> None:
    site = shared(8)
    site.submit("a", 6, 1, limit=100.0)
    site.starts()
    site.submit("a", 4, 2, limit=100.0)
    (other,) = site.submit("b", 4, 1, limit=100.0)
    last = site.submit("a", 4, 1, limit=100.0)[0]
    assert site.starts() == []
    why = site.scheduler.why(last, 0.0)
    assert why.rule.startswith("2 ahead of it in account default/a; account default/b comes first: its usage and")
    assert "is 0, that of default/a 6" in why.rule
    assert "4 core" in why.reason
    assert why.earliest_s == 100.0
    first = site.scheduler.why(other, 0.0)
    assert first.rule.startswith("first in account default/b, which comes first; under fair:")
    assert first.earliest_s == 100.0


def test_why_says_which_limit_and_when_time_lifts_it(shared: Callable[..., Shared]) -> None:
    site = shared(100, cap=1.0, half_life_s=600.0)
    (first,) = site.submit("a", 100)
    site.starts()
    site.submit("b", 60)
    site.scheduler.free_all(first, 10.0)
    second, third = site.submit("a", 10, 2)
    why = site.scheduler.why(second, 10.0)
    assert why.reason.startswith("account default/a is at its cap: 100 of 50 are in use")
    assert why.earliest_s == pytest.approx(610.0)
    behind = site.scheduler.why(third, 10.0)
    assert behind.reason.startswith("waits behind job ")
    assert behind.reason.endswith(why.reason)
    assert behind.earliest_s == why.earliest_s
    (urgent,) = site.submit("c", 10, priority=4294967295)
    assert site.scheduler.why(urgent, 10.0).rule.startswith("comes before all accounts")


def test_why_of_a_budget(shared: Callable[..., Shared]) -> None:
    site = shared(10, budget_min=10.0)
    site.submit("a", 4)
    site.submit("b", 4)
    site.starts()
    waits, free = site.submit("a", 2, 1, after=3600.0)[0], site.submit("a", 2, 2, after=0.0)[1]
    why = site.scheduler.why(waits, 0.0)
    assert why.reason == "budget of a: 0 of 10 resource minutes are charged, and the job would be charged 60"
    assert why.earliest_s is None
    assert "budget" not in site.scheduler.why(free, 0.0).reason
