"""Plots of policies on one trace: utilisation and queue over time, wait against size, CDFs, Gantt charts.

Law: drawn of the table of jobs alone, with matplotlib, which is an extra (`fluxsched[plots]`) and is imported only here
and only when something is drawn. The same results give the same file.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fluxsched.core.idset import Idset
from fluxsched.errors import InvalidValue
from fluxsched.sim.report import report
from fluxsched.sim.result import Result
from fluxsched.sim.steps import Steps, averages, busy_steps, queue_steps, sampled
from fluxsched.sim.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".html")

STEPS_DRAWN_MAX = 4000
"""Points of a line: more than a page has pixels."""

DOTS_DRAWN_MAX = 20_000
"""Jobs in a scatter plot, evenly picked."""

GANTTS_MAX = 4
"""Charts of jobs over targets: one a policy, for the first policies."""

PARTS_DRAWN = 400
"""Parts of the time over which cores in use are averaged: they change with every job, and a page would be all ink."""

NO_WAIT_MARGIN = 0.3
"""Below the line of those who have not waited, so that their dots are whole."""

HOUR_S, DAY_S = 3600.0, 86400.0

HOURS_MAX = 72
"""A longer time is drawn in days."""


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
    """Draw to a file: an image, or a page of its own with the report on it. Raises like `check_path`."""
    check_path(path)
    figure = draw(trace, results)
    if path.suffix == ".html":
        path.write_text(_page(trace, results, _svg(figure)), encoding="utf-8")
    elif path.suffix == ".svg":
        path.write_text(_svg(figure), encoding="utf-8")
    else:
        figure.savefig(path, dpi=110, metadata={"Software": None})


def check_path(path: Path) -> None:
    """Raises InvalidValue for a name that is no plot's, and where matplotlib is not installed."""
    if path.suffix not in FORMATS:
        raise InvalidValue(f"plot {path}: the name should end in {', '.join(FORMATS)}")
    if find_spec("matplotlib") is None:
        raise InvalidValue("plots need matplotlib: pip install 'fluxsched[plots]'")


def draw(trace: Trace, results: Sequence[Result]) -> Figure:
    """The figure, for who wants to go on with it."""
    from matplotlib.figure import Figure

    charted = [result for result in results[:GANTTS_MAX] if result.jobs.ranks is not None]
    rows, scale = 3 + len(charted), Scale.of(results)
    figure = Figure(figsize=(13, 3.2 * rows), layout="constrained")
    figure.suptitle(trace.name)
    grid = figure.add_gridspec(rows, 3)
    _utilisation(figure.add_subplot(grid[0, :]), results, scale)
    _queue(figure.add_subplot(grid[1, :]), results, scale)
    _cdf(figure.add_subplot(grid[2, 0]), {each.policy: each.wait for each in results}, "wait [s]", 0.0)
    _cdf(figure.add_subplot(grid[2, 1]), {each.policy: each.slowdown for each in results}, "bounded slowdown", 1.0)
    _sizes(figure.add_subplot(grid[2, 2]), results)
    for at, result in enumerate(charted, 3):
        _gantt(figure.add_subplot(grid[at, :]), result, scale)
    return figure


def _utilisation(axes: Axes, results: Sequence[Result], scale: Scale) -> None:
    for result in results:
        _stairs(axes, _averaged(busy_steps(result.jobs), scale.last_s), scale, result.policy)
    capacity = [*results[0].capacity, (max(scale.last_s, results[0].capacity[-1][0]), results[0].capacity[-1][1])]
    _stairs(axes, capacity, scale, "usable", color="black", linewidth=0.8, linestyle=":")
    axes.set(ylabel="cores in use")
    scale.apply(axes)
    axes.legend(loc="upper right", fontsize="small")


def _averaged(steps: Steps, last_s: float) -> Sequence[tuple[float, float]]:
    if len(steps) <= PARTS_DRAWN:
        return steps
    means = averages(steps, 0.0, last_s, PARTS_DRAWN)
    return [(last_s * part / PARTS_DRAWN, mean) for part, mean in enumerate(means)] + [(last_s, 0.0)]


def _queue(axes: Axes, results: Sequence[Result], scale: Scale) -> None:
    for result in results:
        _stairs(axes, sampled(queue_steps(result.jobs), STEPS_DRAWN_MAX), scale, result.policy)
    axes.set(ylabel="jobs waiting")
    scale.apply(axes)


def _stairs(axes: Axes, steps: Sequence[tuple[float, float]], scale: Scale, label: str, **style: Any) -> None:
    times = [when_s / scale.unit_s for when_s, _ in steps]
    axes.step(times, [value for _, value in steps], where="post", label=label, **{"linewidth": 0.8, **style})


def _cdf(axes: Axes, columns: Mapping[str, Sequence[float | None]], title: str, least: float) -> None:
    """Part of the jobs at or below a value, by policy."""
    for policy, values in columns.items():
        known = sorted([value for value in values if value is not None])
        step = max(1, len(known) // STEPS_DRAWN_MAX)
        parts = [(place + 1) / len(known) for place in range(0, len(known), step)]
        axes.step([least, *known[::step]], [0.0, *parts], where="post", label=policy)
    axes.set_xscale("symlog", linthresh=max(least, 1.0))
    axes.set(xlabel=title, ylabel="part of the jobs", ylim=(0.0, 1.02), xlim=(least, None))
    axes.legend(loc="lower right", fontsize="small")


def _sizes(axes: Axes, results: Sequence[Result]) -> None:
    scale = "linear"
    for at, result in enumerate(results):
        pairs = zip(result.jobs.procs, result.wait, strict=True)
        dots = [(procs, wait_s) for procs, wait_s in pairs if wait_s is not None]
        dots = dots[:: max(1, -(-len(dots) // DOTS_DRAWN_MAX))]
        if not dots:
            continue
        scale = "log"
        x, y = zip(*dots, strict=True)
        axes.scatter(x, y, s=4, alpha=0.3, color=f"C{at}", label=result.policy, linewidths=0, rasterized=True)
    axes.set(xscale=scale, xlabel="cores of the job", ylabel="wait [s]")
    axes.set_yscale("symlog", linthresh=1.0)
    axes.set_ylim(bottom=-NO_WAIT_MARGIN)


def _gantt(axes: Axes, result: Result, scale: Scale) -> None:
    """Every job on its targets, over time."""
    from matplotlib.collections import PolyCollection

    corners, colours = [], []
    jobs = result.jobs
    rows = zip(jobs.start, jobs.end, jobs.ranks or (), strict=True)
    for at, (start_s, end_s, ranks) in enumerate(rows):
        if start_s is None or ranks is None:
            continue
        begin, end = start_s / scale.unit_s, (scale.last_s if end_s is None else end_s) / scale.unit_s
        for first, last in Idset.parse(ranks).runs():
            corners.append([(begin, first), (begin, last + 1), (end, last + 1), (end, first)])
            colours.append(f"C{at % 10}")
    axes.add_collection(PolyCollection(corners, facecolors=colours, edgecolors="none", rasterized=True))
    axes.set(ylabel="target", title=result.policy, ylim=(0, result.targets))
    scale.apply(axes)


def _svg(figure: Figure) -> str:
    from matplotlib import rc_context

    file = io.StringIO()
    with rc_context({"svg.hashsalt": "fluxsched", "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _page(trace: Trace, results: Sequence[Result], svg: str) -> str:
    """One file that needs no other."""
    text = "\n".join(report(trace, results, "user"))
    image = svg[svg.index("<svg") :]
    title = escape(trace.name)
    style = "body{font-family:sans-serif;margin:2em}svg{width:100%;height:auto}pre{overflow-x:auto}"
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f"<style>{style}</style>\n</head>\n<body>\n<h1>{title}</h1>\n<pre>{escape(text)}</pre>\n{image}</body>\n</html>\n"
    )
