"""Durations against RFC 23, and the law that printing is exact."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fluxsched.core.quantities import (
    DOUBLINGS_KEPT,
    TEXT_CHARS_MAX,
    doubled_s,
    format_duration,
    parse_duration,
    rough_duration,
)
from fluxsched.errors import InvalidValue, LimitExceeded

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "rfc23_duration.json").read_text(encoding="utf-8"))


def _seconds(value: float | None) -> float:
    return math.inf if value is None else float(value)


@pytest.mark.parametrize(("text", "expected_s"), VECTORS["rfc"] + VECTORS["more"])
def test_parse(text: str, expected_s: float | None) -> None:
    assert parse_duration(text) == _seconds(expected_s)


@pytest.mark.parametrize("text", VECTORS["invalid"])
def test_invalid_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="unit of ms, s, m, h, d"):
        parse_duration(text)


@pytest.mark.parametrize("value", [*VECTORS["too_large"], 10**400])
def test_beyond_a_double_is_refused(value: str | int) -> None:
    with pytest.raises(LimitExceeded, match="infinity"):
        parse_duration(value)


@pytest.mark.parametrize("value", [-1, -0.5, math.nan, -math.inf, True, None, b"1", "1" * (TEXT_CHARS_MAX + 1)])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(InvalidValue, match="duration"):
        parse_duration(value)


@pytest.mark.parametrize(("duration_s", "text"), VECTORS["printed"])
def test_print(duration_s: float | None, text: str) -> None:
    assert format_duration(_seconds(duration_s)) == text


@pytest.mark.parametrize("duration_s", [-1.0, math.nan])
def test_only_durations_are_printed(duration_s: float) -> None:
    with pytest.raises(InvalidValue):
        format_duration(duration_s)


seconds = st.integers(0, 10**7).map(float)
milliseconds = st.integers(0, 10**6).map(lambda ms: ms / 1000)


@example(1.7976930000000002e308)  # rounding to six digits overflows
@given(st.floats(0, allow_nan=False) | seconds | milliseconds)
def test_parse_undoes_print(duration_s: float) -> None:
    assert parse_duration(format_duration(duration_s)) == duration_s
    assert parse_duration(duration_s) == duration_s


def test_a_pause_doubles_up_to_its_maximum_however_many_failures_there_were() -> None:
    pauses_s = [doubled_s(0.5, failures, 30.0) for failures in (0, 1, 5, 6, DOUBLINGS_KEPT, 10_000)]
    assert pauses_s == [0.5, 1, 16, 30, 30, 30]


def test_times_in_errors_have_no_more_digits_than_people_say() -> None:
    shown = [rough_duration(duration_s) for duration_s in (-1.0, 0.123, 59.98, 3597.9, 7163.0, 86399.0)]
    assert shown == ["0s", "0.12s", "1m", "1h", "119m", "1d"]
