"""Samples of an instance and intervals of its targets."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched import history as samples_module
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.history import (
    CORE_STATES,
    INTERVALS_SHOWN_MAX,
    INTERVALS_USUAL,
    RESULTS,
    RUNS_SHOWN_MAX,
    JobFlow,
    MachineSample,
    Moment,
    Sampling,
    StateIntervals,
    conditions,
    read_intervals,
    read_runs,
    read_samples,
)
from fluxsched.scheduler.session import SAVE_EVERY_S
from fluxsched.services.history import POINTS_MAX, SampleColumns, cores_by_state, step_of
from fluxsched.services.scheduling import KIND, SET_ASIDE
from fluxsched.store.integrity import checksummed
from fluxsched.store.schema import WAITS
from fluxsched.system.loop import LONG_S, WAITS_S, Histogram, quantile
from tests.history.by_hand import BEGIN_S, ByHand
from tests.site import alive

# Samples are sums: they can be put together in any order, and waits by ranges give quantiles.


few = st.integers(0, 50)
seconds = few.map(float)
samples = st.builds(
    MachineSample,
    seconds,
    st.lists(seconds, min_size=5, max_size=5),
    st.dictionaries(st.sampled_from(["", "batch", "debug"]), st.lists(seconds, min_size=2, max_size=2)),
    few,
    few,
    st.lists(few, min_size=4, max_size=4),
    st.dictionaries(st.integers(0, len(WAITS_S)), few),
)


def copy(sample):
    return MachineSample.of_row(sample.row())


def total(*parts):
    found = MachineSample()
    for part in parts:
        found.add(part)
    return found


@settings(max_examples=50)
@given(samples, samples, samples)
def test_the_order_in_which_samples_are_put_together_is_of_no_matter(one, two, three):
    assert copy(one) == one
    assert total(one, total(two, three)) == total(total(three, one), two)


@settings(max_examples=50)
@given(st.lists(st.floats(0.0, 1e7)))
def test_monitoring_and_history_count_the_same_waits(waits):
    fine, coarse = Histogram(WAITS_S), Histogram(LONG_S)
    for wait in waits:
        fine.observe(wait)
        coarse.observe(wait)
    assert fine.coarser(LONG_S) == coarse.value()
    assert len(fine.counts()) == WAITS


@settings(max_examples=50)
@given(st.lists(st.floats(0.0101, WAITS_S[-1]), min_size=1), st.sampled_from([0.5, 0.95]))
def test_a_quantile_is_in_the_range_of_the_true_one(waits, part):
    fine = Histogram(WAITS_S)
    for wait in waits:
        fine.observe(wait)
    true = sorted(waits)[max(0, -int(-part * len(waits) // 1) - 1)]
    found = quantile(WAITS_S, fine.counts(), part)
    assert found is not None
    assert true / 1.67 <= found <= true * 1.67


def test_ranges_are_narrow_and_those_of_monitoring_are_among_them():
    assert set(LONG_S) <= set(WAITS_S)
    assert all(high <= low * 1.67 for low, high in pairwise(WAITS_S))
    assert quantile(WAITS_S, [0] * len(WAITS_S), 0.5) is None


def test_each_core_is_in_one_state_and_those_that_jobs_hold_are_allocated():
    rlite = [{"rank": "0-9", "children": {"core": "0-7"}}]
    resources = ResourceSet.parse(
        {"version": 1, "execution": {"R_lite": rlite, "nodelist": ["n[0-9]"], "starttime": 0, "expiration": 0}}
    )
    names = {"drained": "1", "draining": "2", "offline": "3", "torpid": "4", "lost": "5", "excluded": "6", "free": "0"}
    states = {name: Idset.parse(ranks) for name, ranks in names.items()} | {"allocated": Idset.parse("7-9")}
    found = cores_by_state(resources, states, {2: 0b11, 4: 0b1, 7: 0xFF})
    assert found == {"allocated": 11, "drained": 8 + 6, "down": 8 + 7 + 8, "excluded": 8, "free": 80 - 11 - 14 - 23 - 8}
    assert set(found) == set(CORE_STATES)


# Samples: one a minute, coarser with age, right whatever the clock does and whenever the instance was down.


class World(ByHand):
    """An instance that is what its attributes say."""

    def __init__(self, directory):
        self.busy = 0
        self.pending = 0
        self.started = 0
        super().__init__(directory)

    def start(self):
        super().start()
        self.sampling = Sampling(self.turns, self.store, self.look)
        self.sampling.start()
        self.flush()

    def look(self):
        waits = [0] * (len(WAITS_S) + 1)
        waits[-1] = self.started
        cores = dict.fromkeys(CORE_STATES, 0) | {"allocated": self.busy, "free": 100 - self.busy}
        queues = {"batch": (self.pending, self.busy)}
        return Moment(cores, queues, JobFlow(self.started, self.started, dict.fromkeys(RESULTS, 0), tuple(waits)))

    def killed(self):
        self.close()

    def stop(self):
        self.sampling.stop()
        self.close()

    def columns(self, step_s=60):
        found = SampleColumns(step_s)
        rows = read_samples(self.store.read, 0.0, 1e12)
        for _ in found.add((t, MachineSample.of_row(row)) for _, t, row in rows):
            pass
        return found.response()


@pytest.fixture
def sampled(tmp_path):
    found = World(tmp_path)
    yield found
    found.store.close()


def test_each_minute_is_a_row_of_means_and_counts(sampled):
    sampled.busy, sampled.pending = 40, 6
    sampled.pass_s(60)
    sampled.busy, sampled.started = 60, 9
    sampled.pass_s(60)
    found = sampled.columns()
    assert [t - BEGIN_S for t in found.t] == [0, 60]
    assert found.observed == [60.0, 60.0]
    assert found.cores["allocated"] == [20.0, 50.0], "it changed evenly from one look to the next"
    assert found.cores["free"] == [80.0, 50.0]
    assert found.pending == {"batch": [3.0, 6.0]}
    assert found.started == [0, 9]
    assert found.wait_p50 == [None, WAITS_S[-1]], "of the longest waits no more is known"


def test_a_kill_loses_the_running_minute_and_a_gap_is_no_zero(sampled):
    sampled.pass_s(90)
    sampled.killed()
    sampled.now_s += 600
    sampled.start()
    sampled.pass_s(100)
    sampled.stop()
    sampled.now_s += 5
    sampled.start()
    found = sampled.columns()
    assert [t - BEGIN_S for t in found.t] == [0, 660, 720, 780]
    assert found.observed == [60.0, 30.0, 60.0, 10.0], "stopped in good order it loses nothing"
    runs = [(began - BEGIN_S, seen - BEGIN_S) for began, seen in sampled.rows("SELECT began, seen FROM run")]
    assert runs == [(0.0, 60.0), (690.0, 790.0), (795.0, 795.0)]


def test_a_restart_within_a_minute_adds_to_its_row(sampled):
    sampled.pass_s(20)
    sampled.stop()
    sampled.start()
    sampled.pass_s(40)
    assert [(t - BEGIN_S, observed) for t, observed in sampled.rows("SELECT t, observed FROM sample")] == [(0, 60.0)]


@pytest.mark.parametrize(("set_s", "times", "observed"), [
    (3600.0, [0, 3660, 3720], [60.0, 60.0, 60.0]),
    (-30.0, [0, 60], [60.0, 90.0]),
    (-1800.0, [-1740, -1680, 0], [60.0, 60.0, 60.0]),
])  # fmt: skip
def test_a_clock_that_is_set_neither_loses_nor_doubles_what_was_observed(sampled, set_s, times, observed):
    sampled.pass_s(80)
    sampled.set_s = set_s
    sampled.pass_s(100)
    found = sampled.columns()
    assert [t - BEGIN_S for t in found.t] == times
    assert found.observed == observed
    assert len(sampled.rows("SELECT * FROM run")) == 2
    assert all(cores == pytest.approx(100.0) for cores in found.cores["free"])


def fill(sampled, step, count, age_s):
    """Samples of one length up to an age, each with one job started and all cores free."""
    until = int(sampled.wall_s() - age_s) // 3600 * 3600
    for at in range(count):
        sample = MachineSample(observed_s=float(step), cores=[0.0, step * 100.0, 0.0, 0.0, 0.0], started=1)
        sampled.store.add("sample", (step, until - (at + 1) * step, *sample.row()))
    sampled.flush()


def lengths(sampled):
    return dict(sampled.rows("SELECT step, count(*) FROM sample GROUP BY step"))


def check_sums(sampled, count):
    found = sampled.columns()
    assert sum(found.started) == count
    assert all(cores == pytest.approx(100.0) for cores in found.cores["free"])


def test_samples_become_coarser_with_age(sampled):
    fill(sampled, 60, 120, samples_module.MINUTES_AGE_MAX_S)
    fill(sampled, 600, 60, samples_module.TENS_AGE_MAX_S)
    sampled.pass_s(60)
    assert lengths(sampled) == {60: 1, 600: 12, 3600: 10}
    check_sums(sampled, 180)
    sampled.killed()
    sampled.now_s += samples_module.TENS_AGE_MAX_S
    sampled.start()
    sampled.pass_s(120)
    assert lengths(sampled) == {60: 2, 600: 1, 3600: 12}, "the next time the last minute is old, too"
    check_sums(sampled, 180)
    sampled.killed()
    sampled.now_s += samples_module.SAMPLE_HOURS_AGE_MAX_S
    sampled.start()
    sampled.pass_s(180)
    assert sum(sampled.columns().started) == 0
    assert lengths(sampled).keys() == {60}, "hours that are too old are removed"
    assert len(sampled.rows("SELECT * FROM run")) == 1


def test_many_rows_become_coarser_some_at_a_time(sampled, monkeypatch):
    monkeypatch.setattr(samples_module, "MERGED_ROWS_MAX", 25)
    fill(sampled, 60, 60, samples_module.MINUTES_AGE_MAX_S)
    sampled.pass_s(60)
    assert lengths(sampled) == {60: 41, 600: 2}
    sampled.pass_s(120)
    assert lengths(sampled) == {60: 3, 600: 6}
    check_sums(sampled, 60)


@pytest.mark.parametrize(("span_s", "points_max", "kept_s", "step_s"), [
    (3600, 0, 60, 60),
    (86_400, 0, 60, 120),
    (86_400, 1440, 60, 60),
    (86_400, 1440, 600, 600),
    (30 * 86_400, 1000, 600, 3600),
    (731 * 86_400, 731, 3600, 86_400),
    (731 * 86_400, 1, 3600, 105 * 604_800),
    (60 * (POINTS_MAX + 1), 10**9, 60, 120),
])  # fmt: skip
def test_an_answer_has_the_shortest_steps_of_which_there_are_not_too_many(span_s, points_max, kept_s, step_s):
    found = step_of(BEGIN_S, BEGIN_S + span_s, points_max, kept_s)
    assert found == step_s
    assert span_s / found <= min(points_max or 1000, POINTS_MAX)


def test_a_minute_costs_two_rows_and_one_look(sampled, monkeypatch):
    looks = []
    look = sampled.sampling._look
    monkeypatch.setattr(sampled.sampling, "_look", lambda: looks.append(1) or look())
    commits = sampled.store.commits
    sampled.pass_s(600)
    assert len(looks) == 10
    assert sampled.store.commits - commits <= 10


# Intervals of states: rows of targets that changed together, whatever is killed, and no more than a limit.


class Line(NamedTuple):
    reason: str | None
    state: str


class TargetWorld(ByHand):
    """Targets that are in the states that `found` says."""

    def __init__(self, directory):
        self.found = {}
        super().__init__(directory)

    def start(self):
        super().start()
        self.intervals = StateIntervals(self.turns, self.store, lambda: self.found)
        self.intervals.start()
        self.store.add("run", (self.now_s, self.now_s))
        self.flush()

    def now(self, **found):
        """From now on targets are in these states; look."""
        self.found = {(state, "fan" if state == "drained" else ""): Idset.parse(ids) for state, ids in found.items()}
        self.intervals.note_change()
        self.pass_s(60.0)

    def shown(self, targets=None, max_entries=0):
        wanted = None if targets is None else Idset.parse(targets)
        rows, self.left_out = read_intervals(self.store.read, 0.0, 1e12, wanted, max_entries)
        return [
            (ids, state, began - BEGIN_S, None if ended is None else ended - BEGIN_S, note)
            for ids, state, began, ended, note in rows
        ]


@pytest.fixture
def target_world(tmp_path):
    found = TargetWorld(tmp_path)
    yield found
    found.store.close()


def test_targets_that_change_together_are_a_row_until_they_change_apart(target_world):
    target_world.now(offline="0-99", drained="100")
    target_world.now(offline="4-99", drained="2,100")
    target_world.now(offline="50-99", drained="2")
    assert target_world.shown() == [
        ("50-99", "offline", 0.0, None, ""),
        ("100", "drained", 0.0, 120.0, "fan"),
        ("0-3", "offline", 0.0, 60.0, ""),
        ("4-49", "offline", 0.0, 120.0, ""),
        ("2", "drained", 60.0, None, "fan"),
    ]
    assert target_world.shown("2-3") == [("2-3", "offline", 0.0, 60.0, ""), ("2", "drained", 60.0, None, "fan")]


def test_only_changes_are_written(target_world):
    target_world.now(drained="7")
    rows = target_world.rows("SELECT * FROM interval")
    commits = target_world.store.commits
    target_world.now(drained="7")
    assert target_world.rows("SELECT * FROM interval") == rows
    assert target_world.store.commits == commits


def test_what_was_so_when_the_instance_was_killed_goes_on_or_ended_when_it_was_seen_last(target_world):
    target_world.now(drained="1-2", torpid="5")
    target_world.store.add("run", (BEGIN_S, BEGIN_S + 45.0))
    target_world.flush()
    target_world.lose()
    target_world.now_s += 3600.0
    target_world.found = {("drained", "fan"): Idset.parse("2-3")}
    target_world.start()
    assert target_world.shown() == [
        ("2", "drained", 0.0, None, "fan"),
        ("5", "torpid", 0.0, 45.0, ""),
        ("1", "drained", 0.0, 45.0, "fan"),
        ("3", "drained", 3660.0, None, "fan"),
    ]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["offline", "drained", "lost"]), st.integers(0, 255)), max_size=5))
def test_at_each_moment_the_rows_say_what_was_so(tmp_path_factory, steps):
    target_world, told = TargetWorld(tmp_path_factory.mktemp("state")), []
    for step in steps:
        left, found = 255, {}
        for state, mask in step.items():
            found[state] = str(Idset(mask & left))
            left &= ~mask
        target_world.now(**found)
        told.append({state: ids for state, ids in found.items() if ids})
    for number, found in enumerate(told):
        at_s, seen = number * 60.0 + 30.0, dict[str, Idset]()
        for ids, state, began, ended, _ in target_world.shown():
            if began <= at_s and (ended is None or at_s < ended):
                assert seen.get(state, EMPTY).isdisjoint(Idset.parse(ids)), "a target is in one row"
                seen[state] = seen.get(state, EMPTY) | Idset.parse(ids)
        assert {state: str(ids) for state, ids in seen.items()} == found
    target_world.close()


def test_old_rows_and_more_than_there_may_be_are_removed(target_world, monkeypatch):
    for number in range(6):
        target_world.now(drained=str(number))
    monkeypatch.setattr(samples_module, "INTERVALS_MAX", 4)
    target_world.intervals.age(target_world.now_s)
    target_world.flush()
    assert [ids for ids, *_ in target_world.shown()] == ["2", "3", "4", "5"]
    target_world.intervals.age(target_world.now_s + samples_module.INTERVALS_AGE_MAX_S)
    target_world.flush()
    assert [ids for ids, *_ in target_world.shown()] == ["5"], "what lasts is kept, however long"


def test_an_answer_has_the_latest(target_world):
    for number in range(INTERVALS_SHOWN_MAX + 5):
        target_world.store.add("interval", (number + 1, "3", "drained", "", float(number), number + 0.5))
        if number <= RUNS_SHOWN_MAX:
            target_world.store.add("run", (float(number), number + 0.5))
    target_world.flush()
    assert len(target_world.shown()) == INTERVALS_USUAL
    assert target_world.left_out == INTERVALS_SHOWN_MAX + 5 - INTERVALS_USUAL
    assert len(target_world.shown(max_entries=10**9)) == INTERVALS_SHOWN_MAX
    assert len(target_world.shown("3", max_entries=7)) == 7
    assert target_world.shown("4") == []
    assert len(read_runs(target_world.store.read, 0.0, 1e12)) == RUNS_SHOWN_MAX
    assert read_runs(target_world.store.read, 3.2, 4.2) == [(3.2, 3.5), (4.0, 4.2)]


def test_drains_are_kept_by_reason_and_what_may_be_used_is_not():
    names = ("lost", "excluded", "offline", "draining", "drained", "torpid", "leaving", "allocated", "free")
    states = dict.fromkeys(names, EMPTY) | {"drained": Idset.parse("1-3"), "free": Idset.parse("4-9")}
    drains = [(Idset.parse("1"), Line("fan", "drained")), (Idset.parse("2,8"), Line("disk", "drained")),
              (Idset.parse("3"), Line(None, "drained"))]  # fmt: skip
    found = {key: str(ids) for key, ids in conditions(states, drains).items() if ids}
    assert found == {("drained", ""): "3", ("drained", "fan"): "1", ("drained", "disk"): "2"}


# The history of accounts in an instance: through a reload, a clean end, `kill -9` of the scheduler and of all.


FAIR = ("--fake", "4x2", "--scheduler", "fair:half-life=600")
PATH = ("physics", "root")
LOOK_S = 0.1
"""How often the file is looked at for what comes within SAVE_EVERY_S; each look opens it."""


def row(statedir, kind=KIND):
    """What is kept on disk, decoded; None for nothing."""
    connection = sqlite3.connect(f"file:{statedir / 'state.sqlite'}?mode=ro", uri=True)
    found = connection.execute("SELECT value FROM saved WHERE kind = ? AND key = 'default'", (kind,)).fetchone()
    connection.close()
    return None if found is None else json.loads(found[0])


def kept(statedir):
    """The history on disk; of no accounts if there is none."""
    text = row(statedir)
    return {"saved": 0.0, "accounts": []} if text is None else json.loads(text)


def levels(statedir):
    """Of the account that the jobs of these tests are charged to."""
    user = os.environ.get("USER", "root")
    found = {tuple(path): (level, firm) for path, level, firm in kept(statedir)["accounts"]}
    return found.get(("physics", user)) or found.get(PATH) or (0.0, 0.0)


@pytest.fixture
def site(world, timed):
    """site(): an instance with accounts as a process; its peer, its process id and its state directory."""

    async def begin(*options):
        statedir = world.directory / "state"
        uri, pid = await world.daemon(*FAIR, "--statedir", str(statedir), *options)
        return world.second(uri), pid, statedir

    return begin


async def submit(peer, timed, run="60s", cores=8):
    """A job of physics, on all cores unless said otherwise."""
    jobspec = timed(run, ntasks=cores).to_json()
    jobspec["attributes"]["system"]["bank"] = "physics"
    return (await peer.ok("job-manager.submit", {"jobspec": jobspec}))["id"]


async def running(peer, jobid, eventually):
    async def runs():
        jobs = (await peer.ok("job-manager.list", {}))["jobs"]
        return any(job["id"] == jobid and job["state"] == "RUN" for job in jobs)

    async with asyncio.timeout(60):
        while not await runs():
            await asyncio.sleep(LOOK_S)


async def test_a_reload_and_a_clean_end_keep_history(site, timed, eventually):
    peer, pid, statedir = await site()
    jobid = await submit(peer, timed)
    await running(peer, jobid, eventually)
    assert row(statedir) is None
    await peer.ok("module.reload", {"name": "sched-fair"})
    saved, (level, firm) = kept(statedir)["saved"], levels(statedir)
    assert (level > 0, firm) == (True, 8.0)
    await peer.ok("module.reload", {"name": "sched-fair"})
    assert level < levels(statedir)[0], "8 cores are held on"
    await peer.ok("instance.stop")
    await eventually(lambda: not alive(pid))
    assert kept(statedir)["saved"] > saved
    before = levels(statedir)
    peer, _, _ = await site()
    last = await submit(peer, timed, "10ms", cores=1)
    assert (await peer.ok("job-manager.wait", {"id": last}))["success"] is True
    await peer.ok("module.reload", {"name": "sched-fair"})
    assert before[1] * 0.9 < levels(statedir)[1] < before[1], "it has fallen a little while the instance was down"


@pytest.mark.slow
async def test_kill_9_of_all_loses_ten_seconds_of_history_at_most(site, timed, eventually):
    peer, pid, statedir = await site()
    jobid = await submit(peer, timed)
    await running(peer, jobid, eventually)
    async with asyncio.timeout(SAVE_EVERY_S + 60):
        while not kept(statedir)["accounts"]:
            await asyncio.sleep(LOOK_S)
    os.kill(pid, signal.SIGKILL)
    before = levels(statedir)
    assert before[1] == 8.0
    peer, _, _ = await site()
    await peer.ok("job-manager.cancel", {"id": jobid})
    assert (await peer.ok("job-manager.wait", {"id": jobid}))["success"] is False
    await submit(peer, timed, "10ms")
    await peer.ok("module.reload", {"name": "sched-fair"})
    assert 0.9 * before[0] < levels(statedir)[0]


@pytest.mark.slow
async def test_kill_9_of_the_scheduler_never_loses_usage(site, timed, eventually):
    peer, _, statedir = await site()
    jobid = await submit(peer, timed)
    await running(peer, jobid, eventually)
    first = await module(peer)
    os.kill(first["pid"], signal.SIGKILL)
    while (await module(peer))["pid"] == first["pid"] or (await module(peer))["status"] != 1:
        pass
    async with asyncio.timeout(60):  # the next one may be reloaded before it has heard of the job
        await peer.ok("module.reload", {"name": "sched-fair"})
        while levels(statedir)[1] != 8.0:
            await peer.ok("module.reload", {"name": "sched-fair"})


async def test_damaged_history_is_said_and_set_aside_and_the_scheduler_serves(site, timed, eventually, world):
    peer, pid, statedir = await site()
    await peer.ok("instance.stop")
    await eventually(lambda: not alive(pid))
    connection = sqlite3.connect(statedir / "state.sqlite")
    changed = checksummed("saved", [(KIND, "default", b'"{\\"version\\": 7}"')])
    connection.execute("INSERT OR REPLACE INTO saved VALUES (?, ?, ?, ?)", changed)
    connection.commit()
    connection.close()
    peer, _, statedir = await site()
    await eventually(lambda: row(statedir, SET_ASIDE) == '{"version": 7}')
    jobid = await submit(peer, timed, "10ms")
    assert (await peer.ok("job-manager.wait", {"id": jobid}))["success"] is True
    assert json.loads(row(statedir))["version"] == 1


async def module(peer):
    (found,) = [one for one in (await peer.ok("module.list"))["mods"] if one["name"] == "sched-fair"]
    return found
