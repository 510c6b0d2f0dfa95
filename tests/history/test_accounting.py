"""What jobs used is counted once, and kept by hour, day and account."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched import history as accounting
from fluxsched.core.idset import Idset
from fluxsched.core.jobfields import Sharing
from fluxsched.errors import LimitExceeded, Refused
from fluxsched.history import JobAccounting, ended_job
from fluxsched.jobs import manager
from fluxsched.jobs.job import GpuUsage, Job, Usage
from fluxsched.jobs.queues import JobQueue, QueueConfig
from fluxsched.services.history import (
    DAY_ROWS_MAX,
    DAYS_MAX,
    RunningUse,
    Span,
    by_days,
    days_of,
    read_accounts,
    read_days,
    response,
    running_use,
    whole,
)
from fluxsched.store.jobs import pack_events, read_ended
from fluxsched.store.schema import DAY, HOUR, SUMS
from fluxsched.store.store import QUERIES_WAITING_MAX, Queries, Store, ThreadedWriter
from fluxsched.system.clock import SystemClock, local_day
from fluxsched.system.loop import Turns
from tests.history.by_hand import BEGIN_S, ByHand

# Accounts of what jobs used: each job once, whatever is killed when, in the hours in which it was.


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

    def __init__(self, directory):
        self.last = 0
        super().__init__(directory)

    def start(self):
        super().start()
        counted = self.rows("SELECT value FROM saved WHERE key = 'counted'")
        self.members: dict[int, str] = {}
        """Group of each target."""
        self.accounting = JobAccounting(self.turns, self.store, lambda name: QUEUE, lambda rank: self.members.get(rank))
        self.accounting.restore(int(counted[0][0]) if counted else 0, lambda: None)
        self.flush()

    def end(self, count=1):
        """Jobs of 4 cores and 2 GPUs that have waited for 10 s and run for 100 s; with their records."""
        for _ in range(count):
            self.last += 1
            jobid, end_s = self.last, self.now_s
            context = {"userid": 1000 + jobid % 2, "urgency": 16, "flags": 0, "version": 1}
            gpus = {"count": 2, "held_s": 160.0, "busy_s": 40.0, "max_bytes": 7}
            usage = {"wall_s": 100.0, "user_s": 300.0, "system_s": 20.0, "max_rss_bytes": 1, "gpus": gpus}
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

    def report(self, by="bank", since_s=0.0, userid=None):
        span = whole(since_s, self.now_s + HOUR, self.now_s)
        return read_accounts(self.store.read, span, by, userid)

    def counted(self):
        """All jobs that the accounts have."""
        return int(sum(self.report().total[:4]))


def job(end_s, duration_s, *, wait_s=10.0, **values):
    found = Job(1, QUEUE, ncores=4, ngpus=2, properties="gpu\nib", sharing=Sharing(bank="optics"), **values)
    found.t_inactive, found.t_run, found.t_submit = end_s, end_s - duration_s, end_s - duration_s - wait_s
    gpus = GpuUsage(2, 1.6 * duration_s, 0.4 * duration_s, 7)
    found.usage = Usage(duration_s, 3.0 * duration_s, 0.2 * duration_s, 1, gpus=gpus)
    return found


@pytest.fixture
def world(tmp_path):
    found = World(tmp_path)
    yield found
    found.store.close()


def test_jobs_are_counted_by_what_they_are_of(world):
    world.end(3)
    world.accounting.write()
    world.flush()
    named = {by: dict(world.report(by).rows) for by in ("user", "bank", "queue", "group", "property")}
    assert {by: {name: sums[0] for name, sums in rows.items()} for by, rows in named.items()} == {
        "user": {"1001": 2, "1000": 1}, "bank": {"optics": 3}, "queue": {"batch": 3}, "group": {"fast": 3},
        "property": {"gpu": 3, "ib": 3},
    }  # fmt: skip
    assert named["bank"]["optics"][:9] == [3.0, 0, 0, 0, 1200.0, 600.0, 960.0, 1200.0, 30.0]
    assert sum(named["bank"]["optics"][9:-2]) == 3, "waits"
    assert named["bank"]["optics"][-2:] == [120.0, 480.0], "GPU-seconds that were busy, and that were sampled"
    assert world.report("property").total[0] == 3, "together they are counted once"
    assert world.report("user", userid=1000).rows == [("1000", named["user"]["1000"])]


def test_a_job_counts_for_the_group_in_which_it_ran(world):
    both = JobQueue(QueueConfig("both", group="fast", others=("slow",)))
    world.members = {3: "slow", 9: "other"}
    ran = [job(world.now_s, 100.0, ranks=Idset.parse(ranks)) for ranks in ("3-4", "9", "")]
    for one in ran:
        one.queue = both
        world.accounting.ended(one, "COMPLETED")
    world.accounting.write()
    world.flush()
    assert {name: sums[0] for name, sums in world.report("group").rows} == {"slow": 1, "fast,slow": 2}
    span = Span(int(BEGIN_S), int(BEGIN_S + 3600), BEGIN_S + 900.0)
    (*_, found) = running_use({1: ran[0]}, [1], span, "group", None, world.members.get)
    assert found is not None
    assert list(found.by_name) == ["slow"]


@pytest.mark.parametrize("writes", [0, 1, 2], ids=["nothing written", "some written", "all written"])
def test_a_kill_loses_no_job_and_counts_none_twice(world, writes):
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
    total = world.report().total
    assert total[4:9] == pytest.approx([28_000.0, 14_000.0, 22_400.0, 28_000.0, 700.0])
    assert total[-2:] == pytest.approx([2800.0, 11_200.0])


def test_what_ends_while_others_are_counted_again_is_counted_once(world):
    world.end(40)
    world.lose()
    ByHand.start(world)
    world.accounting = JobAccounting(world.turns, world.store, lambda name: QUEUE, lambda rank: None)
    world.accounting.restore(0, lambda: None)
    world.accounting.ended(job(world.now_s, 1.0), "FAILED")
    world.accounting.write()
    assert not world.store._groups, "before all is counted nothing is written: a kill would lose the rest"
    world.flush()
    assert world.counted() == 41


def test_jobs_that_are_forgotten_stay_counted_and_their_rows_numbers_count_anew(world):
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


def test_use_is_counted_in_the_hours_in_which_it_was(world):
    world.accounting.ended(job(BEGIN_S + 1800.0, 3 * 3600.0), "COMPLETED")
    world.accounting.write()
    world.flush()
    found = {t - BEGIN_S: (jobs, core_s) for t, jobs, core_s in world.rows("SELECT t, completed, core_s FROM usage")}
    assert found == {-10_800.0: (0, 7200.0), -7200.0: (0, 14_400.0), -3600.0: (0, 14_400.0), 0.0: (1, 7200.0)}
    assert world.rows("SELECT sum(cpu_s), sum(cpu_core_s) FROM usage") == [(pytest.approx(34_560.0), 43_200.0)]
    gpus = world.rows("SELECT sum(gpu_busy_s), sum(gpu_sampled_s), count(*) FILTER (WHERE gpu_busy_s > 0) FROM usage")
    assert gpus == [(pytest.approx(4320.0), pytest.approx(17_280.0), 4)]


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 4 * 86_400.0), st.floats(0.0, 90 * 86_400.0)), max_size=6))
def test_however_it_is_spread_the_use_is_what_it_was(tmp_path_factory, ended):
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


def test_hours_become_days_and_days_are_removed(world):
    world.end(10)
    world.accounting.write()
    world.flush()
    world.now_s += 3600
    world.end(10)
    world.accounting.write()
    world.flush()
    before = world.report().total
    world.now_s += accounting.HOURS_AGE_MAX_S + DAY
    for _ in range(3):
        world.accounting.age(world.now_s)
        world.flush()
    assert {step for (step,) in world.rows("SELECT step FROM usage")} == {DAY}
    assert world.report().total == before
    world.accounting.age(world.now_s + accounting.DAYS_AGE_MAX_S)
    world.flush()
    assert world.counted() == 0


@pytest.fixture
def zone(request):
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
def test_hours_and_days_are_those_of_the_clocks_here():
    now_s = time.mktime((2026, 3, 29, 12, 20, 0, 0, 0, -1))
    spring = whole(time.mktime((2026, 3, 28, 23, 10, 0, 0, 0, -1)), now_s, now_s)
    assert time.localtime(spring.since_s)[2:6] == (28, 23, 0, 0)
    assert time.localtime(spring.until_s)[2:6] == (29, 13, 0, 0)
    later = whole(spring.since_s + 600, now_s, now_s + 80 * DAY)
    assert [time.localtime(t)[2:6] for t in (later.since_s, later.until_s)] == [(28, 0, 0, 0), (30, 0, 0, 0)]
    assert whole(spring.since_s, spring.until_s, now_s)[:2] == spring[:2]


def test_many_ends_and_many_keys_are_written_before_the_minute_is_over(world, monkeypatch):
    monkeypatch.setattr(accounting, "UNWRITTEN_MAX", 7)
    world.end(10)
    assert world.counted() == 7
    monkeypatch.setattr(accounting, "KEYS_MAX", 3)
    for userid in range(3):
        world.accounting.ended(job(world.now_s, 1.0, userid=userid), "FAILED")
    world.flush()
    assert world.counted() == 11, "of 3 users and those before; 2 more jobs wait"


def test_what_users_call_their_banks_makes_no_more_rows_than_an_hour_may_have(world, monkeypatch):
    monkeypatch.setattr(accounting, "KEYS_HOUR_MAX", 5)
    for number in range(20):
        one = job(world.now_s, 1.0)
        one.sharing = Sharing(bank=f"bank{number}")
        world.accounting.ended(one, "COMPLETED")
    world.accounting.write()
    world.flush()
    found = {name: sums[0] for name, sums in world.report().rows}
    assert len(found) == 6
    assert found[accounting.OTHER] == 15


def test_sums_are_as_many_as_columns(world):
    assert len(world.report().total) == len(SUMS)
    assert world.report().rows == []


# What jobs used that grew and shrank: exact by size, in the hours in which it was, also where it is counted again.


def r_of(ranks, **properties):
    lite = [{"rank": ranks, "children": {"core": "0-1", "gpu": "0"}}]
    execution = {"R_lite": lite, "starttime": 0, "expiration": 0, "properties": properties}
    return {"version": 1, "execution": execution}


def events(ended=True):
    """2 targets of 2 cores from 1,800 s before the hour, 3 from 900 s before it, 1 from 600 s after it, for 600 s."""
    found = [
        ("submit", -1810.0, {"userid": 1000, "urgency": 16, "flags": 0, "version": 1}), ("validate", -1810.0, None),
        ("depend", -1810.0, None), ("priority", -1810.0, {"priority": 16}), ("alloc", -1800.0, None),
        ("start", -1800.0, None), ("grow", -900.0, {"R": r_of("7", ssd="7")}),
        ("shrink", 0.0, {"ranks": "0,7", "note": "for another"}), ("release", 600.0, {"ranks": "0,7", "final": False}),
    ]  # fmt: skip
    if ended:
        found += [
            ("finish", 1200.0, {"status": 0}), ("release", 1200.0, {"ranks": "all", "final": True}),
            ("free", 1200.0, None), ("clean", 1200.0, None),
        ]  # fmt: skip
    return [
        {"timestamp": BEGIN_S + at_s, "name": name} | ({} if context is None else {"context": context})
        for name, at_s, context in found
    ]


BEFORE_S = 900.0 * 4 + 900.0 * 6
"""Core-seconds before the hour."""
AFTER_S = 600.0 * 6 + 600.0 * 2


@pytest.fixture
def elastic_world(tmp_path):
    found = World(tmp_path)
    found.now_s = BEGIN_S + 1200.0
    first_r = msgspec.json.encode(r_of("0-1", gpu="0"))
    found.store.add("job_log", (1, 0, pack_events(events()[:5]), JOBSPEC, 0, 0, first_r))
    found.store.add("job_log", (1, 0, pack_events(events()[5:8]), "", 0, 0, ""))
    found.store.add("job_log", (1, int(found.now_s), pack_events(events()[8:]), "", 0, 0, ""))
    found.flush()
    yield found
    found.store.close()


def test_each_size_counts_in_its_hours(elastic_world):
    (record,) = read_ended(elastic_world.store.read, [1], pytest.fail)
    job = ended_job(record, lambda name: QUEUE)
    assert job is not None
    elastic_world.accounting.ended(job, "COMPLETED")
    elastic_world.accounting.write()
    elastic_world.flush()
    check(elastic_world)


def test_a_restart_counts_the_same(elastic_world):
    elastic_world.lose()
    elastic_world.start()
    elastic_world.flush()
    check(elastic_world)


def check(elastic_world):
    found = {t - BEGIN_S: core_s for t, core_s in elastic_world.rows("SELECT t, core_s FROM usage")}
    assert found == {-3600.0: BEFORE_S, 0.0: AFTER_S}
    assert elastic_world.rows("SELECT sum(gpu_s) FROM usage") == [((BEFORE_S + AFTER_S) / 2,)]
    assert dict(elastic_world.report("property").rows).keys() == {"gpu", "ssd"}, "it counts for what it has ever had"


def test_what_runs_still_has_used_what_it_held(elastic_world):
    job = manager.replayed(1, events(ended=False), r_of("0-1"))
    span = Span(int(BEGIN_S - 900), int(BEGIN_S + 3600), BEGIN_S + 900.0)
    steps = [*running_use({1: job}, [1], span, "user", None, {}.get)]
    found = steps[-1]
    assert isinstance(found, RunningUse)
    assert found.total == [1, 900.0 * 6 + 600.0 * 6 + 300.0 * 2, (900.0 * 6 + 600.0 * 6 + 300.0 * 2) / 2]


def test_each_day_has_what_was_used_in_it(world):
    midnight = local_day(BEGIN_S + DAY)
    world.accounting.ended(job(midnight + 600.0, 1800.0), "COMPLETED")
    world.accounting.write()
    world.flush()
    runs = job(midnight + DAY, DAY + 60.0)
    span = Span(midnight - 3600, midnight + 3600, midnight + 600.0)
    days = days_of(span)
    assert days == [local_day(midnight - 3600), midnight]
    (*_, running) = running_use({1: runs}, [1], span, "property", None, {}.get, days)
    stored = read_days(world.store.read, span, "property", None, days)
    assert stored == {"gpu": [4800.0, 2400.0], "ib": [4800.0, 2400.0]}
    assert read_days(world.store.read, span, "queue", 7, days) == {}
    accounts = read_accounts(world.store.read, span, "property", None)
    answer = by_days(response("property", span, accounts, running, 0, True), days, stored, running, {"gpu": 8})
    assert answer.days == days
    assert [(row.name, row.days, row.cores) for row in answer.rows] == [
        ("gpu", [5040.0, 4800.0], 8), ("ib", [5040.0, 4800.0], None)
    ]  # fmt: skip
    assert [sum(row.days) for row in answer.rows] == [row.core_seconds for row in answer.rows]


def test_a_report_by_days_is_limited(world):
    span = Span(0, (DAYS_MAX + 1) * DAY, BEGIN_S)
    with pytest.raises(LimitExceeded, match=rf"more than {DAYS_MAX} days.*give a later since"):
        days_of(span)
    running = RunningUse({str(at): [1.0, 1.0, 0.0] for at in range(DAY_ROWS_MAX + 1)}, [0.0] * 3, {})
    answer = response("user", span, world.report("user"), running, 0, True)
    assert len(answer.rows) == DAY_ROWS_MAX + 1
    cut = by_days(answer, [0], {}, running, {})
    assert (len(cut.rows), cut.left_out) == (DAY_ROWS_MAX, 1)


# Long queries: in another thread, some at most, and a fault in one is told to who asked.


WAIT_S = 60.0


@pytest.fixture
async def site(tmp_path):
    turns = Turns(SystemClock())
    store = Store(tmp_path / "state", turns)
    background = ThreadedWriter(turns, "queries")
    turns.start(asyncio.get_running_loop())
    yield Queries(store, background), store
    background.close()
    store.close()


async def asked(queries, query):
    found = asyncio.get_running_loop().create_future()
    queries.run(query, found.set_result, found.set_exception)
    async with asyncio.timeout(WAIT_S):
        return await found


async def test_a_query_runs_in_another_thread_and_is_answered_in_a_turn(site):
    queries, _ = site
    here = threading.get_ident()
    assert await asked(queries, lambda read: read("SELECT 7", ())) == [(7,)]
    assert await asked(queries, lambda read: threading.get_ident() == here) is False


async def test_a_fault_in_a_query_is_told_and_the_next_one_is_answered(site):
    queries, _ = site
    with pytest.raises(Refused, match="the history cannot be read: no such table"):
        await asked(queries, lambda read: read("SELECT * FROM missing", ()))
    with pytest.raises(ZeroDivisionError):
        await asked(queries, lambda read: 1 // 0)
    with pytest.raises(Refused, match="readonly"):
        await asked(queries, lambda read: read("DELETE FROM sample", ()))
    assert await asked(queries, lambda read: read("SELECT 7", ())) == [(7,)]
    assert queries.waiting == 0


async def test_more_queries_than_may_wait_are_refused(site):
    queries, _ = site
    go = threading.Event()
    answers = [asyncio.ensure_future(asked(queries, lambda read: go.wait(WAIT_S))) for _ in range(QUERIES_WAITING_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(LimitExceeded, match=str(QUERIES_WAITING_MAX)):
        queries.run(lambda read: None, lambda answer: None, lambda fault: None)
    go.set()
    assert await asyncio.gather(*answers) == [True] * QUERIES_WAITING_MAX
