"""Plots of policies on one trace with matplotlib: utilisation and queue over time, waits, jobs on targets.

Law: bounded: lines are averaged or sampled to what a page has pixels for. A time at which a part of the machine could
not be used is shaded in every chart over time. Colours are told apart by the colour-blind. Drawn of the table of jobs
alone, with matplotlib, which is an extra (`fluxsched[plots]`) and is imported only here and in `charts`, and only when
something is drawn. The same results give the same file. What does not fit is left out, and the figure says so.
"""

from __future__ import annotations

import io
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fluxsched.core.idset import Idset
from fluxsched.errors import InvalidValue
from fluxsched.sim.report import BARS_MAX, by_size, by_user, largest
from fluxsched.sim.result import Result, averages, busy_steps, queue_steps, sampled, stretches
from fluxsched.sim.traces import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999933", "#882255")
"""Of Okabe and Ito, and two of Tol's for more."""

WAITS = (
    (1.0, "no wait", "#c9d6df"), (60.0, "under 1 min", "#a9c8d6"), (600.0, "under 10 min", "#7fb3c8"),
    (3600.0, "under 1 h", "#e3c567"), (6 * 3600.0, "under 6 h", "#e0964a"), (86400.0, "under 1 day", "#c95d3c"),
    (inf, "1 day or more", "#8f2d3f"),
)  # fmt: skip
"""Classes of waits of jobs on targets, as on the page: the wait that is too long for one, its name, its colour."""

STEPS_DRAWN_MAX = 4000
"""Points of a line: more than a page has pixels."""

PARTS_DRAWN = 400
"""Parts of the time over which cores in use are averaged: they change with every job, and a page would be all ink."""

GANTT_JOBS_MAX = 1000
"""Jobs on a chart of targets: bars of more are thinner than a pixel, and nothing is seen."""

EDGES_MAX = 600
"""Jobs on a chart of targets that have an edge each; edges of more are all that is seen."""

ACCOUNTS_DRAWN_MAX = 5
"""Accounts in a panel: lines of more are not told apart."""

NAMES_LEVEL_MAX, NAME_CHARS = 6, 14
"""Classes up to which their names are written level, and how long a name is."""

NO_WAIT_MARGIN = 0.3
"""Below the line of those who have not waited, so that their marks are whole."""

LONGEST_MARGIN = 2.0
"""The end of that scale, in longest waits, for the same reason."""

DASHES = ("-", "--", ":", "-.")

USABLE: dict[str, Any] = {"color": "#202020", "linewidth": 0.8, "linestyle": ":"}
"""The line of what can be used."""

REDUCED: dict[str, Any] = {"facecolor": "#000000", "alpha": 0.1, "edgecolor": "none"}
"""Style of the times at which not all targets can be used."""

HOUR_S, DAY_S = 3600.0, 86400.0

HOURS_MAX = 72
"""A longer time is drawn in days."""


PARTS = ("time", "targets", "waits")
"""Parts of a plot, from above: cores in use, jobs waiting and accounts over time; jobs on targets; waits of jobs."""


class TimeScale(NamedTuple):
    """All axes of time: hours or days, up to the end of the longest schedule."""

    name: str
    unit_s: float
    last_s: float
    begin_s: float = 0.0

    @classmethod
    def of(cls, results: Sequence[Result]) -> TimeScale:
        """Return the unit that fits the longest schedule."""
        last_s = max([result.end_s for result in results])
        return cls("hours", HOUR_S, last_s) if last_s <= HOURS_MAX * HOUR_S else cls("days", DAY_S, last_s)

    def apply(self, axes: Axes) -> None:
        """Make this the scale of these axes."""
        axes.set(xlabel=self.name, xlim=(self.begin_s / self.unit_s, self.last_s / self.unit_s or 1.0))


def colours_of(results: Sequence[Result]) -> dict[str, str]:
    """Return the colour of each policy, by its title."""
    return {result.title: COLOURS[at % len(COLOURS)] for at, result in enumerate(results)}


def wait_colour(wait_s: float | None) -> str:
    """Return the colour of a job that waited for so long."""
    return next(colour for most_s, _, colour in WAITS if (wait_s or 0.0) < most_s)


def utilisation(axes: Axes, result: Result, colour: str, scale: TimeScale) -> None:
    """Cores in use, and what can be used."""
    steps = _averaged(busy_steps(result.jobs), scale.last_s)
    times, values = [when_s / scale.unit_s for when_s, _ in steps], [value for _, value in steps]
    axes.fill_between(times, values, step="post", color=colour, alpha=0.35, linewidth=0)
    _stairs(axes, steps, scale, color=colour)
    capacity = [*result.capacity, (max(scale.last_s, result.capacity[-1][0]), result.capacity[-1][1])]
    _stairs(axes, capacity, scale, **USABLE)
    axes.set(ylabel="cores in use")


def queue(axes: Axes, result: Result, colour: str, scale: TimeScale) -> None:
    """Draw the number of jobs that wait."""
    _stairs(axes, sampled(queue_steps(result.jobs), STEPS_DRAWN_MAX), scale, color=colour)
    axes.set(ylabel="jobs waiting")


def accounts(axes: Axes, result: Result, colour: str, scale: TimeScale) -> None:
    """Usage of the accounts that used most, and, dotted, their shares."""
    leaves = [course for course in result.accounts if len(course.path) > 1]
    for place, course in enumerate(leaves[:ACCOUNTS_DRAWN_MAX]):
        for steps, style in ((course.usage, {"label": course.name}), (course.share, {"linestyle": ":"})):
            _stairs(axes, _averaged([*steps, (scale.last_s, 0.0)], scale.last_s), scale, color=COLOURS[place], **style)
    axes.set(ylabel="usage, share")
    axes.legend(loc="upper right", fontsize="x-small")


def reductions(axes: Axes, result: Result, scale: TimeScale) -> None:
    """Shade the times at which less of the machine can be used than at its best."""
    for begin_s, end_s in reduced_times(result, scale.last_s):
        axes.axvspan(begin_s / scale.unit_s, end_s / scale.unit_s, zorder=0, **REDUCED)


def reduced_times(result: Result, last_s: float) -> Iterator[tuple[float, float]]:
    """Yield the times at which not all cores are usable, each from when to when."""
    best = max([cores for _, cores in result.capacity])
    begun_s: float | None = None
    for when_s, cores in result.capacity:
        if cores < best and begun_s is None:
            begun_s = when_s
        elif cores == best and begun_s is not None:
            yield begun_s, when_s
            begun_s = None
    if begun_s is not None and begun_s < last_s:
        yield begun_s, last_s


def window_of(result: Result, scale: TimeScale) -> TimeScale:
    """Return the part of the time in which jobs on targets are told apart: all of it, or, of more than GANTT_JOBS_MAX
    jobs, that with so many starts around the longest queue.
    """
    starts = sorted([start_s for start_s in result.jobs.start if start_s is not None])
    if len(starts) <= GANTT_JOBS_MAX:
        return scale
    longest_s = max(queue_steps(result.jobs), key=lambda step: step[1])[0]
    before = bisect_left(starts, longest_s) - GANTT_JOBS_MAX // 2
    first = max(0, min(before, len(starts) - GANTT_JOBS_MAX))
    return scale._replace(begin_s=starts[first], last_s=starts[first + GANTT_JOBS_MAX - 1])


def _averaged(steps: Sequence[tuple[float, float]], last_s: float) -> Sequence[tuple[float, float]]:
    if len(steps) <= PARTS_DRAWN:
        return steps
    means = averages(steps, 0.0, last_s, PARTS_DRAWN)
    return [(last_s * part / PARTS_DRAWN, mean) for part, mean in enumerate(means)] + [(last_s, 0.0)]


def _stairs(axes: Axes, steps: Sequence[tuple[float, float]], scale: TimeScale, **style: Any) -> None:
    times = [when_s / scale.unit_s for when_s, _ in steps]
    axes.step(times, [value for _, value in steps], where="post", **{"linewidth": 0.9, **style})


def distribution(
    axes: Axes, results: Sequence[Result], colours: dict[str, str], title: str,
    figure_of: Callable[[Result], Sequence[float | None]], least: float,
) -> None:  # fmt: skip
    """Part of the jobs at or below a value, by policy; later ones are dashed, so that equal ones show through."""
    for at, result in enumerate(results):
        known = sorted([value for value in figure_of(result) if value is not None])
        step = max(1, len(known) // STEPS_DRAWN_MAX)
        parts = [(place + 1) / len(known) for place in range(0, len(known), step)]
        x, y = [least, *known[::step]], [0.0, *parts]
        style = DASHES[at % len(DASHES)]
        axes.step(x, y, where="post", label=result.title, color=colours[result.title], linestyle=style, linewidth=1.3)
    axes.set_xscale("symlog", linthresh=max(least, 1.0))
    axes.set(xlabel=title, ylabel="part of the jobs", ylim=(0.0, 1.02), xlim=(least, None))


def classes(
    axes: Axes, found: Sequence[dict[str, Any]], results: Sequence[Result], colours: dict[str, str], title: str
) -> None:
    """Draw the waits of jobs of like size, or of a user: the median as a dot, a line to the 95th percentile."""
    width, longest = 0.8 / len(results), 0.0
    for at, result in enumerate(results):
        marks = [(place, each["waits"][at]) for place, each in enumerate(found) if each["waits"][at] is not None]
        x = [place - 0.4 + width * (at + 0.5) for place, _ in marks]
        median, high = [wait[0] for _, wait in marks], [wait[1] for _, wait in marks]
        colour = colours[result.title]
        axes.vlines(x, median, high, color=colour, linewidth=1.2, alpha=0.7)
        axes.scatter(x, high, marker="_", s=36 * width, color=colour, linewidths=1.2)
        axes.scatter(x, median, s=14, color=colour, zorder=3)
        longest = max([longest, *high])
    names = [f"{each['label'][:NAME_CHARS]}" for each in found]
    is_level = len(names) <= NAMES_LEVEL_MAX
    axes.set_xticks(range(len(names)), names, rotation=0 if is_level else 40, ha="center" if is_level else "right")
    axes.set_yscale("symlog", linthresh=1.0)
    axes.set(xlabel=title, ylabel="wait [s]: median to 95 %")
    axes.set_ylim(-NO_WAIT_MARGIN, max(1.0, longest, axes.get_ylim()[1] / LONGEST_MARGIN) * LONGEST_MARGIN)
    axes.grid(visible=False, axis="x")


def jobs_on_targets(axes: Axes, result: Result, scale: TimeScale) -> None:
    """Every job on its targets, over time, in the colour of its wait; all its attempts, and all its sizes."""
    from matplotlib.collections import PolyCollection

    corners, colours = [], []
    jobs, drawn = result.jobs, set(largest(result))
    for at, start_s, end_s, _, ranks in stretches(jobs, range(len(jobs)) if jobs.ranks else ()):
        if at not in drawn:
            continue
        begin, end = start_s / scale.unit_s, (scale.last_s if end_s is None else end_s) / scale.unit_s
        if end * scale.unit_s < scale.begin_s or start_s > scale.last_s:
            continue
        for first, last in Idset.parse(ranks).runs():
            corners.append([(begin, first), (begin, last + 1), (end, last + 1), (end, first)])
            colours.append(wait_colour(result.wait[at]))
    edges: dict[str, Any] = {"edgecolors": "white", "linewidths": 0.4} if len(corners) <= EDGES_MAX else {
        "edgecolors": "none", "linewidths": 0}  # fmt: skip
    axes.add_collection(PolyCollection(corners, facecolors=colours, rasterized=True, **edges))
    axes.grid(visible=False)
    axes.set(ylabel="target", ylim=(result.targets, 0))
    reductions(axes, result, scale)
    scale.apply(axes)


# ---- the plots

FORMATS = (".png", ".svg", ".pdf")

POLICIES_MAX = 6
"""Policies with panels of their own; curves of more are in the distributions of waits only."""

GANTTS_MAX = 4
"""Charts of jobs over targets: one a policy, for the first policies."""

USERS_DRAWN_MAX = 12
"""Users side by side in the chart of waits: names of more do not fit below it."""

PANEL_IN, ROW_IN = 1.5, 3.0
"""Heights in inches: of a panel that has others like it below, and of any other row."""

GANTT_IN, GANTT_LOW_IN, GANTT_TARGETS = 4.5, 2.2, 64
"""Heights of a chart of targets, and up to how many targets it is a low one."""

STYLE: Any = {
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": "#e6e6e6", "grid.linewidth": 0.6, "axes.edgecolor": "#808080", "axes.linewidth": 0.6,
    "axes.labelsize": 9, "axes.titlesize": 9, "xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 8,
    "xtick.color": "#404040", "ytick.color": "#404040", "legend.frameon": False, "svg.hashsalt": "fluxsched",
    "svg.fonttype": "none", "pdf.fonttype": 42,
}  # fmt: skip
"""Quiet axes, so that the data stands out; text stays text in a paper."""

DrawOne = Callable[["Axes", Result, str, TimeScale], None]
"""Draws one policy in its colour to these axes."""


def plot(trace: Trace, results: Sequence[Result], path: Path, parts: Sequence[str] = PARTS) -> list[str]:
    """Draw to a file; what was left out, in words. Raises like `check_path`."""
    from matplotlib import rc_context

    check_path(path)
    with rc_context(STYLE):
        figure = draw(trace, results, parts)
        if path.suffix == ".png":
            figure.savefig(path, dpi=130, metadata={"Software": None})
        else:
            file = io.BytesIO()
            date = "Date" if path.suffix == ".svg" else "CreationDate"
            figure.savefig(file, format=path.suffix[1:], dpi=200, metadata={date: None})
            path.write_bytes(file.getvalue())
    return list(left_out(results, parts))


def check_path(path: Path) -> None:
    """Raise InvalidValue for a name that is no plot's, and where matplotlib is not installed."""
    if path.suffix not in FORMATS:
        page = "; --html writes a page" if path.suffix == ".html" else ""
        raise InvalidValue(f"plot {path}: the name should end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}{page}")
    if find_spec("matplotlib") is None:
        raise InvalidValue("plots need matplotlib: pip install 'fluxsched[plots]'")


def left_out(results: Sequence[Result], parts: Sequence[str] = PARTS) -> Iterator[str]:
    """Yield what does not fit into these parts of the plot, each in a few words."""
    if len(results) > POLICIES_MAX:
        yield f"panels of {_named(results[POLICIES_MAX:])}"
    charted = _charted(results) if "targets" in parts else []
    if len(results) > len(charted) > 0:
        yield f"jobs on targets of {_named([result for result in results if result not in charted])}"
    for result in charted:
        begun = sum([start is not None for start in result.jobs.start])
        if begun > BARS_MAX:
            yield f"{begun - BARS_MAX:,} jobs of {result.title} with least core seconds"
    scale = TimeScale.of(results)
    window = window_of(results[0], scale)
    if charted and window != scale:
        yield f"jobs on targets outside {_part(window, scale)[2:]} (around the longest queue of {results[0].title})"
    users = len(set(results[0].jobs.user))
    if users > USERS_DRAWN_MAX and "waits" in parts:
        yield f"{users - USERS_DRAWN_MAX:,} of {users:,} users, who used least"


def _named(results: Sequence[Result]) -> str:
    return ", ".join(result.title for result in results)


def _part(window: TimeScale, scale: TimeScale) -> str:
    """Return a text that names the drawn part of the time, to follow a title; empty if all of it is drawn."""
    if window == scale:
        return ""
    return f": {scale.name} {window.begin_s / scale.unit_s:.1f} to {window.last_s / scale.unit_s:.1f}"


def _charted(results: Sequence[Result]) -> list[Result]:
    return [result for result in results[:GANTTS_MAX] if result.jobs.ranks is not None]


def draw(trace: Trace, results: Sequence[Result], parts: Sequence[str] = PARTS) -> Figure:
    """Return the figure, for who wants to go on with it. Raises InvalidValue if there is nothing to draw."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        shown, charted = results[:POLICIES_MAX], _charted(results) if "targets" in parts else []
        shared = [result for result in shown if result.accounts]
        scale, colours = TimeScale.of(results), colours_of(results)
        over_time: list[tuple[Sequence[Result], DrawOne]] = [(shown, utilisation), (shown, queue), (shared, accounts)]
        panels = [(some, draw_one) for some, draw_one in over_time if some and "time" in parts]
        gantt_in = GANTT_LOW_IN if results[0].targets <= GANTT_TARGETS else GANTT_IN
        heights = [PANEL_IN] * sum([len(some) for some, _ in panels]) + [gantt_in] * len(charted)
        heights += [ROW_IN] * 2 if "waits" in parts else []
        if not heights:
            raise InvalidValue("nothing to plot: it is not known which targets jobs had")
        figure = Figure(figsize=(11, sum(heights) + 0.6), layout="constrained")
        figure.suptitle(trace.name, fontsize=11)
        grid = figure.add_gridspec(len(heights), 2, height_ratios=heights)
        rows = iter(range(len(heights)))
        first = None
        for some, draw_one in panels:
            first = _panels(figure, [grid[next(rows), :] for _ in some], some, colours, scale, draw_one, first)
        window = window_of(results[0], scale)
        targets = first if window == scale else None
        for result in charted:
            targets = axes = figure.add_subplot(grid[next(rows), :], sharex=targets)
            jobs_on_targets(axes, result, window)
            axes.set_title(f"{result.title}{_part(window, scale)}", loc="left")
            if result is not charted[-1]:
                axes.set_xlabel("")
                axes.tick_params(labelbottom=False)
        if "waits" in parts:
            _waits(figure, [(grid[row, 0], grid[row, 1]) for row in rows], results, colours)
        _legends(figure, results, colours, parts, has_charts=bool(charted))
        return figure


def _waits(figure: Figure, rows: Sequence[Any], results: Sequence[Result], colours: dict[str, str]) -> None:
    """Draw the distributions of wait and slowdown in one row, waits by size and by user in the next."""
    shown = results[:POLICIES_MAX]
    distribution(figure.add_subplot(rows[0][0]), results, colours, "wait [s]", lambda one: one.wait, 0.0)
    axes = figure.add_subplot(rows[0][1])
    distribution(axes, results, colours, "bounded slowdown", lambda one: one.slowdown, 1.0)
    first = figure.add_subplot(rows[1][0])
    classes(first, by_size(shown), shown, colours, "cores of the job")
    axes = figure.add_subplot(rows[1][1], sharey=first)
    classes(axes, by_user(shown)[:USERS_DRAWN_MAX], shown, colours, "user")


def _legends(
    figure: Figure, results: Sequence[Result], colours: dict[str, str], parts: Sequence[str], *, has_charts: bool
) -> None:
    """Draw legends of policies and waits beside everything that is drawn; below it, what was left out."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    has_lines = "time" in parts or "waits" in parts
    drawn = results if has_lines else []
    lines: list[Any] = [Line2D([], [], color=colours[result.title], label=result.title) for result in drawn]
    if "time" in parts:
        lines.append(Line2D([], [], **USABLE, label="usable"))
    is_shaded = "time" in parts or has_charts
    if is_shaded and any(True for result in results for _ in reduced_times(result, result.end_s)):
        lines.append(Patch(**REDUCED, label="part not usable"))
    if lines:
        title = "policies" if has_lines else None
        figure.legend(handles=lines, loc="outside right upper", title=title, alignment="left")
    if has_charts:
        named = [Patch(color=colour, label=name) for _, name, colour in WAITS]
        figure.legend(handles=named, loc="outside right center", title="jobs that waited", alignment="left")
    if missing := list(left_out(results, parts)):
        figure.supxlabel(f"Left out: {'; '.join(missing)}.", x=0.01, ha="left", fontsize=8, color="#606060")


def _panels(
    figure: Figure, cells: Sequence[Any], results: Sequence[Result], colours: dict[str, str], scale: TimeScale,
    draw_one: DrawOne, time_axes: Axes | None,
) -> Axes | None:  # fmt: skip
    """One panel a policy, one below the other and all to the same scale: lines of several would cover each other."""
    first = None
    for at, (cell, result) in enumerate(zip(cells, results, strict=True)):
        axes = figure.add_subplot(cell, sharex=time_axes, sharey=first)
        first, time_axes = first or axes, time_axes or axes
        draw_one(axes, result, colours[result.title], scale)
        reductions(axes, result, scale)
        if len(results) > 1:
            axes.set_title(result.title, loc="left")
        scale.apply(axes)
        if at < len(results) - 1:
            axes.set_xlabel("")
            axes.tick_params(labelbottom=False)
    if first is not None:
        first.set_ylim(bottom=0.0)  # after the last is drawn: a limit that is set is no longer moved by what comes
    return time_axes
