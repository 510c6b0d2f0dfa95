"""`fluxsched resource map`: the machine as a map, printed once, with a legend and counts."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from fluxsched.cli.base import Command
from fluxsched.cli.options import InstanceHandle, include_option, json_option, resolved, viewing
from fluxsched.cli.output import colourful, plural, print_json, unicode_ok
from fluxsched.cli.target_rows import known_switches
from fluxsched.core.text import printable
from fluxsched.errors import RPCError
from fluxsched.views.machine import (
    ARRANGEMENTS,
    KINDS,
    LEVELS,
    STATES,
    USED,
    LiveMachine,
    MapDrawing,
    MapRun,
    drain_text,
    draw_map,
    kind_words,
)

WIDTH = 80
"""Columns where there is no terminal."""
LINES = 24
"""Lines of the map where there is no terminal, or a lower one."""
LINES_EACH = 3
"""Lines for each part of the machine, at least: what is printed once may be higher than the terminal."""
PARTS_SHOWN = 8
"""Lines about drained and withheld parts of targets: a map is to be read at a glance."""
_USUAL = "\x1b[0m"


@click.command("map", cls=Command)
@click.option(
    "--by", type=click.Choice(ARRANGEMENTS), default="group", show_default=True, help="Arrangement of the targets."
)
@click.option(
    "--color",
    "--colour",
    "colour",
    type=click.Choice(("auto", "always", "never")),
    default="auto",
    show_default=True,
    help="Half blocks in colour, or one sign per target.",
)
@include_option
@json_option
@viewing
def machine_map(handle: InstanceHandle, by: str, colour: str, include: str | None, as_json: bool) -> None:
    """Print a map of the machine: a cell for each target, by its state and by how many of its cores are in use.

    On a large machine a cell is several targets: it shows the gravest state that an eighth of them has. The first
    line says how many.
    """  # fmt: skip
    machine = LiveMachine()
    machine.apply(_first(handle))
    if by == "switch":
        known_switches(machine.resources)
    if include is not None:
        machine = machine.only(resolved(handle, include))
    if as_json:
        print_json(machine.snapshot())
        return
    is_colourful = colour == "always" or (colour == "auto" and colourful())
    size = shutil.get_terminal_size((WIDTH, LINES)) if sys.stdout.isatty() else os.terminal_size((WIDTH, LINES))
    lines_max = max(LINES, size.lines - 4, LINES_EACH * len(machine.arranged(by)))
    drawing = draw_map(machine, by, size.columns - 1, lines_max, is_colourful=is_colourful, is_unicode=unicode_ok())
    lines = [_summary(machine, drawing), *_drawn(drawing, is_colourful), *_legend(machine, is_colourful, size.columns)]
    lines += _parts(machine)
    for line in lines:
        click.echo(line, color=is_colourful or None)


def _first(handle: InstanceHandle) -> Mapping[str, Any]:
    """Return the whole, with which the stream begins."""
    for answer in handle.stream("resource.watch"):
        return answer
    raise RPCError("resource.watch: the instance ended the stream at once")


def _summary(machine: LiveMachine, drawing: MapDrawing) -> str:
    cores, in_use = machine.resources.count("core"), machine.busy.total()
    words = [plural(len(machine.resources), "target"), plural(cores, "core")]
    words += [f"{100 * in_use / cores:.0f} % of them in use"] if cores else []
    gpus, busy_gpus = machine.resources.count("gpu"), machine.busy_gpus.total()
    words += [f"{plural(gpus, 'GPU')}, {100 * busy_gpus / gpus:.0f} % in use"] if gpus else []
    return ", ".join(words) + (f"; a cell is {drawing.together:,} targets" if drawing.together > 1 else "")


def _drawn(drawing: MapDrawing, is_colourful: bool) -> list[str]:
    return ["".join([_run(run, is_colourful) for run in line]).rstrip() for line in drawing.lines]


def _run(run: MapRun, is_colourful: bool) -> str:
    text = printable(run.text)
    if not is_colourful or not run.above:
        return text
    below = f";48;5;{kind_words(run.below)[1]}" if run.below else ""
    return f"\x1b[38;5;{kind_words(run.above)[1]}{below}m{text}{_USUAL}"


def _legend(machine: LiveMachine, is_colourful: bool, width: int) -> list[str]:
    """Each state that some targets are in, and how many; as many lines as it takes."""
    counts = machine.states.counts()
    known = [state.word for state in reversed(STATES)]
    parts: list[tuple[str, str]] = []
    for word in [*known, *sorted(counts.keys() - set(known))]:
        if word in counts:
            parts.append((_swatch(_swatches(word), is_colourful), f"{word} {counts[word]:,}"))
    lines, line, used = [], "", 0
    for swatch, text in parts:
        length = len(text) + (5 if is_colourful else 3)
        if line and used + length + 2 > width:
            lines.append(line)
            line, used = "", 0
        line, used = f"{line}{'  ' if line else ''}{swatch} {text}", used + length + 2
    return [*lines, line] if line else lines


def _parts(machine: LiveMachine) -> list[str]:
    """Return lines about drained and withheld parts of targets, whose cells show the rest; PARTS_SHOWN, and how many
    there are more.
    """
    found = [f"{row['hosts']}: {drain_text(row)}" for row in machine.drained if row["parts"]]
    more = len(found) - PARTS_SHOWN
    return found if more <= 0 else [*found[:PARTS_SHOWN], f"and {more} more: see fluxsched resource status"]


def _swatches(word: str) -> Sequence[str]:
    """Return the kinds of cells that a state is shown by: what works also by how much of it is in use."""
    if word not in USED:
        return (word if word in KINDS else "lost",)
    return LEVELS[1:] if word == "allocated" else LEVELS[:1]


def _swatch(kinds: Sequence[str], is_colourful: bool) -> str:
    if is_colourful:
        block = "█" if unicode_ok() else "#"
        return "".join([_run(MapRun(block, kind), is_colourful) for kind in kinds])
    return "".join(dict.fromkeys([kind_words(kind)[2] for kind in kinds]))
