"""Accounts of what jobs used: each job once, whatever is killed when, in the hours in which it was."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.idset import Idset
from fluxsched.core.sharing import Sharing
from fluxsched.jobs.job.job import Job
from fluxsched.jobs.job.usage import Usage
from fluxsched.jobs.queue.queues import JobQueue, QueueConfig
from fluxsched.runtime.history import accounting as the
from fluxsched.runtime.history.accounting import JobAccounting
from fluxsched.runtime.history.report import AccountSums, Span, read_accounts, running_use, whole
from fluxsched.runtime.storage.events import pack_events
from fluxsched.runtime.storage.usage import DAY, HOUR, SUMS

from .by_hand import BEGIN_S, ByHand

QUEUE = JobQueue(QueueConfig("batch", group="fast"))
JOBSPEC = (
    b'{"version":1,"tasks":[{"command":["true"],"slot":"task","count":{"per_slot":1}}],"resources":[{"type":"slot",'
    b'"label":"task","count":1,"with":[{"type":"core","count":1}]}],'
    b'"attributes":{"system":{"duration":0,"queue":"batch","bank":"optics"}}}'
)
R = (
    b'{"version":1,"execution":{"R_lite":[{"rank":"0-1","children":{"core":"0-1","gpu":"0"}}],"nodelist":["n[0-1]"],'
    b'"starttime":0,"expiration":0,"properties":{"gpu":"0-1","ib":"1"}}}'
)


class World(ByHand):
    """With accounts, and jobs that end."""

    def __init__(self, directory: Path) -> None:
        self.last = 0
        super().__init__(directory)

    def start(self) -> None:
        super().start()
        counted = self.rows("SELECT value FROM saved WHERE key = 'counted'")
        self.accounting = JobAccounting(self.turns, self.store, lambda name: QUEUE)
        self.accounting.restore(int(counted[0][0]) if counted else 0, lambda: None)
        self.flush()

    def end(self, count: int = 1) -> None:
        """Jobs of 4 cores and 2 GPUs that have waited for 10 s and run for 100 s; with their records."""
        for _ in range(count):
            self.last += 1
            jobid, end_s = self.last, self.now_s
            context = {"userid": 1000 + jobid % 2, "urgency": 16, "flags": 0, "version": 1}
            usage = {"wall_s": 100.0, "user_s": 300.0, "system_s": 20.0, "max_rss_bytes": 1}
            names = [
                ("submit", 110.0, context), ("validate", 110.0, None), ("depend", 110.0, None),
                ("priority", 110.0, {"priority": 16}), ("alloc", 100.0, None), ("start", 100.0, None),
                ("finish", 0.0, {"status": 0, "usage": usage}), ("release", 0.0, {"ranks": "all", "final": True}),
                ("free", 0.0, None), ("clean", 0.0, None),
            ]  # fmt: skip
            events = [
                {"timestamp": end_s - ago_s, "name": name} | ({} if more is None else {"context": more})
                for name, ago_s, more in names
            ]
            self.store.add("job_log", (jobid, 0, pack_events(events[:5]), JOBSPEC, 0, 0, R))
            self.store.add("job_log", (jobid, int(end_s), pack_events(events[5:]), "", 0, 0, ""))
            self.accounting.ended(job(end_s, 100.0, userid=context["userid"]), "COMPLETED")
        self.flush()

    def report(self, by: str = "bank", since_s: float = 0.0, userid: int | None = None) -> AccountSums:
        span = whole(since_s, self.now_s + HOUR, self.now_s)
        return read_accounts(self.store.read, span, by, userid)

    def counted(self) -> int:
        """All jobs that the accounts have."""
        return int(sum(self.report().total[:4]))


def job(end_s: float, duration_s: float, *, wait_s: float = 10.0, **values: Any) -> Job:
    found = Job(1, QUEUE, None, ncores=4, ngpus=2, properties="gpu\nib", sharing=Sharing(bank="optics"), **values)
    found.t_inactive, found.t_run, found.t_submit = end_s, end_s - duration_s, end_s - duration_s - wait_s
    found.usage = Usage(duration_s, 3.0 * duration_s, 0.2 * duration_s, 1)
    return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.store.close()


def test_jobs_are_counted_by_what_they_are_of(world: World) -> None:
    world.end(3)
    world.accounting.write()
    world.flush()
    named = {by: dict(world.report(by).rows) for by in ("user", "bank", "queue", "group", "property")}
    assert {by: {name: sums[0] for name, sums in rows.items()} for by, rows in named.items()} == {
        "user": {"1001": 2, "1000": 1}, "bank": {"optics": 3}, "queue": {"batch": 3}, "group": {"fast": 3},
        "property": {"gpu": 3, "ib": 3},
    }  # fmt: skip
    assert named["bank"]["optics"][:9] == [3.0, 0, 0, 0, 1200.0, 600.0, 960.0, 1200.0, 30.0]
    assert sum(named["bank"]["optics"][9:]) == 3, "waits"
    assert world.report("property").total[0] == 3, "together they are counted once"
    assert world.report("user", userid=1000).rows == [("1000", named["user"]["1000"])]


def test_a_job_counts_for_the_group_in_which_it_ran(world: World) -> None:
    both, members = JobQueue(QueueConfig("both", group="fast", others=("slow",))), {3: "slow", 9: "other"}
    world.accounting.group_of = members.get
    ran = [job(world.now_s, 100.0, ranks=Idset.parse(ranks)) for ranks in ("3-4", "9", "")]
    for one in ran:
        one.queue = both
        world.accounting.ended(one, "COMPLETED")
    world.accounting.write()
    world.flush()
    assert {name: sums[0] for name, sums in world.report("group").rows} == {"slow": 1, "fast,slow": 2}
    span = Span(int(BEGIN_S), int(BEGIN_S + 3600), BEGIN_S + 900.0)
    (*_, found) = running_use({1: ran[0]}, [1], span, "group", None, members.get)
    assert found is not None
    assert list(found.by_name) == ["slow"]


@pytest.mark.parametrize("writes", [0, 1, 2], ids=["nothing written", "some written", "all written"])
def test_a_kill_loses_no_job_and_counts_none_twice(world: World, writes: int) -> None:
    world.end(40)
    if writes:
        world.accounting.write()
        world.flush()
    world.end(30)
    if writes == 2:
        world.accounting.write()
        world.flush()
    for _ in range(3):
        world.lose()
        world.start()
        assert world.counted() == 70
    assert world.report().total[4:9] == pytest.approx([28_000.0, 14_000.0, 22_400.0, 28_000.0, 700.0])


def test_what_ends_while_others_are_counted_again_is_counted_once(world: World) -> None:
    world.end(40)
    world.lose()
    ByHand.start(world)
    world.accounting = JobAccounting(world.turns, world.store, lambda name: QUEUE)
    world.accounting.restore(0, lambda: None)
    world.accounting.ended(job(world.now_s, 1.0), "FAILED")
    world.accounting.write()
    assert not world.store._groups, "before all is counted nothing is written: a kill would lose the rest"
    world.flush()
    assert world.counted() == 41


def test_jobs_that_are_forgotten_stay_counted_and_their_rows_numbers_count_anew(world: World) -> None:
    world.end(20)
    world.accounting.write()
    world.flush()
    for jobid in range(2, 21):
        world.store.remove("job_log", (jobid,))
    world.store.change("fewer are counted")
    world.flush()
    world.end(5)
    world.lose()
    world.start()
    assert world.counted() == 25


def test_use_is_counted_in_the_hours_in_which_it_was(world: World) -> None:
    world.accounting.ended(job(BEGIN_S + 1800.0, 3 * 3600.0), "COMPLETED")
    world.accounting.write()
    world.flush()
    found = {t - BEGIN_S: (jobs, core_s) for t, jobs, core_s in world.rows("SELECT t, completed, core_s FROM usage")}
    assert found == {-10_800.0: (0, 7200.0), -7200.0: (0, 14_400.0), -3600.0: (0, 14_400.0), 0.0: (1, 7200.0)}
    assert world.rows("SELECT sum(cpu_s), sum(cpu_core_s) FROM usage") == [(pytest.approx(34_560.0), 43_200.0)]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 4 * 86_400.0), st.floats(0.0, 90 * 86_400.0)), max_size=6))
def test_however_it_is_spread_the_use_is_what_it_was(
    tmp_path_factory: pytest.TempPathFactory, ended: list[tuple[float, float]]
) -> None:
    world = World(tmp_path_factory.mktemp("state"))
    world.now_s += 5 * 86_400.0
    for end_s, duration_s in ended:
        world.accounting.ended(job(BEGIN_S + end_s, duration_s), "COMPLETED")
    world.accounting.write()
    world.flush()
    total = world.report().total
    assert total[0] == len(ended)
    assert total[4] == pytest.approx(sum(4 * duration_s for _, duration_s in ended), abs=0.01)
    world.close()


def test_hours_become_days_and_days_are_removed(world: World) -> None:
    world.end(10)
    world.accounting.write()
    world.flush()
    world.now_s += 3600
    world.end(10)
    world.accounting.write()
    world.flush()
    before = world.report().total
    world.now_s += the.HOURS_AGE_MAX_S + DAY
    for _ in range(3):
        world.accounting.age(world.now_s)
        world.flush()
    assert {step for (step,) in world.rows("SELECT step FROM usage")} == {DAY}
    assert world.report().total == before
    world.accounting.age(world.now_s + the.DAYS_AGE_MAX_S)
    world.flush()
    assert world.counted() == 0


@pytest.fixture
def zone(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = request.param
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/St_Johns", "Europe/Berlin"], indirect=True)
@pytest.mark.usefixtures("zone")
def test_hours_and_days_are_those_of_the_clocks_here() -> None:
    now_s = time.mktime((2026, 3, 29, 12, 20, 0, 0, 0, -1))
    spring = whole(time.mktime((2026, 3, 28, 23, 10, 0, 0, 0, -1)), now_s, now_s)
    assert time.localtime(spring.since_s)[2:6] == (28, 23, 0, 0)
    assert time.localtime(spring.until_s)[2:6] == (29, 13, 0, 0)
    later = whole(spring.since_s + 600, now_s, now_s + 80 * DAY)
    assert [time.localtime(t)[2:6] for t in (later.since_s, later.until_s)] == [(28, 0, 0, 0), (30, 0, 0, 0)]
    assert whole(spring.since_s, spring.until_s, now_s)[:2] == spring[:2]


def test_many_ends_and_many_keys_are_written_before_the_minute_is_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(the, "UNWRITTEN_MAX", 7)
    world.end(10)
    assert world.counted() == 7
    monkeypatch.setattr(the, "KEYS_MAX", 3)
    for userid in range(3):
        world.accounting.ended(job(world.now_s, 1.0, userid=userid), "FAILED")
    world.flush()
    assert world.counted() == 11, "of 3 users and those before; 2 more jobs wait"


def test_what_users_call_their_banks_makes_no_more_rows_than_an_hour_may_have(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(the, "KEYS_HOUR_MAX", 5)
    for number in range(20):
        one = job(world.now_s, 1.0)
        one.sharing = Sharing(bank=f"bank{number}")
        world.accounting.ended(one, "COMPLETED")
    world.accounting.write()
    world.flush()
    found = {name: sums[0] for name, sums in world.report().rows}
    assert len(found) == 6
    assert found[the.OTHER] == 15


def test_sums_are_as_many_as_columns(world: World) -> None:
    assert len(world.report().total) == len(SUMS)
    assert world.report().rows == []
