"""Requests of jobs: counts and ranges, and their text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core import request
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.request import COUNT_MAX, Count, asked_text
from fluxsched.errors import InvalidValue, LimitExceeded

counts = st.one_of(
    st.integers(1, COUNT_MAX).map(Count.fixed),
    st.tuples(st.integers(1, 500), st.integers(0, 500), st.integers(1, 9)).map(
        lambda t: Count.parse({"min": t[0], "max": t[0] + t[1], "operand": t[2], "operator": "+"})
    ),
    st.tuples(st.integers(2, 50), st.sampled_from("*^"), st.integers(2, 9)).map(
        lambda t: Count.parse({"min": t[0], "operand": t[2], "operator": t[1]})
    ),
    st.sets(st.integers(1, 99), min_size=1).map(lambda found: Count.parse(",".join(map(str, sorted(found))))),
)


@settings(max_examples=100)
@given(counts)
def test_counts_parse_what_they_print(count: Count) -> None:
    assert Count.parse(str(count)) == count
    assert Count.parse(count.to_json()) == count


@settings(max_examples=100)
@given(counts, st.integers(0, 2000))
def test_largest_is_the_last_value_that_fits(count: Count, limit: int) -> None:
    values = list(count.values(limit))
    assert values == sorted(set(values))
    assert all(count.min <= value <= limit and value in count for value in values)
    assert count.largest(limit) == (values[-1] if values else None)
    assert bool(values) == (count.min <= limit)


@settings(max_examples=60)
@given(counts, st.integers(0, 600))
def test_after_is_the_value_that_follows(count: Count, at: int) -> None:
    values = [value for value in count.values(4000) if value > at]
    following = count.after(at)
    if values:
        assert following == values[0]
    else:
        assert following is None or following > 4000


@pytest.mark.parametrize(
    ("obj", "values"),
    [
        (3, [3]),
        ("3", [3]),
        ("2-5", [2, 3, 4, 5]),
        ("[2-5]", [2, 3, 4, 5]),
        ("2+", list(range(2, 21))),
        ("2-9:3", [2, 5, 8]),
        ("2+:3:+", [2, 5, 8, 11, 14, 17, 20]),
        ("2-16:2:*", [2, 4, 8, 16]),
        ("2+:2:^", [2, 4, 16]),
        ("4,9,16,25", [4, 9, 16]),  # RFC 14, use case 1.8
        ("[4,9]", [4, 9]),
        ({"min": 3, "max": 30, "operator": "+", "operand": 1}, list(range(3, 21))),  # RFC 14, use case 1.2
        ({"min": 18}, [18, 19, 20]),
        ({"min": 5, "max": 5, "operator": "*", "operand": 2}, [5]),
    ],
)
def test_count_values_up_to_20(obj: Any, values: list[int]) -> None:
    assert list(Count.parse(obj).values(20)) == values


def test_huge_counts_are_never_expanded() -> None:
    assert Count.parse(f"1-{COUNT_MAX}").largest(10**9) == COUNT_MAX
    assert Count.parse("1+").largest(10**12) == 10**12
    assert Count.parse({"min": COUNT_MAX, "operator": "^", "operand": COUNT_MAX}).largest(10**12) == COUNT_MAX
    assert Count.parse({"min": 1, "operator": "*", "operand": 2}).largest(10**12) == 1 << 39


@pytest.mark.parametrize(
    ("obj", "text"),
    [
        (1.0, "count must be an integer, a range or an object with min, not a number"),
        (None, "not null"),
        ("", "must list numbers of 1 or more"),
        ("0-3", "must list numbers of 1 or more"),
        ("5-2", "max 2 is less than min 5"),
        ("2-8:2:-", "is not a range"),
        ("2:3", "is not a range"),
        ("[2-8", r"'\[2-8' is neither an id nor a range"),
        ("1-8:1:*", r"operand must be 2 or more with the operator '\*', not 1"),
        ("1-8:2:^", r"min must be 2 or more with the operator '\^', not 1"),
        ({}, "a range needs min"),
        ({"min": 0}, "min must be 1 or more, not 0"),
        ({"min": "1"}, "min must be an integer, not a string"),
        ({"min": 2, "max": 1}, "max 1 is less than min 2"),
        ({"min": 2, "operator": "+"}, "operator and operand come together"),
        ({"min": 2, "operator": "-", "operand": 1}, "operator must be"),
        ({"min": 2, "operator": ["+"], "operand": 1}, "operator must be"),
        ({"min": 2, "step": 1}, "unknown step"),
    ],
)
def test_counts_refused(obj: Any, text: str) -> None:
    with pytest.raises(InvalidValue, match=text):
        Count.parse(obj)


def test_a_list_of_counts_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "LISTED_MAX", 2)
    with pytest.raises(LimitExceeded, match="lists 3 numbers: the limit is 2"):
        Count.parse("1,4,9")


# What a job asked for whose size is not fixed, in words.


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"nodes": "1-4", "elastic": True}, "1-4 nodes, elastic"),
        ({"nodes": "2-6:2"}, "2-6:2 nodes"),
        ({"nodes": 3, "max_hops": 2}, "3 nodes, at most 2 hops"),
        ({"nodes": 3}, ""),
        ({"ntasks": 5}, ""),
    ],
)
def test_of_one_part(asked: dict[str, Any], text: str) -> None:
    assert asked_text(Jobspec.from_command(["true"], **asked).request) == text


def test_of_several_parts() -> None:
    nodes = [
        {"type": "node", "count": count, "exclusive": True, "with": [
            {"type": "slot", "count": 1, "label": label, "with": [{"type": "core", "count": 1}]}]}
        for label, count in (("lead", 1), ("work", {"min": 4, "max": 10, "operator": "+", "operand": 1}))
    ]  # fmt: skip
    tasks = [{"command": ["x"], "slot": label, "count": {"per_slot": 1}} for label in ("lead", "work")]
    system = {"duration": 0.0, "fluxsched": {"elastic": True}}
    spec = {"version": 999, "resources": nodes, "tasks": tasks, "attributes": {"system": system}}
    assert asked_text(Jobspec.parse(spec).request) == "lead:1 work:4-10 nodes, elastic"
