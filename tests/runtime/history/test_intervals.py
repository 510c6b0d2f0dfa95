"""Intervals of states: rows of targets that changed together, whatever is killed, and no more than a limit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.runtime.history import intervals as the
from fluxsched.runtime.history.intervals import StateIntervals, conditions
from fluxsched.runtime.history.stored import (
    INTERVALS_SHOWN_MAX,
    INTERVALS_USUAL,
    RUNS_SHOWN_MAX,
    read_intervals,
    read_runs,
)

from .by_hand import BEGIN_S, ByHand

Shown = tuple[str, str, float, float | None, str]


class Line(NamedTuple):
    reason: str | None
    state: str


class World(ByHand):
    """Targets that are in the states that `found` says."""

    def __init__(self, directory: Path) -> None:
        self.found: dict[tuple[str, str], Idset] = {}
        super().__init__(directory)

    def start(self) -> None:
        super().start()
        self.intervals = StateIntervals(self.turns, self.store, lambda: self.found)
        self.intervals.start()
        self.store.add("run", (self.now_s, self.now_s))
        self.flush()

    def now(self, **found: str) -> None:
        """From now on targets are in these states; look."""
        self.found = {(state, "fan" if state == "drained" else ""): Idset.parse(ids) for state, ids in found.items()}
        self.intervals.note_change()
        self.pass_s(60.0)

    def shown(self, targets: str | None = None, max_entries: int = 0) -> list[Shown]:
        wanted = None if targets is None else Idset.parse(targets)
        rows, self.left_out = read_intervals(self.store.read, 0.0, 1e12, wanted, max_entries)
        return [
            (ids, state, began - BEGIN_S, None if ended is None else ended - BEGIN_S, note)
            for ids, state, began, ended, note in rows
        ]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.store.close()


def test_targets_that_change_together_are_a_row_until_they_change_apart(world: World) -> None:
    world.now(offline="0-99", drained="100")
    world.now(offline="4-99", drained="2,100")
    world.now(offline="50-99", drained="2")
    assert world.shown() == [
        ("50-99", "offline", 0.0, None, ""),
        ("100", "drained", 0.0, 120.0, "fan"),
        ("0-3", "offline", 0.0, 60.0, ""),
        ("4-49", "offline", 0.0, 120.0, ""),
        ("2", "drained", 60.0, None, "fan"),
    ]
    assert world.shown("2-3") == [("2-3", "offline", 0.0, 60.0, ""), ("2", "drained", 60.0, None, "fan")]


def test_only_changes_are_written(world: World) -> None:
    world.now(drained="7")
    rows = world.rows("SELECT * FROM interval")
    commits = world.store.commits
    world.now(drained="7")
    assert world.rows("SELECT * FROM interval") == rows
    assert world.store.commits == commits


def test_what_was_so_when_the_instance_was_killed_goes_on_or_ended_when_it_was_seen_last(world: World) -> None:
    world.now(drained="1-2", torpid="5")
    world.store.add("run", (BEGIN_S, BEGIN_S + 45.0))
    world.flush()
    world.lose()
    world.now_s += 3600.0
    world.found = {("drained", "fan"): Idset.parse("2-3")}
    world.start()
    assert world.shown() == [
        ("2", "drained", 0.0, None, "fan"),
        ("5", "torpid", 0.0, 45.0, ""),
        ("1", "drained", 0.0, 45.0, "fan"),
        ("3", "drained", 3660.0, None, "fan"),
    ]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["offline", "drained", "lost"]), st.integers(0, 255)), max_size=5))
def test_at_each_moment_the_rows_say_what_was_so(
    tmp_path_factory: pytest.TempPathFactory, steps: list[dict[str, int]]
) -> None:
    world, told = World(tmp_path_factory.mktemp("state")), []
    for step in steps:
        left, found = 255, {}
        for state, mask in step.items():
            found[state] = str(Idset(mask & left))
            left &= ~mask
        world.now(**found)
        told.append({state: ids for state, ids in found.items() if ids})
    for number, found in enumerate(told):
        at_s, seen = number * 60.0 + 30.0, dict[str, Idset]()
        for ids, state, began, ended, _ in world.shown():
            if began <= at_s and (ended is None or at_s < ended):
                assert seen.get(state, EMPTY).isdisjoint(Idset.parse(ids)), "a target is in one row"
                seen[state] = seen.get(state, EMPTY) | Idset.parse(ids)
        assert {state: str(ids) for state, ids in seen.items()} == found
    world.close()


def test_old_rows_and_more_than_there_may_be_are_removed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        world.now(drained=str(number))
    monkeypatch.setattr(the, "INTERVALS_MAX", 4)
    world.intervals.age(world.now_s)
    world.flush()
    assert [ids for ids, *_ in world.shown()] == ["2", "3", "4", "5"]
    world.intervals.age(world.now_s + the.INTERVALS_AGE_MAX_S)
    world.flush()
    assert [ids for ids, *_ in world.shown()] == ["5"], "what lasts is kept, however long"


def test_an_answer_has_the_latest(world: World) -> None:
    for number in range(INTERVALS_SHOWN_MAX + 5):
        world.store.add("interval", (number + 1, "3", "drained", "", float(number), number + 0.5))
        if number <= RUNS_SHOWN_MAX:
            world.store.add("run", (float(number), number + 0.5))
    world.flush()
    assert len(world.shown()) == INTERVALS_USUAL
    assert world.left_out == INTERVALS_SHOWN_MAX + 5 - INTERVALS_USUAL
    assert len(world.shown(max_entries=10**9)) == INTERVALS_SHOWN_MAX
    assert len(world.shown("3", max_entries=7)) == 7
    assert world.shown("4") == []
    assert len(read_runs(world.store.read, 0.0, 1e12)) == RUNS_SHOWN_MAX
    assert read_runs(world.store.read, 3.2, 4.2) == [(3.2, 3.5), (4.0, 4.2)]


def test_drains_are_kept_by_reason_and_what_may_be_used_is_not() -> None:
    names = ("lost", "excluded", "offline", "draining", "drained", "torpid", "leaving", "allocated", "free")
    states = dict.fromkeys(names, EMPTY) | {"drained": Idset.parse("1-3"), "free": Idset.parse("4-9")}
    drains = [(Idset.parse("1"), Line("fan", "drained")), (Idset.parse("2,8"), Line("disk", "drained")),
              (Idset.parse("3"), Line(None, "drained"))]  # fmt: skip
    found = {key: str(ids) for key, ids in conditions(states, drains).items() if ids}
    assert found == {("drained", ""): "3", ("drained", "fan"): "1", ("drained", "disk"): "2"}
