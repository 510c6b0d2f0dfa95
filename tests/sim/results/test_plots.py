"""Plots: each format is what it says, says the same each time, and needs no other file."""

import dataclasses
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fluxsched.errors import InvalidValue
from fluxsched.sim import Trace, generate, run
from fluxsched.sim.commands import StudyOptions, simulate
from fluxsched.sim.plots import WAITS, check_path, plot


@pytest.fixture(scope="module")
def study():
    pytest.importorskip("matplotlib", reason="plots are an extra: fluxsched[plots]")
    trace = generate(jobs=60, procs=16, seed=1, load=1.0)
    return trace, [run(trace, policy, placements=True) for policy in ("fifo", "firstfit")]


@pytest.fixture(scope="module")
def figure(study):
    """The study, drawn: for what only reads it."""
    from fluxsched.sim.plots import draw

    return draw(*study)


@pytest.fixture
def small(study, trace_of):
    trace = trace_of((0, 10, 10, 2), (1, 5, 5, 2))
    return trace, [run(trace, policy, procs=2, placements=True) for policy in ("fifo", "firstfit")]


@pytest.mark.parametrize(("name", "begins"), [("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("a.svg", b"<?xml")])
def test_formats(small, tmp_path, name, begins):
    path = tmp_path / name
    plot(*small, path)
    first = path.read_bytes()
    assert first.startswith(begins)
    if name == "a.svg":
        words = {node.text for node in ElementTree.parse(path).iter() if node.text}
        assert {"cores in use", "jobs waiting", "cores of the job", "fifo", "firstfit", "target"} <= words
    if name != "a.png":  # which has neither a date nor names
        plot(*small, path)
        assert path.read_bytes() == first


@pytest.mark.parametrize(("part", "labels", "legends"), [
    ("time", {"cores in use", "jobs waiting"}, {"policies": ["fifo", "firstfit", "usable"]}),
    ("targets", {"target"}, {"jobs that waited": [name for _, name, _ in WAITS]}),
    ("waits", {"part of the jobs", "wait [s]: median to 95 %"}, {"policies": ["fifo", "firstfit"]}),
])  # fmt: skip
def test_a_part_is_drawn_alone(study, figure, part, labels, legends):
    from fluxsched.sim.plots import draw

    alone = draw(*study, [part])
    assert {axes.get_ylabel() for axes in alone.axes if axes.get_ylabel()} == labels
    assert 0 < len(alone.axes) < len(figure.axes)
    assert alone.get_figheight() < figure.get_figheight()
    assert _legends(alone) == legends
    assert _legends(figure).keys() == {"policies", "jobs that waited"}


def _legends(figure):
    return {one.get_title().get_text(): [text.get_text() for text in one.get_texts()] for one in figure.legends}


def test_without_targets_there_is_no_chart_of_them(trace_of):
    pytest.importorskip("matplotlib")
    from fluxsched.sim.plots import draw

    trace = trace_of((0, 10, 10, 2))
    with pytest.raises(InvalidValue, match="nothing to plot"):
        draw(trace, [run(trace, procs=2)], ["targets"])


def test_parts_are_parts_of_a_plot(tmp_path):
    with pytest.raises(InvalidValue, match="give its file, too"):
        simulate(StudyOptions(tmp_path / "t.swf", plot_parts=("waits",)), lambda: 0.0)


def test_accounts_have_a_panel_where_they_are_known(study):
    from fluxsched.sim.plots import ACCOUNTS_DRAWN_MAX, draw

    trace, (plain, _) = study
    named = Trace.of([job._replace(user=f"user{at}") for at, job in enumerate(trace.jobs)], machine=trace.machine)
    figure = draw(named, [plain, run(named, "fifo", accounts=True)])
    (panel,) = [axes for axes in figure.axes if axes.get_ylabel() == "usage, share"]
    drawn = [text.get_text() for text in panel.get_legend().get_texts()]
    assert len(drawn) == min(ACCOUNTS_DRAWN_MAX, len(trace.jobs))
    assert all(name.startswith("default/user") for name in drawn)


def test_nothing_to_draw_draws_empty_axes(study, tmp_path, trace_of):
    trace = trace_of((0, 1, 1, 9))
    plot(trace, [run(trace, procs=2)], tmp_path / "a.svg")


def test_the_legend_has_parts_that_are_not_usable_only_where_there_are_some(study, trace_of):
    from fluxsched.sim.plots import draw

    trace = trace_of((0, 90, 90, 1))
    result = run(trace, procs=2, placements=True)
    for capacity, more in (([(0.0, 2)], []), ([(0.0, 2), (10.0, 1), (20.0, 2)], ["part not usable"])):
        legend, _ = draw(trace, [dataclasses.replace(result, capacity=capacity)]).legends
        assert [text.get_text() for text in legend.get_texts()] == ["easy", "usable", *more]


def test_time_is_drawn_up_to_where_it_ended(study, trace_of):
    from fluxsched.sim.plots import draw

    trace = trace_of((0, 9000, 9000, 2))
    figure = draw(trace, [run(trace, procs=2, until_s=3600, placements=True)])
    over_time = [axes for axes in figure.axes if axes.get_xlabel() == "hours"]
    assert [axes.get_xlim() for axes in over_time] == [(0.0, 1.0)] * 3
    (jobs,) = over_time[-1].collections
    assert jobs.get_paths()[0].get_extents().xmax == 1.0


def test_without_matplotlib_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr("fluxsched.sim.plots.find_spec", lambda name: None)
    with pytest.raises(InvalidValue, match=r"pip install 'fluxsched\[plots\]'"):
        check_path(Path("a.png"))


def test_matplotlib_is_not_imported_to_simulate():
    import subprocess

    code = "import sys, fluxsched.sim.commands; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_legends_are_beside_the_data_and_policies_in_panels_of_their_own(figure):
    figure.draw_without_rendering()
    assert [axes.get_legend() for axes in figure.axes] == [None] * len(figure.axes)
    legend, waits = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["fifo", "firstfit", "usable"]
    assert waits.get_texts()[-1].get_text() == "1 day or more"
    left = min(each.get_window_extent().x0 for each in figure.legends)
    assert max(axes.get_window_extent().x1 for axes in figure.axes) <= left
    panels = [axes for axes in figure.axes if axes.get_ylabel() in ("cores in use", "jobs waiting")]
    assert [axes.get_title(loc="left") for axes in panels] == ["fifo", "firstfit"] * 2
    assert len({axes.get_ylim() for axes in panels[:2]}) == 1  # to the same scale
    assert all(axes.get_ylabel() for axes in figure.axes)


def test_a_later_policy_with_a_longer_queue_fits_its_panel(study, trace_of):
    from fluxsched.sim.plots import draw

    trace = trace_of((0, 90, 90, 1), (0, 90, 90, 2), (1, 5, 5, 1), (1, 5, 5, 1), (1, 5, 5, 1))
    results = [run(trace, policy, procs=2) for policy in ("firstfit", "fifo")]
    longest = [result.summary.queue_max for result in results]
    assert longest[0] < longest[1]
    panels = [axes for axes in draw(trace, results).axes if axes.get_ylabel() == "jobs waiting"]
    assert all(bottom == 0.0 and top >= max(longest) for bottom, top in [axes.get_ylim() for axes in panels])


def test_the_longest_wait_is_within_the_scale(trace_of):
    from fluxsched.sim.plots import draw

    trace = trace_of((0, 900, 900, 2), (0, 900, 900, 2), (0, 900, 900, 2))
    results = [run(trace, policy, procs=procs) for policy, procs in (("fifo", 6), ("easy", 2))]
    sizes = [axes for axes in draw(trace, results).axes if axes.get_ylabel().startswith("wait [s]")]
    assert len(sizes) == 2
    assert [max(result.wait) for result in results] == [0.0, 1800.0]
    assert all(low < 0 and high > 1.5 * 1800 for low, high in [axes.get_ylim() for axes in sizes])


def test_labels_are_what_curves_are_called(study, trace_of):
    from fluxsched.sim.plots import draw

    trace = trace_of((0, 10, 10, 2))
    figure = draw(trace, [run(trace, "fifo", procs=2, label="as it was")])
    legend = figure.legends[0]
    assert legend.get_texts()[0].get_text() == "as it was"


def test_what_does_not_fit_is_left_out_and_named(study, trace_of, monkeypatch):
    from fluxsched.sim import plots
    from fluxsched.sim.plots import GANTTS_MAX, POLICIES_MAX, draw

    trace = trace_of((0, 10, 10, 2), (1, 5, 5, 2))
    results = [run(trace, "fifo", procs=2, label=f"run {at}", placements=True) for at in range(POLICIES_MAX + 1)]
    figure = draw(trace, results)
    labels = [axes.get_ylabel() for axes in figure.axes]
    assert (labels.count("cores in use"), labels.count("target")) == (POLICIES_MAX, GANTTS_MAX)
    charted = ", ".join(f"run {at}" for at in range(GANTTS_MAX, POLICIES_MAX + 1))
    assert figure.get_supxlabel() == f"Left out: panels of run {POLICIES_MAX}; jobs on targets of {charted}."
    monkeypatch.setattr(plots, "USERS_DRAWN_MAX", 3)
    monkeypatch.setattr(plots, "BARS_MAX", 59)
    users = len(set(study[1][0].jobs.user))
    assert list(plots.left_out(study[1])) == [
        "1 jobs of fifo with least core seconds", "1 jobs of firstfit with least core seconds",
        f"{users - 3} of {users} users, who used least",
    ]  # fmt: skip


def test_times_at_which_a_part_cannot_be_used_are_shaded_in_every_chart_over_time(tmp_path, trace_of):
    from fluxsched.sim.plots import draw, reduced_times

    (tmp_path / "site").write_text(
        '{"at": "1h", "do": "outage", "targets": "3", "for": "1h"}\n{"at": "3h", "do": "offline", "targets": "2"}\n'
    )
    trace = trace_of((0, 14_400, 14_400, 2))
    result = run(trace, procs=4, placements=True, site=tmp_path / "site")
    assert list(reduced_times(result, result.end_s)) == [(3600.0, 7200.0), (10_800.0, result.end_s)]
    over_time = [axes for axes in draw(trace, [result]).axes if axes.get_xlabel() == "hours"]
    assert [len(axes.patches) for axes in over_time] == [2, 2, 2]


def test_jobs_have_the_colours_of_their_waits_and_edges_while_these_can_be_told_apart(study, monkeypatch):
    from matplotlib.colors import to_hex

    from fluxsched.sim import plots
    from fluxsched.sim.plots import draw

    def jobs(edges_max):
        monkeypatch.setattr(plots, "EDGES_MAX", edges_max)
        axes = next(axes for axes in draw(*study).axes if axes.get_ylabel() == "target")
        bars = axes.collections[0]
        assert axes.yaxis_inverted()  # the first target is on top, as on the page
        return {to_hex(colour) for colour in bars.get_facecolor()}, len(bars.get_edgecolor())

    colours, edged = jobs(10_000)
    assert colours == {plots.wait_colour(wait_s) for wait_s in study[1][0].wait}
    assert len(colours) > 1
    assert (edged > 0, jobs(1)[1]) == (True, 0)


def test_names_of_many_classes_are_slanted(figure):
    from fluxsched.sim.plots import NAMES_LEVEL_MAX, USERS_DRAWN_MAX

    sizes, users = (next(a for a in figure.axes if a.get_xlabel() == name) for name in ("cores of the job", "user"))
    assert len(sizes.get_xticklabels()) <= NAMES_LEVEL_MAX < len(users.get_xticklabels()) == USERS_DRAWN_MAX
    assert [axes.get_xticklabels()[0].get_rotation() for axes in (sizes, users)] == [0, 40]


def test_of_many_jobs_those_around_the_longest_queue_are_on_the_chart_of_targets(study, monkeypatch):
    from fluxsched.sim import plots

    monkeypatch.setattr(plots, "GANTT_JOBS_MAX", 10)
    trace, results = study
    begin, end = plots.window_of(results[0], plots.TimeScale.of(results))[3:1:-1]
    assert 10 <= sum(begin <= start <= end for start in results[0].jobs.start) < 20  # some start at once
    targets = [axes for axes in plots.draw(trace, results).axes if axes.get_ylabel() == "target"]
    assert all(axes.get_title(loc="left").startswith(("fifo: ", "firstfit: ")) for axes in targets)
    assert len({axes.get_xlim() for axes in targets}) == 1
    assert "around the longest queue" in " ".join(plots.left_out(results))
