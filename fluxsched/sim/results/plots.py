"""Plots of policies on one trace: utilisation and queue over time, wait against size, CDFs, Gantt charts.

Law: drawn of the table of jobs alone, with matplotlib, which is an extra (`fluxsched[plots]`) and is imported only here
and only when something is drawn. The same results give the same file.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fluxsched.core.idset import Idset
from fluxsched.errors import InvalidValue
from fluxsched.sim.results.result import Result
from fluxsched.sim.results.step_functions import averages, busy_steps, queue_steps, sampled
from fluxsched.sim.traces.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")

STEPS_DRAWN_MAX = 4000
"""Points of a line: more than a page has pixels."""

DOTS_DRAWN_MAX = 20_000
"""Jobs in a scatter plot, evenly picked."""

GANTTS_MAX = 4
"""Charts of jobs over targets: one a policy, for the first policies."""

PARTS_DRAWN = 400
"""Parts of the time over which cores in use are averaged: they change with every job, and a page would be all ink."""

DOTS_SMALL_FROM = 1000
"""Above so many jobs dots are small and pale, so that one does not hide another; fewer are to be seen at all."""

NO_WAIT_MARGIN = 0.3
"""Below the line of those who have not waited, so that their dots are whole."""

LONGEST_MARGIN = 2.0
"""The end of that scale, in longest waits, for the same reason."""

ACCOUNTS_DRAWN_MAX = 5
"""Accounts in a panel: lines of more are not told apart."""

PANEL_IN, ROW_IN = 1.7, 3.2
"""Heights in inches: of a panel that has others like it below, and of any other row."""

SIZES_A_ROW = 4
"""Panels of wait against size side by side."""

DASHES = ("-", "--", ":", "-.")

USABLE: dict[str, Any] = {"color": "black", "linewidth": 0.8, "linestyle": ":"}
"""The line of what can be used."""

HOUR_S, DAY_S = 3600.0, 86400.0

HOURS_MAX = 72
"""A longer time is drawn in days."""


DrawOne = Callable[["Axes", Result, int, "Scale"], None]
"""Draws one policy, the one at a place in the order of colours, to these axes."""


class Scale(NamedTuple):
    """All axes of time: hours or days, up to the end of the longest schedule."""

    name: str
    unit_s: float
    last_s: float

    @classmethod
    def of(cls, results: Sequence[Result]) -> Scale:
        """The unit that fits the longest schedule."""
        last_s = max([result.end_s for result in results])
        return cls("hours", HOUR_S, last_s) if last_s <= HOURS_MAX * HOUR_S else cls("days", DAY_S, last_s)

    def apply(self, axes: Axes) -> None:
        """Make this the scale of these axes."""
        axes.set(xlabel=self.name, xlim=(0.0, self.last_s / self.unit_s or 1.0))


def plot(trace: Trace, results: Sequence[Result], path: Path) -> None:
    """Draw to a file. Raises like `check_path`."""
    check_path(path)
    figure = draw(trace, results)
    if path.suffix == ".svg":
        path.write_text(_svg(figure), encoding="utf-8")
    else:
        figure.savefig(path, dpi=110, metadata={"Software": None})


def check_path(path: Path) -> None:
    """Raises InvalidValue for a name that is no plot's, and where matplotlib is not installed."""
    if path.suffix not in FORMATS:
        page = "; --html writes a page" if path.suffix == ".html" else ""
        raise InvalidValue(f"plot {path}: the name should end in {' or '.join(FORMATS)}{page}")
    if find_spec("matplotlib") is None:
        raise InvalidValue("plots need matplotlib: pip install 'fluxsched[plots]'")


def draw(trace: Trace, results: Sequence[Result]) -> Figure:
    """The figure, for who wants to go on with it."""
    from matplotlib.figure import Figure

    charted = [result for result in results[:GANTTS_MAX] if result.jobs.ranks is not None]
    scale, columns = Scale.of(results), min(len(results), SIZES_A_ROW)
    shared = [result for result in results if result.accounts]
    panels, others = 2 * len(results) + len(shared), 1 + -(-len(results) // columns) + len(charted)
    heights = [PANEL_IN] * panels + [ROW_IN] * others
    figure = Figure(figsize=(13, sum(heights)), layout="constrained")
    figure.suptitle(trace.name)
    grid = figure.add_gridspec(len(heights), 2 * columns, height_ratios=heights)
    rows = iter(range(len(heights)))
    _panels(figure, [grid[next(rows), :] for _ in results], results, scale, _utilisation)
    _panels(figure, [grid[next(rows), :] for _ in results], results, scale, _queue)
    if shared:
        _panels(figure, [grid[next(rows), :] for _ in shared], shared, scale, _accounts)
    row = next(rows)
    waits = {each.title: each.wait for each in results}
    _cdf(figure.add_subplot(grid[row, :columns]), waits, "wait [s]", 0.0)
    slowdowns = {each.title: each.slowdown for each in results}
    _cdf(figure.add_subplot(grid[row, columns:]), slowdowns, "bounded slowdown", 1.0)
    first = None
    for at, result in enumerate(results):
        row = next(rows) if at % columns == 0 else row
        column = 2 * (at % columns)
        axes = figure.add_subplot(grid[row, column : column + 2], sharex=first, sharey=first)
        first = first or axes
        _sizes(axes, result, at)
    _scale_sizes(figure.axes[-len(results) :], results)
    for result in charted:
        _gantt(figure.add_subplot(grid[next(rows), :]), result, scale)
    _legend(figure, results)
    return figure


def _legend(figure: Figure, results: Sequence[Result]) -> None:
    """Which colour is whose, beside everything that is drawn."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=f"C{at}", label=result.title) for at, result in enumerate(results)]
    usable = Line2D([], [], **USABLE, label="usable")
    figure.legend(handles=[*lines, usable], loc="outside right upper", fontsize="small")


def _panels(figure: Figure, cells: Sequence[Any], results: Sequence[Result], scale: Scale, draw_one: DrawOne) -> None:
    """One panel a policy, one below the other and all to the same scale: lines of several would cover each other."""
    first = None
    for at, (cell, result) in enumerate(zip(cells, results, strict=True)):
        axes = figure.add_subplot(cell, sharex=first, sharey=first)
        first = first or axes
        draw_one(axes, result, at, scale)
        if len(results) > 1:
            axes.set_title(result.title, loc="left", fontsize="small")
        scale.apply(axes)
        if at < len(results) - 1:
            axes.set_xlabel("")
            axes.tick_params(labelbottom=False)
    if first is not None:
        first.set_ylim(bottom=0.0)  # after the last is drawn: a limit that is set is no longer moved by what comes


def _utilisation(axes: Axes, result: Result, at: int, scale: Scale) -> None:
    _stairs(axes, _averaged(busy_steps(result.jobs), scale.last_s), scale, at)
    capacity = [*result.capacity, (max(scale.last_s, result.capacity[-1][0]), result.capacity[-1][1])]
    _stairs(axes, capacity, scale, at, **USABLE)
    axes.set(ylabel="cores in use")


def _averaged(steps: Sequence[tuple[float, float]], last_s: float) -> Sequence[tuple[float, float]]:
    if len(steps) <= PARTS_DRAWN:
        return steps
    means = averages(steps, 0.0, last_s, PARTS_DRAWN)
    return [(last_s * part / PARTS_DRAWN, mean) for part, mean in enumerate(means)] + [(last_s, 0.0)]


def _queue(axes: Axes, result: Result, at: int, scale: Scale) -> None:
    _stairs(axes, sampled(queue_steps(result.jobs), STEPS_DRAWN_MAX), scale, at)
    axes.set(ylabel="jobs waiting")


def _accounts(axes: Axes, result: Result, at: int, scale: Scale) -> None:
    """Usage of the accounts that used most, and, dotted, their shares."""
    leaves = [course for course in result.accounts if len(course.path) > 1]
    for place, course in enumerate(leaves[:ACCOUNTS_DRAWN_MAX]):
        for steps, style in ((course.usage, {"label": course.name}), (course.share, {"linestyle": ":"})):
            _stairs(axes, _averaged([*steps, (scale.last_s, 0.0)], scale.last_s), scale, place, **style)
    axes.set(ylabel="usage, share")
    axes.legend(loc="upper right", fontsize="x-small")


def _stairs(axes: Axes, steps: Sequence[tuple[float, float]], scale: Scale, at: int, **style: Any) -> None:
    times = [when_s / scale.unit_s for when_s, _ in steps]
    axes.step(times, [value for _, value in steps], where="post", **{"linewidth": 0.8, "color": f"C{at}", **style})


def _cdf(axes: Axes, columns: Mapping[str, Sequence[float | None]], title: str, least: float) -> None:
    """Part of the jobs at or below a value, by policy; later ones are dashed, so that equal ones show through."""
    for at, (policy, values) in enumerate(columns.items()):
        known = sorted([value for value in values if value is not None])
        step = max(1, len(known) // STEPS_DRAWN_MAX)
        parts = [(place + 1) / len(known) for place in range(0, len(known), step)]
        style = DASHES[at % len(DASHES)]
        x, y = [least, *known[::step]], [0.0, *parts]
        axes.step(x, y, where="post", label=policy, color=f"C{at}", linestyle=style)
    axes.set_xscale("symlog", linthresh=max(least, 1.0))
    axes.set(xlabel=title, ylabel="part of the jobs", ylim=(0.0, 1.02), xlim=(least, None))


def _sizes(axes: Axes, result: Result, at: int) -> None:
    """Wait against size, one panel a policy: dots of several would cover each other."""
    pairs = zip(result.jobs.procs, result.wait, strict=True)
    dots = [(procs, wait_s) for procs, wait_s in pairs if wait_s is not None]
    dots = dots[:: max(1, -(-len(dots) // DOTS_DRAWN_MAX))]
    if dots:
        x, y = zip(*dots, strict=True)
        size, alpha = (4, 0.3) if len(dots) > DOTS_SMALL_FROM else (16, 0.6)
        axes.scatter(x, y, s=size, alpha=alpha, color=f"C{at}", linewidths=0, rasterized=True)
    axes.set(xlabel="cores of the job", ylabel="wait [s]")
    axes.set_title(result.title, loc="left", fontsize="small")


def _scale_sizes(panels: Sequence[Axes], results: Sequence[Result]) -> None:
    """The scale of all of these, which they share: logarithmic if there is anything on them."""
    from matplotlib.ticker import LogFormatter

    waits = [wait_s for result in results for wait_s in result.wait if wait_s is not None]
    first = panels[0]
    first.set_xscale("log" if waits else "linear")
    if waits:
        first.xaxis.set_major_formatter(LogFormatter())
        first.xaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(1, 0.4)))
    first.set_yscale("symlog", linthresh=1.0)
    first.set_ylim(-NO_WAIT_MARGIN, max(1.0, *waits, 0.0) * LONGEST_MARGIN)


def _gantt(axes: Axes, result: Result, scale: Scale) -> None:
    """Every job on its targets, over time, with its attempts that were preempted in the same colour."""
    from matplotlib.collections import PolyCollection

    corners, colours = [], []
    jobs = result.jobs
    rows = zip(range(len(jobs)), jobs.start, jobs.end, jobs.ranks or (), strict=True)
    earlier = [(each.row, each.start_s, each.end_s, each.ranks) for each in jobs.earlier_attempts()]
    for at, start_s, end_s, ranks in chain(rows, earlier):
        if start_s is None or ranks is None:
            continue
        begin, end = start_s / scale.unit_s, (scale.last_s if end_s is None else end_s) / scale.unit_s
        for first, last in Idset.parse(ranks).runs():
            corners.append([(begin, first), (begin, last + 1), (end, last + 1), (end, first)])
            colours.append(f"C{at % 10}")
    axes.add_collection(PolyCollection(corners, facecolors=colours, edgecolors="none", rasterized=True))
    axes.set(ylabel="target", title=f"{result.title}: jobs on targets", ylim=(0, result.targets))
    scale.apply(axes)


def _svg(figure: Figure) -> str:
    from matplotlib import rc_context

    file = io.StringIO()
    with rc_context({"svg.hashsalt": "fluxsched", "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
