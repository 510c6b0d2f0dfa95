"""Bars and their sums: nothing is lost in between, and nothing grows without bound."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.views.timeline import (
    BARS_MAX,
    ENDED,
    FORECAST,
    OUTAGE_SPANS_MAX,
    RESERVED,
    ROWS_MAX,
    RUNNING,
    STEPS_MAX,
    BarSize,
    JobBar,
    TimeWindow,
    drain_spans,
    drawn,
    ended_bar,
    outage_spans,
    planned_bar,
    running_bar,
    split_evenly,
    summed,
)

TARGETS, CORES = 200, 4
MACHINE = ResourceSet.parse({
    "version": 1,
    "execution": {
        "R_lite": [{"rank": f"0-{TARGETS - 1}", "children": {"core": f"0-{CORES - 1}"}}],
        "nodelist": [f"n[0-{TARGETS - 1}]"],
    },
})  # fmt: skip
WINDOW = TimeWindow(1000.0, 1000.0 + STEPS_MAX, MACHINE.ranks)


def bar(jobid: int, ranks: str, start_s: float, end_s: float | None, kind: str = RUNNING, ncores: int = 4) -> JobBar:
    return JobBar(jobid, Idset.parse(ranks), start_s, end_s, kind, ncores, 0, "batch", "solve")


def test_bars_are_drawn_as_they_are_while_they_are_few() -> None:
    found = drawn([bar(1, "0-1", 990.0, 1010.0), bar(2, "5", 10.0, 20.0), bar(3, "7", 1100.0, None)], WINDOW, MACHINE)
    assert found["rows"] is None
    assert [one[0] for one in found["bars"]] == ["ƒ2", "ƒ4"]
    assert found["bars"][0] == ["ƒ2", "0-1", 990.0, 1010.0, "running", 4, "root", "batch", "solve"]
    assert found["bars"][1][3] is None


def test_more_bars_than_a_viewer_gets_are_sums_and_what_is_to_come_stays() -> None:
    many = [bar(jobid, str(jobid % TARGETS), 1000.0 + jobid % 7, 1100.0) for jobid in range(BARS_MAX + 1)]
    coming = [bar(9999, "3-4", 1120.0, 1130.0, RESERVED)]
    found = drawn([*many, *coming], WINDOW, MACHINE)
    assert [one[4] for one in found["bars"]] == ["reserved"]
    assert len(found["rows"]) <= ROWS_MAX
    assert all(len(row["steps"]) <= STEPS_MAX for row in found["rows"])
    assert sum(row["cores"] for row in found["rows"]) == TARGETS * CORES
    assert drawn(many, WINDOW, MACHINE, bars_max=BARS_MAX + 1)["rows"] is None


bars = st.lists(
    st.tuples(
        st.sets(st.integers(0, TARGETS - 1), min_size=1, max_size=5),
        st.integers(900, 1000 + STEPS_MAX - 1),
        st.integers(1, 300) | st.none(),
    ),
    max_size=12,
)


@pytest.mark.slow
@settings(max_examples=40)
@given(bars)
def test_sums_have_the_core_seconds_of_their_bars(jobs: list[tuple[set[int], int, int | None]]) -> None:
    many = [
        JobBar(
            jobid, Idset.of(ranks), float(start), None if took is None else float(start + took), RUNNING, 3, 0, "", ""
        )
        for jobid, (ranks, start, took) in enumerate(jobs)
    ]
    ends = [WINDOW.end_s if one.end_s is None else min(one.end_s, WINDOW.end_s) for one in many]
    wanted = sum(3 * max(0.0, end - max(one.start_s, 1000.0)) for one, end in zip(many, ends, strict=True))
    held = 0.0
    for row in summed(many, WINDOW, MACHINE):
        times = [time_s for time_s, _ in row["steps"]] + [WINDOW.end_s]
        held += sum(cores * (after - at) for (at, cores), after in zip(row["steps"], times[1:], strict=True))
    assert held == pytest.approx(wanted, abs=0.01 * STEPS_MAX * 12)


def test_a_job_that_has_grown_and_shrunk_is_where_it_was_when() -> None:
    begin_s = WINDOW.begin_s
    job = bar(1, "0-1", begin_s, None, ncores=8)._replace(before=(BarSize(Idset.parse("3"), begin_s + 10, 4),))
    first, _, _, fourth = summed([job], WINDOW._replace(ranks=Idset.parse("0-3")), MACHINE)
    assert first["steps"] == [[begin_s, 0.0], [begin_s + 10, 4.0]]
    assert fourth["steps"] == [[begin_s, 4.0], [begin_s + 10, 0.0]]
    assert drawn([job], WINDOW._replace(ranks=Idset.parse("3")), MACHINE)["bars"][0][9] == [["3", begin_s + 10, 4]]
    assert drawn([job], WINDOW._replace(ranks=Idset.parse("2")), MACHINE)["bars"] == []


def test_131072_targets_are_as_many_rows_as_a_screen_shows() -> None:
    parts = split_evenly(Idset.span(0, 131_071), ROWS_MAX)
    assert len(parts) == ROWS_MAX
    assert {len(part) for part in parts} == {2048}
    assert split_evenly(Idset(), ROWS_MAX) == []


def test_bars_of_what_an_instance_answers() -> None:
    assert running_bar([7, "0,3", 5.0, 0.0, 8, 0, "", "x", []]).end_s is None
    info = {"id": 7, "userid": 0, "name": "x", "queue": None, "ranks": "0-1", "ncores": 2, "t_run": 1.0}
    promised, forecast = (planned_bar([7, 9.0, 0.0, None, 1, 4, is_so], info) for is_so in (True, False))
    assert (promised.kind, forecast.kind, promised.ranks) == (RESERVED, FORECAST, None)
    ended = ended_bar({**info, "t_cleanup": 4.0})
    assert ended is not None
    assert (ended.kind, ended.end_s) == (ENDED, 4.0)
    assert ended_bar({"id": 7, "t_inactive": 1.0}) is None
    resized = ended_bar({**info, "t_cleanup": 4.0, "sizes": [("", 2.0, 0), ("0-3", 3.0, 4)]})
    assert resized is not None
    assert resized.body()[9:] == [[["", 2.0, 0], ["0-3", 3.0, 4]]]
    assert [(str(ranks), *size) for ranks, *size in resized.each_size] == [("0-3", 2.0, 3.0, 4), ("0-1", 3.0, 4.0, 2)]


def test_drains_and_planned_outages_are_spans() -> None:
    """Parts of targets are none, since the rest is in use; an outage that is on begins now."""
    row = {"targets": "3", "parts": "", "state": "drained", "timestamp": 2.0, "reason": "fan"}
    assert drain_spans([row, {**row, "parts": "cores 4-7"}]) == [["3", "drained", 2.0, None, "fan"]]
    daily = {"name": "upd", "targets": "0-1", "from": 5.0, "until": 15.0, "every": 100.0, "reason": "firmware"}
    note = "outage upd: firmware"
    assert outage_spans([daily, {**daily, "name": "far", "from": 900.0, "until": 950.0}], 10.0, 210.0) == [
        ["0-1", "planned", 10.0, 15.0, note], ["0-1", "planned", 105.0, 115.0, note],
        ["0-1", "planned", 205.0, 215.0, note],
    ]  # fmt: skip
    endless = outage_spans([{**daily, "every": 10.0}], 10.0, 1e9)
    assert (len(endless), endless[-1][3]) == (OUTAGE_SPANS_MAX, 5.0 + 10.0 * OUTAGE_SPANS_MAX)
