"""The rule of differences: whole and changes, merged or not, are the whole asked anew."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.views.feeds import KEPT_MAX, OUTPUT_CHARS_MAX, after, joined, row_differences, tail
from fluxsched.views.timeline import bar_differences

ids = st.lists(st.sampled_from("abcdef"), unique=True)
lists = ids.flatmap(lambda chosen: st.tuples(*[st.tuples(st.just(jobid), st.integers(0, 2)) for jobid in chosen]))
merges = st.lists(st.booleans(), min_size=8, max_size=8)


def jobs(rows: tuple[tuple[str, int], ...]) -> dict[str, Any]:
    listed = [{"jobid": jobid, "state": state} for jobid, state in rows]
    return {"jobs": listed, "order": [jobid for jobid, _ in rows], "left_out": len(rows) % 2}


def bars(rows: tuple[tuple[str, int], ...]) -> dict[str, Any]:
    return {"bars": [[jobid, "0-3", end] for jobid, end in rows], "now": len(rows)}


def kept(wholes: list[dict[str, Any]], differing: Any, is_read: list[bool]) -> dict[str, Any]:
    """What a viewer has that reads only sometimes."""
    held, waiting = wholes[0], dict[str, Any]()
    for before, now, reads in zip(wholes, wholes[1:], is_read, strict=False):
        waiting = joined(waiting, differing(before, now))
        if reads:
            held, waiting = after(held, waiting), {}
    return after(held, waiting)


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(lists, min_size=1, max_size=8), merges)
def test_lists_of_jobs(history: list[Any], is_read: list[bool]) -> None:
    wholes = [jobs(rows) for rows in history]
    assert kept(wholes, row_differences, is_read) == wholes[-1]


def test_figures_for_a_viewer_that_reads_slowly() -> None:
    """Their `jobs` are counts: merging them as rows ended the viewer's stream."""
    wholes: list[dict[str, Any]] = [{"jobs": {"submitted": number}, "peers": 1} for number in range(4)]
    for is_read in ([True] * 3, [False] * 3, [True, False, False]):
        assert kept(wholes, lambda before, now: {"jobs": now["jobs"]}, is_read) == wholes[-1]


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(lists, min_size=1, max_size=8), merges)
def test_bars_of_a_timeline(history: list[Any], is_read: list[bool]) -> None:
    wholes = [bars(rows) for rows in history]
    found = kept(wholes, bar_differences, is_read)
    assert {**found, "bars": sorted(found["bars"])} == {**wholes[-1], "bars": sorted(wholes[-1]["bars"])}


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.integers(0, OUTPUT_CHARS_MAX)), max_size=6), merges)
def test_output_is_its_end_however_it_came(pieces: list[tuple[str, int]], is_read: list[bool]) -> None:
    said = [[stream, chr(97 + at) * count] for at, (stream, count) in enumerate(pieces)]
    held: dict[str, Any] = {"output": []}
    waiting: dict[str, Any] = {}
    for piece, reads in zip(said, is_read, strict=False):
        waiting = joined(waiting, {"output": [piece]})
        if reads:
            held, waiting = after(held, waiting), {}
    text = "".join(text for _, text in after(held, waiting)["output"])
    assert text == "".join(text for _, text in said)[-OUTPUT_CHARS_MAX:]
    assert tail([["stdout", "x" * (OUTPUT_CHARS_MAX + 5)]]) == [["stdout", "x" * OUTPUT_CHARS_MAX]]


def test_a_partition_is_moved_through_and_other_values_are_replaced() -> None:
    whole = {"states": {"free": "0-3"}, "counts": {"free": 4}}
    change = {"states": {"lost": "1-3"}, "counts": {"free": 1, "lost": 3}}
    assert joined(whole, change) == {"states": {"free": "0", "lost": "1-3"}, "counts": {"free": 1, "lost": 3}}


def test_what_is_appended_is_bounded() -> None:
    merged = joined({"messages": list(range(KEPT_MAX))}, {"messages": [-1, -2]})
    assert merged["messages"] == [*range(2, KEPT_MAX), -1, -2]
