"""Plots of policies on one trace, for papers: utilisation and queue over time, waits, jobs on targets.

Law: drawn of the table of jobs alone, with matplotlib, which is an extra (`fluxsched[plots]`) and is imported only here
and in `charts`, and only when something is drawn. The same results give the same file. What does not fit is left out,
and the figure says so.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluxsched.errors import InvalidValue
from fluxsched.sim.results import charts
from fluxsched.sim.results.charts import TimeScale
from fluxsched.sim.results.drawing import BARS_MAX, by_size, by_user
from fluxsched.sim.results.result import Result
from fluxsched.sim.traces.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


def plot(trace: Trace, results: Sequence[Result], path: Path) -> list[str]:
    """Draw to a file; what was left out, in words. Raises like `check_path`."""
    from matplotlib import rc_context

    check_path(path)
    with rc_context(STYLE):
        figure = draw(trace, results)
        if path.suffix == ".png":
            figure.savefig(path, dpi=130, metadata={"Software": None})
        else:
            file = io.BytesIO()
            date = "Date" if path.suffix == ".svg" else "CreationDate"
            figure.savefig(file, format=path.suffix[1:], dpi=200, metadata={date: None})
            path.write_bytes(file.getvalue())
    return list(left_out(results))


def check_path(path: Path) -> None:
    """Raises InvalidValue for a name that is no plot's, and where matplotlib is not installed."""
    if path.suffix not in FORMATS:
        page = "; --html writes a page" if path.suffix == ".html" else ""
        raise InvalidValue(f"plot {path}: the name should end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}{page}")
    if find_spec("matplotlib") is None:
        raise InvalidValue("plots need matplotlib: pip install 'fluxsched[plots]'")


def left_out(results: Sequence[Result]) -> Iterator[str]:
    """What does not fit, each in a few words."""
    if len(results) > POLICIES_MAX:
        yield f"panels of {_named(results[POLICIES_MAX:])}"
    charted = _charted(results)
    if len(results) > len(charted) > 0:
        yield f"jobs on targets of {_named([result for result in results if result not in charted])}"
    for result in charted:
        begun = sum([start is not None for start in result.jobs.start])
        if begun > BARS_MAX:
            yield f"{begun - BARS_MAX:,} jobs of {result.title} with least core seconds"
    scale = TimeScale.of(results)
    window = charts.window_of(results[0], scale)
    if charted and window != scale:
        yield f"jobs on targets but for {_part(window, scale)[2:]}, around the longest queue"
    users = len(set(results[0].jobs.user))
    if users > USERS_DRAWN_MAX:
        yield f"{users - USERS_DRAWN_MAX:,} of {users:,} users, who used least"


def _named(results: Sequence[Result]) -> str:
    return ", ".join(result.title for result in results)


def _part(window: TimeScale, scale: TimeScale) -> str:
    """Which part of the time is drawn, if it is not all; to follow a title."""
    if window == scale:
        return ""
    return f": {scale.name} {window.begin_s / scale.unit_s:.1f} to {window.last_s / scale.unit_s:.1f}"


def _charted(results: Sequence[Result]) -> list[Result]:
    return [result for result in results[:GANTTS_MAX] if result.jobs.ranks is not None]


def draw(trace: Trace, results: Sequence[Result]) -> Figure:
    """The figure, for who wants to go on with it."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        shown, charted = results[:POLICIES_MAX], _charted(results)
        shared = [result for result in shown if result.accounts]
        scale, colours = TimeScale.of(results), charts.colours_of(results)
        gantt_in = GANTT_LOW_IN if results[0].targets <= GANTT_TARGETS else GANTT_IN
        panels = [PANEL_IN] * (2 * len(shown) + len(shared))
        heights = [*panels, *[gantt_in] * len(charted), ROW_IN, ROW_IN]
        figure = Figure(figsize=(11, sum(heights) + 0.6), layout="constrained")
        figure.suptitle(trace.name, fontsize=11)
        grid = figure.add_gridspec(len(heights), 2, height_ratios=heights)
        rows = iter(range(len(heights)))
        over_time: list[tuple[Sequence[Result], DrawOne]] = [(shown, charts.utilisation), (shown, charts.queue)]
        over_time += [(shared, charts.accounts)] if shared else []
        first = None
        for some, draw_one in over_time:
            first = _panels(figure, [grid[next(rows), :] for _ in some], some, colours, scale, draw_one, first)
        users, window, targets = charts.user_colours(results[0]), charts.window_of(results[0], scale), None
        for result in charted:
            axes = figure.add_subplot(grid[next(rows), :], sharex=first if window == scale else targets)
            targets = axes
            charts.jobs_on_targets(axes, result, window, users)
            axes.set_title(f"{result.title}{_part(window, scale)}", loc="left")
            if result is not charted[-1]:
                axes.set_xlabel("")
                axes.tick_params(labelbottom=False)
        row, last = next(rows), next(rows)
        charts.distribution(figure.add_subplot(grid[row, 0]), results, colours, "wait [s]", lambda one: one.wait, 0.0)
        axes = figure.add_subplot(grid[row, 1])
        charts.distribution(axes, results, colours, "bounded slowdown", lambda one: one.slowdown, 1.0)
        first = figure.add_subplot(grid[last, 0])
        charts.classes(first, by_size(shown), shown, colours, "cores of the job")
        axes = figure.add_subplot(grid[last, 1], sharey=first)
        charts.classes(axes, by_user(shown)[:USERS_DRAWN_MAX], shown, colours, "user")
        _legends(figure, results, colours, users if charted else {})
        return figure


def _legends(figure: Figure, results: Sequence[Result], colours: dict[str, str], users: dict[str, str]) -> None:
    """Which colour is whose, beside everything that is drawn; below it, what was left out."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    lines: list[Any] = [Line2D([], [], color=colours[result.title], label=result.title) for result in results]
    lines += [Line2D([], [], **charts.USABLE, label="usable"), Patch(**charts.REDUCED, label="part not usable")]
    figure.legend(handles=lines, loc="outside right upper", title="policies", alignment="left")
    if users:
        named = [Patch(color=colour, label=name) for name, colour in users.items()]
        figure.legend(handles=named, loc="outside right center", title="users, by usage", alignment="left")
    if missing := list(left_out(results)):
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
        charts.reductions(axes, result, scale)
        if len(results) > 1:
            axes.set_title(result.title, loc="left")
        scale.apply(axes)
        if at < len(results) - 1:
            axes.set_xlabel("")
            axes.tick_params(labelbottom=False)
    if first is not None:
        first.set_ylim(bottom=0.0)  # after the last is drawn: a limit that is set is no longer moved by what comes
    return time_axes
