"""The map: each target is in one place, and what is searched for, or under a cursor, is found again."""

from __future__ import annotations

import random

import pytest

from fluxsched.core.idset import Idset
from fluxsched.views import machine as blocks
from fluxsched.views.machine import LEVELS, LiveMachine, draw_map

CORES = 8


def machine_of(
    states: list[str], busy: dict[int, int] | None = None, groups: list[tuple[str, str]] | None = None
) -> LiveMachine:
    """A machine with a target of each of these states."""
    parts: dict[str, list[int]] = {}
    for rank, state in enumerate(states):
        parts.setdefault(state, []).append(rank)
    used: dict[str, list[int]] = {}
    for rank, cores in (busy or {}).items():
        used.setdefault(str(cores), []).append(rank)
    last = len(states) - 1
    machine = LiveMachine()
    machine.apply({
        "R": {"version": 1, "execution": {
            "R_lite": [{"rank": str(Idset.span(0, last)), "children": {"core": f"0-{CORES - 1}"}}],
            "nodelist": [f"node[0-{last}]"], "starttime": 0.0, "expiration": 0.0}},
        "states": {state: str(Idset.of(ranks)) for state, ranks in parts.items()},
        "busy": {cores: str(Idset.of(ranks)) for cores, ranks in used.items()},
        "groups": [{"name": name, "targets": ranks} for name, ranks in groups or [("default", f"0-{last}")]],
        "drains": {}, "made_up": "",
    })  # fmt: skip
    return machine


def texts(machine: LiveMachine, width: int, lines: int, **more: bool) -> list[str]:
    drawn = draw_map(machine, "group", width, lines, **{"is_colourful": False, **more})
    return ["".join(run.text for run in line) for line in drawn.lines]


def test_signs_say_what_colours_say() -> None:
    states = ["free", "allocated", "allocated", "drained", "lost", "offline", "draining", "excluded"]
    assert texts(machine_of(states, {1: CORES, 2: 1}), 16, 1) == [". A a D L o d x "]


def test_the_share_of_cores_in_use_is_a_level() -> None:
    shares = [1, 2, 3, 4, 5, 7, 8]
    drawn = draw_map(machine_of(["allocated"] * 7, dict(enumerate(shares))), "group", 40, 2, is_colourful=True)
    shown = [(run.above, len(run.text) // 4) for run in drawn.lines[0] if run.above]
    assert shown == [("used-25", 2), ("used-50", 2), ("used-75", 2), ("allocated", 1)]


def test_groups_have_titles_and_half_blocks_two_targets() -> None:
    machine = machine_of(["free"] * 10 + ["allocated"] * 30, groups=[("a[b]", "0-9"), ("batch", "10-39")])
    drawn = draw_map(machine, "group", 10, 6, is_colourful=True)
    assert [line[0].text for line in drawn.lines] == ["a[b]  10", "▀" * 10, "batch  30", "█" * 10, "▀" * 10]
    assert {run.above for run in drawn.lines[3]} == {"allocated"}


def test_names_without_room_are_counted() -> None:
    groups = [(f"leaf{at}", str(at)) for at in range(4)]
    drawn = {lines: draw_map(machine_of(["free"] * 4, groups=groups), "group", 40, lines, is_colourful=False)
             for lines in (7, 8)}  # fmt: skip
    assert [(len(drawn[lines].lines), drawn[lines].unnamed) for lines in (7, 8)] == [(1, 4), (8, 0)]


def test_one_in_trouble_among_eight_is_shown_but_not_one_among_a_hundred() -> None:
    states = ["free"] * 800
    states[3] = states[700] = "lost"
    assert "L" in texts(machine_of(states), 100, 1)[0]
    assert "L" not in texts(machine_of(states), 8, 1)[0]


@pytest.mark.parametrize("seed", range(30))
def test_each_target_has_one_place_whatever_the_size(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.choice((1, 2, 7, 100, 1000))
    cut = chance.randrange(count)
    groups = [("x", str(Idset.span(0, cut))), ("y", str(Idset.span(cut + 1, count - 1)) if cut + 1 < count else "")]
    machine = machine_of([chance.choice(("free", "drained", "allocated")) for _ in range(count)], groups=groups)
    width, lines, is_colourful = chance.randint(1, 300), chance.randint(1, 60), chance.random() < 0.5
    drawn = draw_map(machine, "group", width, lines, is_colourful=is_colourful)
    assert len(drawn.lines) <= lines
    assert all(sum(len(run.text) for run in line) <= width for line in drawn.lines)
    seen = Idset()
    for rank in range(count):
        place = drawn.place_of(rank)
        assert place is not None
        assert rank in drawn.ranks_at(*place)
        seen |= drawn.ranks_at(*place)
    assert seen == machine.resources.ranks
    assert {run.above for line in drawn.lines for run in line} <= {"", "drained", *LEVELS}


def test_the_cursor_reaches_every_line_and_no_further() -> None:
    drawn = draw_map(
        machine_of(["free"] * 40, groups=[("a", "0-9"), ("b", "10-39")]), "group", 10, 6, is_colourful=True
    )
    x, y, half = drawn.place_of(0) or (0, 0, 0)
    below = drawn.neighbour(x, y, half, 0, 1)
    assert below == 10
    assert drawn.neighbour(x, y, half, -1, 0) == 0
    place = drawn.place_of(39) or (0, 0, 0)
    assert drawn.neighbour(*place, 0, 5) is not None
    assert drawn.neighbour(*place, 1, 0) == 39


def test_a_machine_without_targets_is_an_empty_map() -> None:
    drawn = draw_map(LiveMachine(), "group", 80, 5, is_colourful=True)
    assert drawn.lines == []
    assert drawn.place_of(0) is None
    assert not drawn.ranks_at(3, 3)


def test_more_targets_than_the_limit_of_a_place_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "TOGETHER_MAX", 8)
    drawn = draw_map(machine_of(["free"] * 100), "group", 4, 1, is_colourful=False)
    assert drawn.together < 8
    assert len(drawn.lines) == 1
