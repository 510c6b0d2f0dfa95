"""Constraints against RFC 31 and queries against RFC 35; set algebra against a judge of single ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.constraint import (
    DEPTH_MAX,
    EVERYTHING,
    NESTING_MAX,
    TERMS_MAX,
    TEXT_CHARS_MAX,
    WEIGHT_MAX,
    Constraint,
    parse_constraint_text,
    parse_query,
)
from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import EMPTY, ID_MAX, Idset
from fluxsched.errors import InvalidValue, LimitExceeded
from tests.generated.share import examples

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "rfc31_constraint.json").read_text(encoding="utf-8"))
RANKS = Idset.parse(VECTORS["resources"]["ranks"])
HOSTS = {host: Idset.parse(ranks) for host, ranks in VECTORS["resources"]["hosts"].items()}
PROPERTIES = {name: Idset.parse(ranks) for name, ranks in VECTORS["resources"]["properties"].items()}


def _match(constraint: Constraint, ranks: Idset = RANKS) -> Idset:
    return constraint.match(ranks, PROPERTIES, lambda host: HOSTS.get(host, EMPTY))


def _judge(obj: dict[str, Any], rank: int) -> bool:
    """RFC 31 in the words of the RFC, for one rank."""
    has: dict[str, Callable[[Any], bool]] = {
        "properties": lambda name: (name.lstrip("^") in _properties_of(rank)) != name.startswith("^"),
        "hostlist": lambda text: any(rank in HOSTS.get(host, EMPTY) for host in Hostlist.parse(text)),
        "ranks": lambda text: rank in Idset.parse(text),
    }
    for operator, values in obj.items():
        if operator in ("and", "properties"):
            true = all(_judge(v, rank) if operator == "and" else has[operator](v) for v in values)
        elif operator == "not":
            true = not all(_judge(v, rank) for v in values)
        elif operator == "or":
            true = not values or any(_judge(v, rank) for v in values)
        else:
            true = any(has[operator](v) for v in values)
        if not true:
            return False
    return True


def _properties_of(rank: int) -> set[str]:
    literal = {name for name, ranks in PROPERTIES.items() if rank in ranks}
    return literal | {name.split("@")[0] for name in literal}


QUERY_WORDS = ["a", "and", "or", "not", "(", ")", "-b", "rank:0"]
leaves = (
    st.builds(dict, properties=st.lists(st.sampled_from(["ssd", "^ssd", "huge", "mi50", "^mi50", "x"]), max_size=3))
    | st.builds(dict, hostlist=st.lists(st.sampled_from(["host0", "host[1-4]", "none", ""]), max_size=2))
    | st.builds(dict, ranks=st.lists(st.sampled_from(["", "0", "1-3", "5,9"]), max_size=2))
    | st.just({})
)
objects = st.recursive(
    leaves,
    lambda inner: st.dictionaries(st.sampled_from(["and", "or", "not"]), st.lists(inner, max_size=3), max_size=2),
    max_leaves=8,
)


@pytest.mark.parametrize(("obj", "expected"), VECTORS["match"], ids=str)
def test_match(obj: dict[str, Any], expected: str) -> None:
    assert str(_match(Constraint.parse(obj))) == expected


@pytest.mark.parametrize(("obj", "named"), VECTORS["invalid"], ids=str)
def test_invalid_objects_are_refused_and_the_part_named(obj: object, named: str) -> None:
    with pytest.raises(InvalidValue, match="constraint") as caught:
        Constraint.parse(obj)
    assert named in str(caught.value)


@pytest.mark.parametrize(("obj", "text"), VECTORS["printed"], ids=str)
def test_print_is_for_people(obj: dict[str, Any], text: str) -> None:
    assert str(Constraint.parse(obj)) == text


@pytest.mark.parametrize("obj", [{}, {"and": []}, {"or": []}], ids=str)
def test_everything_has_one_value(obj: dict[str, Any]) -> None:
    assert Constraint.parse(obj) == EVERYTHING
    assert EVERYTHING.to_json() == {}


@given(objects)
def test_json_round_trip_and_hash(obj: dict[str, Any]) -> None:
    constraint = Constraint.parse(obj)
    again = Constraint.parse(constraint.to_json())
    assert again == constraint
    assert hash(again) == hash(constraint)
    assert str(constraint)


@settings(max_examples=examples(200))
@given(objects, st.sets(st.integers(0, 5)))
def test_algebra_agrees_with_the_judge_of_single_ranks(obj: dict[str, Any], ranks: set[int]) -> None:
    assert set(_match(Constraint.parse(obj), Idset.of(ranks))) == {rank for rank in ranks if _judge(obj, rank)}


def test_depth_is_limited() -> None:
    obj: dict[str, Any] = {"ranks": ["0"]}
    for _ in range(DEPTH_MAX - 1):
        obj = {"not": [obj]}
    assert len(_match(Constraint.parse(obj))) in (1, 5)
    with pytest.raises(LimitExceeded, match=str(DEPTH_MAX)):
        Constraint.parse({"not": [obj]})


def test_size_is_limited() -> None:
    most = {"properties": ["a"] * (TERMS_MAX - 1)}
    assert len(Constraint.parse(most).values) == TERMS_MAX - 1
    with pytest.raises(LimitExceeded, match=str(TERMS_MAX)):
        Constraint.parse({"and": [most]})


def test_weight_is_limited_however_short_the_text() -> None:
    half = f"a[1-{WEIGHT_MAX // 2}]"
    for values in ({"hostlist": [half, half, "b"]}, {"ranks": [str(ID_MAX)] * 33}):
        with pytest.raises(LimitExceeded, match=str(WEIGHT_MAX)):
            Constraint.parse(values)


@pytest.mark.parametrize("obj", [{"ranks": ["0-4000000000"]}, {"hostlist": ["a[0-999999999]"]}], ids=str)
def test_bombs_are_refused_with_their_place(obj: dict[str, Any]) -> None:
    with pytest.raises(LimitExceeded, match=r"constraint\.\w+\[0\]: "):
        Constraint.parse(obj)


@pytest.mark.parametrize(("text", "obj"), VECTORS["queries"])
def test_queries_compile_to_json(text: str, obj: dict[str, Any]) -> None:
    assert parse_query(text) == obj
    assert parse_constraint_text(text) == Constraint.parse(obj)


@pytest.mark.parametrize(("text", "named"), VECTORS["bad_queries"])
def test_bad_queries_are_refused_and_the_place_named(text: str, named: str) -> None:
    with pytest.raises(InvalidValue, match="constraint") as caught:
        parse_constraint_text(text)
    assert named in str(caught.value)


@pytest.mark.parametrize("prefix", ["(", "!", "not "])
def test_nesting_of_queries_is_limited(prefix: str) -> None:
    suffix = ")" if prefix == "(" else ""
    assert parse_query(prefix * NESTING_MAX + "a" + suffix * NESTING_MAX)
    with pytest.raises(LimitExceeded, match=str(NESTING_MAX)):
        parse_query(prefix * (NESTING_MAX + 1) + "a" + suffix * (NESTING_MAX + 1))


def test_length_of_queries_is_limited() -> None:
    with pytest.raises(LimitExceeded, match=str(TEXT_CHARS_MAX)):
        parse_query("a" * (TEXT_CHARS_MAX + 1))


@settings(max_examples=examples(200))
@given(st.text("ab :|&!()-'\",[0", max_size=12) | st.lists(st.sampled_from(QUERY_WORDS)).map(" ".join))
def test_any_query_is_parsed_or_politely_refused(text: str) -> None:
    try:
        constraint = parse_constraint_text(text)
    except InvalidValue:
        return
    assert Constraint.parse(constraint.to_json()) == constraint
