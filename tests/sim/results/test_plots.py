"""Plots: each format is what it says, says the same each time, and needs no other file."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fluxsched.errors import InvalidValue
from fluxsched.sim import Trace, generate, run
from fluxsched.sim.results.plots import check_path, plot


@pytest.fixture(scope="module")
def study():
    pytest.importorskip("matplotlib", reason="plots are an extra: fluxsched[plots]")
    trace = generate(jobs=60, procs=16, seed=1, load=1.0)
    return trace, [run(trace, policy, placements=True) for policy in ("fifo", "firstfit")]


@pytest.mark.parametrize(("name", "begins"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml")])
def test_formats(study, tmp_path: Path, name: str, begins: bytes) -> None:
    plot(*study, tmp_path / name)
    first = (tmp_path / name).read_bytes()
    assert first.startswith(begins)
    plot(*study, tmp_path / name)
    assert (tmp_path / name).read_bytes() == first


def test_a_drawing_has_texts_that_can_be_searched(study, tmp_path: Path) -> None:
    plot(*study, tmp_path / "a.svg")
    root = ElementTree.fromstring((tmp_path / "a.svg").read_text())
    words = {node.text for node in root.iter() if node.text}
    assert {"cores in use", "jobs waiting", "cores of the job", "fifo", "firstfit", "target"} <= words


def test_accounts_have_a_panel_where_they_are_known(study) -> None:
    from fluxsched.sim.results.plots import ACCOUNTS_DRAWN_MAX, draw

    trace, (plain, _) = study
    named = Trace.of([job._replace(user=f"user{at}") for at, job in enumerate(trace.jobs)], machine=trace.machine)
    figure = draw(named, [plain, run(named, "fifo", accounts=True)])
    (panel,) = [axes for axes in figure.axes if axes.get_ylabel() == "usage, share"]
    drawn = [text.get_text() for text in panel.get_legend().get_texts()]
    assert len(drawn) == min(ACCOUNTS_DRAWN_MAX, len(trace.jobs))
    assert all(name.startswith("default/user") for name in drawn)


def test_nothing_to_draw_draws_empty_axes(study, tmp_path: Path, trace_of) -> None:
    trace = trace_of((0, 1, 1, 9))
    plot(trace, [run(trace, procs=2)], tmp_path / "a.svg")


def test_time_is_drawn_up_to_where_it_ended(study, trace_of) -> None:
    from fluxsched.sim.results.plots import draw

    trace = trace_of((0, 9000, 9000, 2))
    figure = draw(trace, [run(trace, procs=2, until_s=3600, placements=True)])
    assert [axes.get_xlim() for axes in (figure.axes[0], figure.axes[1], figure.axes[-1])] == [(0.0, 1.0)] * 3
    (jobs,) = figure.axes[-1].collections
    assert jobs.get_paths()[0].get_extents().xmax == 1.0


def test_without_matplotlib_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluxsched.sim.results.plots.find_spec", lambda name: None)
    with pytest.raises(InvalidValue, match=r"pip install 'fluxsched\[plots\]'"):
        check_path(Path("a.png"))


def test_matplotlib_is_not_imported_to_simulate() -> None:
    import subprocess

    code = "import sys, fluxsched.sim.commands; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_legends_are_beside_the_data_and_policies_in_panels_of_their_own(study) -> None:
    from fluxsched.sim.results.plots import draw

    trace, results = study
    figure = draw(trace, results)
    figure.draw_without_rendering()
    assert [axes.get_legend() for axes in figure.axes] == [None] * len(figure.axes)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["fifo", "firstfit", "usable"]
    left = legend.get_window_extent().x0
    assert max(axes.get_window_extent().x1 for axes in figure.axes) <= left
    panels = [axes for axes in figure.axes if axes.get_ylabel() in ("cores in use", "jobs waiting")]
    assert [axes.get_title(loc="left") for axes in panels] == ["fifo", "firstfit"] * 2
    assert len({axes.get_ylim() for axes in panels[:2]}) == 1  # to the same scale
    assert all(axes.get_ylabel() for axes in figure.axes)


def test_a_later_policy_with_a_longer_queue_fits_its_panel(study, trace_of) -> None:
    from fluxsched.sim.results.plots import draw

    trace = trace_of((0, 90, 90, 1), (0, 90, 90, 2), (1, 5, 5, 1), (1, 5, 5, 1), (1, 5, 5, 1))
    results = [run(trace, policy, procs=2) for policy in ("firstfit", "fifo")]
    longest = [result.summary.queue_max for result in results]
    assert longest[0] < longest[1]
    panels = [axes for axes in draw(trace, results).axes if axes.get_ylabel() == "jobs waiting"]
    assert all(bottom == 0.0 and top >= max(longest) for bottom, top in [axes.get_ylim() for axes in panels])


def test_the_longest_wait_is_within_the_scale(trace_of) -> None:
    from fluxsched.sim.results.plots import draw

    trace = trace_of((0, 900, 900, 2), (0, 900, 900, 2), (0, 900, 900, 2))
    results = [run(trace, policy, procs=procs) for policy, procs in (("fifo", 6), ("easy", 2))]
    sizes = [axes for axes in draw(trace, results).axes if axes.get_ylabel() == "wait [s]"]
    assert [max(result.wait) for result in results] == [0.0, 1800.0]
    assert all(low < 0 and high > 1.5 * 1800 for low, high in [axes.get_ylim() for axes in sizes])


def test_labels_are_what_curves_are_called(study, trace_of) -> None:
    from fluxsched.sim.results.plots import draw

    trace = trace_of((0, 10, 10, 2))
    figure = draw(trace, [run(trace, "fifo", procs=2, label="as it was")])
    (legend,) = figure.legends
    assert legend.get_texts()[0].get_text() == "as it was"


def test_many_policies_take_more_rows(study, trace_of) -> None:
    from fluxsched.sim.results.plots import SIZES_A_ROW, draw

    trace = trace_of((0, 10, 10, 2), (1, 5, 5, 2))
    results = [run(trace, "fifo", procs=2, label=f"run {at}") for at in range(SIZES_A_ROW + 1)]
    sizes = [axes for axes in draw(trace, results).axes if axes.get_xlabel() == "cores of the job"]
    assert len(sizes) == len(results)
