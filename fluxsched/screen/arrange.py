"""Where each part of the screen is, for any size of the terminal. Pure.

Law: what does not fit is not shown: a terminal below WIDTH_MIN x HEIGHT_MIN gets a sentence, a small one the machine
and one table, a large one everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

WIDTH_MIN, HEIGHT_MIN = 40, 10
"""Below, there is room for a sentence only."""
WIDE_FROM, TALL_FROM = 150, 36
"""From this size on all panes are shown at once."""
FIGURE_LINES, STATUS_LINES, KEY_LINES = 3, 1, 1
MACHINE_LINES_MIN = 3
LinesWanted = Callable[[int, int], int]
TABLES = ("jobs", "queues", "groups", "log")


class Rect(NamedTuple):
    """A part of the terminal, in cells."""

    x: int
    y: int
    width: int
    height: int


def is_too_small(width: int, height: int) -> bool:
    """Whether there is only room for a sentence."""
    return width < WIDTH_MIN or height < HEIGHT_MIN


def places(
    width: int, height: int, *, table: str, zoomed: str | None, machine_lines: LinesWanted, queues: int, groups: int
) -> Mapping[str, Rect]:
    """The panes that are shown. `machine_lines`: how many of so many lines of a width the map uses; `queues`, `groups`:
    lines of these tables; `table`: the one that is shown where there is room for one."""
    if is_too_small(width, height):
        return {"sentence": Rect(0, 0, width, height)}
    figures = min(FIGURE_LINES, max(1, height - 9))
    top, bottom = figures, height - STATUS_LINES - KEY_LINES
    found = {
        "figures": Rect(0, 0, width, figures),
        "status": Rect(0, bottom, width, STATUS_LINES),
        "keys": Rect(0, height - KEY_LINES, width, KEY_LINES),
    }
    room = bottom - top
    if zoomed is not None:
        return {**found, zoomed: Rect(0, top, width, room)}
    if width >= WIDE_FROM and height >= TALL_FROM:
        return found | _wide(width, top, room, machine_lines, queues, groups)
    machine = machine_lines(width, max(MACHINE_LINES_MIN, room * 2 // 5))
    if room - machine < 4:
        return {**found, table: Rect(0, top, width, room)}
    return {
        **found, "machine": Rect(0, top, width, machine), table: Rect(0, top + machine, width, room - machine)
    }  # fmt: skip


def _wide(width: int, top: int, room: int, machine_lines: LinesWanted, queues: int, groups: int) -> dict[str, Rect]:
    """The machine and the jobs side by side, what is short below them."""
    short = min(max(queues, groups, 6), room // 4)
    tall = room - short - 1
    left = width // 2 - 1
    machine = machine_lines(left, tall)
    right = left + 2
    third = width // 4
    below = top + tall + 1
    found = {
        "machine": Rect(0, top, left, machine),
        "jobs": Rect(right, top, width - right, tall),
        "queues": Rect(0, below, third - 1, short),
        "groups": Rect(third + 1, below, left - third - 1, short),
        "log": Rect(right, below, width - right, short),
    }
    if tall - machine >= 6:  # a small machine: the log gets what it leaves
        found["log"] = Rect(0, top + machine + 1, left, tall - machine - 1)
        found["jobs"] = Rect(right, top, width - right, room)
    return found
