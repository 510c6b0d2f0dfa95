"""Samples: one a minute, coarser with age, right whatever the clock does and whenever the instance was down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fluxsched.protocol.messages.history import SamplesResponse
from fluxsched.runtime.history import sampling as the
from fluxsched.runtime.history.columns import POINTS_MAX, SampleColumns, step_of
from fluxsched.runtime.history.samples import CORE_STATES, RESULTS, JobFlow, MachineSample, Moment
from fluxsched.runtime.history.sampling import Sampling
from fluxsched.runtime.history.stored import read_samples
from fluxsched.runtime.loop.histogram import WAITS_S

from .by_hand import BEGIN_S, ByHand


class World(ByHand):
    """An instance that is what its attributes say."""

    def __init__(self, directory: Path) -> None:
        self.busy = 0
        self.pending = 0
        self.started = 0
        super().__init__(directory)

    def start(self) -> None:
        super().start()
        self.sampling = Sampling(self.turns, self.store, self.look)
        self.sampling.start()
        self.flush()

    def look(self) -> Moment:
        waits = [0] * (len(WAITS_S) + 1)
        waits[-1] = self.started
        cores = dict.fromkeys(CORE_STATES, 0) | {"allocated": self.busy, "free": 100 - self.busy}
        queues = {"batch": (self.pending, self.busy)}
        return Moment(cores, queues, JobFlow(self.started, self.started, dict.fromkeys(RESULTS, 0), tuple(waits)))

    def killed(self) -> None:
        self.close()

    def stop(self) -> None:
        self.sampling.stop()
        self.close()

    def columns(self, step_s: int = 60) -> SamplesResponse:
        found = SampleColumns(step_s)
        rows = read_samples(self.store.read, 0.0, 1e12)
        for _ in found.add((t, MachineSample.of_row(row)) for _, t, row in rows):
            pass
        return found.response()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.store.close()


def test_each_minute_is_a_row_of_means_and_counts(world: World) -> None:
    world.busy, world.pending = 40, 6
    world.pass_s(60)
    world.busy, world.started = 60, 9
    world.pass_s(60)
    found = world.columns()
    assert [t - BEGIN_S for t in found.t] == [0, 60]
    assert found.observed == [60.0, 60.0]
    assert found.cores["allocated"] == [20.0, 50.0], "it changed evenly from one look to the next"
    assert found.cores["free"] == [80.0, 50.0]
    assert found.pending == {"batch": [3.0, 6.0]}
    assert found.started == [0, 9]
    assert found.wait_p50 == [None, WAITS_S[-1]], "of the longest waits no more is known"


def test_a_kill_loses_the_running_minute_and_a_gap_is_no_zero(world: World) -> None:
    world.pass_s(90)
    world.killed()
    world.now_s += 600
    world.start()
    world.pass_s(100)
    world.stop()
    world.now_s += 5
    world.start()
    found = world.columns()
    assert [t - BEGIN_S for t in found.t] == [0, 660, 720, 780]
    assert found.observed == [60.0, 30.0, 60.0, 10.0], "stopped in good order it loses nothing"
    runs = [(began - BEGIN_S, seen - BEGIN_S) for began, seen in world.rows("SELECT * FROM run")]
    assert runs == [(0.0, 60.0), (690.0, 790.0), (795.0, 795.0)]


def test_a_restart_within_a_minute_adds_to_its_row(world: World) -> None:
    world.pass_s(20)
    world.stop()
    world.start()
    world.pass_s(40)
    assert [(t - BEGIN_S, observed) for t, observed in world.rows("SELECT t, observed FROM sample")] == [(0, 60.0)]


@pytest.mark.parametrize(("set_s", "times", "observed"), [
    (3600.0, [0, 3660, 3720], [60.0, 60.0, 60.0]),
    (-30.0, [0, 60], [60.0, 90.0]),
    (-1800.0, [-1740, -1680, 0], [60.0, 60.0, 60.0]),
])  # fmt: skip
def test_a_clock_that_is_set_neither_loses_nor_doubles_what_was_observed(
    world: World, set_s: float, times: list[int], observed: list[float]
) -> None:
    world.pass_s(80)
    world.set_s = set_s
    world.pass_s(100)
    found = world.columns()
    assert [t - BEGIN_S for t in found.t] == times
    assert found.observed == observed
    assert len(world.rows("SELECT * FROM run")) == 2
    assert all(cores == pytest.approx(100.0) for cores in found.cores["free"])


def fill(world: World, step: int, count: int, age_s: float) -> None:
    """Samples of one length up to an age, each with one job started and all cores free."""
    until = int(world.wall_s() - age_s) // 3600 * 3600
    for at in range(count):
        sample = MachineSample(observed_s=float(step), cores=[0.0, step * 100.0, 0.0, 0.0, 0.0], started=1)
        world.store.add("sample", (step, until - (at + 1) * step, *sample.row()))
    world.flush()


def lengths(world: World) -> dict[int, int]:
    return dict(world.rows("SELECT step, count(*) FROM sample GROUP BY step"))


def check_sums(world: World, count: int) -> None:
    found = world.columns()
    assert sum(found.started) == count
    assert all(cores == pytest.approx(100.0) for cores in found.cores["free"])


def test_samples_become_coarser_with_age(world: World) -> None:
    fill(world, 60, 120, the.MINUTES_AGE_MAX_S)
    fill(world, 600, 60, the.TENS_AGE_MAX_S)
    world.pass_s(60)
    assert lengths(world) == {60: 1, 600: 12, 3600: 10}
    check_sums(world, 180)
    world.killed()
    world.now_s += the.TENS_AGE_MAX_S
    world.start()
    world.pass_s(120)
    assert lengths(world) == {60: 2, 600: 1, 3600: 12}, "the next time the last minute is old, too"
    check_sums(world, 180)
    world.killed()
    world.now_s += the.HOURS_AGE_MAX_S
    world.start()
    world.pass_s(180)
    assert sum(world.columns().started) == 0
    assert lengths(world).keys() == {60}, "hours that are too old are removed"
    assert len(world.rows("SELECT * FROM run")) == 1


def test_many_rows_become_coarser_some_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(the, "MERGED_ROWS_MAX", 25)
    fill(world, 60, 60, the.MINUTES_AGE_MAX_S)
    world.pass_s(60)
    assert lengths(world) == {60: 41, 600: 2}
    world.pass_s(120)
    assert lengths(world) == {60: 3, 600: 6}
    check_sums(world, 60)


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
def test_an_answer_has_the_shortest_steps_of_which_there_are_not_too_many(
    span_s: int, points_max: int, kept_s: int, step_s: int
) -> None:
    found = step_of(BEGIN_S, BEGIN_S + span_s, points_max, kept_s)
    assert found == step_s
    assert span_s / found <= min(points_max or 1000, POINTS_MAX)


def test_a_minute_costs_two_rows_and_one_look(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    look: Callable[[], Moment] = world.sampling._look
    monkeypatch.setattr(world.sampling, "_look", lambda: looks.append(1) or look())
    commits = world.store.commits
    world.pass_s(600)
    assert len(looks) == 10
    assert world.store.commits - commits <= 10
