"""Idset against RFC 22's words and against Python's own sets."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core import idset
from fluxsched.core.idset import CACHED_TEXTS_MAX, EMPTY, ID_MAX, Idset
from fluxsched.errors import InvalidValue, LimitExceeded
from tests.generated.share import examples

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "rfc22_idset.json").read_text(encoding="utf-8"))

small = st.sets(st.integers(0, 300), max_size=60)
sparse = st.sets(st.integers(0, 70_000), max_size=40)
ids = small | sparse


@pytest.mark.parametrize(("text", "expected"), VECTORS["valid"])
def test_parse_gives_the_ids(text: str, expected: list[int]) -> None:
    assert list(Idset.parse(text)) == expected


@pytest.mark.parametrize(("text", "expected"), VECTORS["canonical"])
def test_print_is_canonical(text: str, expected: str) -> None:
    assert str(Idset.parse(text)) == expected


@pytest.mark.parametrize(("text", "named"), VECTORS["invalid"])
def test_invalid_text_is_refused_and_the_part_named(text: str, named: str) -> None:
    with pytest.raises(InvalidValue, match="idset") as caught:
        Idset.parse(text)
    assert named in str(caught.value)


def test_a_fault_deep_in_a_long_text_is_named() -> None:
    good = ",".join(str(2 * i) for i in range(1000))
    assert len(Idset.parse(good)) == 1000
    for tail, named in ((",7", "'7' does not come after 1998"), (",3000-", "'3000-'"), (",x", "'x'"), (",02", "'02'")):
        with pytest.raises(InvalidValue, match=named):
            Idset.parse(good + tail)


@pytest.mark.parametrize("text", VECTORS["too_large"])
def test_ids_above_the_limit_are_refused_not_expanded(text: str) -> None:
    with pytest.raises(LimitExceeded, match=str(ID_MAX)):
        Idset.parse(text)


@pytest.mark.parametrize("thing", [None, 3, b"1", ["1"]])
def test_only_text_is_parsed(thing: object) -> None:
    with pytest.raises(InvalidValue, match="string"):
        Idset.parse(thing)


def test_limits_of_the_other_constructors() -> None:
    assert Idset.of([ID_MAX]).max() == Idset.span(ID_MAX, ID_MAX).max() == Idset(1 << ID_MAX).max() == ID_MAX
    above = ID_MAX + 1
    too_large: tuple[Callable[[], Idset], ...] = (
        lambda: Idset.of([0, above]), lambda: Idset.one(above), lambda: Idset.span(0, above), lambda: Idset(1 << above),
    )  # fmt: skip
    for build in too_large:
        with pytest.raises(LimitExceeded, match=str(ID_MAX)):
            build()
    negative: tuple[Callable[[], Idset], ...] = (
        lambda: Idset.of([-1, 0]), lambda: Idset.one(-1), lambda: Idset.span(3, 2), lambda: Idset.span(-1, 2),
        lambda: Idset(-1),
    )  # fmt: skip
    for wrong in negative:
        with pytest.raises(InvalidValue):
            wrong()


def test_empty() -> None:
    assert not EMPTY
    assert (len(EMPTY), str(EMPTY), list(EMPTY), list(EMPTY.runs())) == (0, "", [], [])
    assert Idset.of([]) == Idset.parse("[]") == EMPTY
    with pytest.raises(ValueError, match="empty"):
        EMPTY.min()
    with pytest.raises(ValueError, match="empty"):
        EMPTY.max()
    with pytest.raises(IndexError):
        EMPTY.nth(0)


def test_hashable_picklable() -> None:
    value = Idset.parse("1-3")
    assert {value: 1}[Idset.of([3, 2, 1, 1])] == 1
    assert pickle.loads(pickle.dumps(value)) == value
    assert repr(value) == "Idset.parse('1-3')"


def test_membership_of_odd_ids() -> None:
    value = Idset.parse("0,5")
    assert 5 in value
    assert -1 not in value
    assert 10**12 not in value
    assert value.index(10**12) == 2
    assert value.index(-5) == 0
    assert value.first(10**12) == value


@given(st.integers(0, 300), small)
def test_a_set_of_one_id_is_the_same_as_by_its_mask(id: int, others: set[int]) -> None:
    one, same, other = Idset.one(id), Idset(1 << id), Idset.of(others)
    assert one == same == Idset.of([id]) == Idset.parse(str(id)) == pickle.loads(pickle.dumps(one))
    assert (hash(one), one.mask, len(one), bool(one)) == (hash(same), same.mask, 1, True)
    assert (one.min(), one.max(), one.single(), one.nth(0), one.index(id + 1)) == (id, id, id, id, 1)
    assert (list(one), list(one.runs()), str(one)) == ([id], [(id, id)], str(id))
    assert (one | other, one & other, one - other, one ^ other) == (
        same | other, same & other, same - other, same ^ other,
    )  # fmt: skip
    assert (other | one, other & one, other - one) == (other | same, other & same, other - same)
    assert (one <= other, one < other, one == other) == (same <= other, same < other, same == other)
    assert (other <= one, other < one, other == one) == (other <= same, other < same, other == same)
    assert one.isdisjoint(other) == other.isdisjoint(one) == (id not in others)
    assert [one.first(count) for count in (0, 1, 2)] == [EMPTY, one, one]


def test_large_sets_stay_linear() -> None:
    every_second = Idset.of(range(0, 20_000, 2))
    text = str(every_second)
    assert text.startswith("0,2,4,")
    assert Idset.parse(text) == every_second
    assert len(Idset.span(0, 131_071)) == 131_072
    assert str(Idset.span(0, 131_071)) == "0-131071"


@given(ids)
def test_parse_undoes_print(wanted: set[int]) -> None:
    value = Idset.of(wanted)
    assert list(value) == sorted(wanted)
    assert len(value) == len(wanted)
    assert Idset.parse(str(value)) == value
    assert Idset.parse(f"[{value}]") == value
    assert Idset.parse(",".join(map(str, sorted(wanted)))) == value


@given(ids)
def test_runs_are_maximal_and_ascend(wanted: set[int]) -> None:
    runs = list(Idset.of(wanted).runs())
    assert {id for first, last in runs for id in range(first, last + 1)} == wanted
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(runs))


@given(ids, ids)
def test_algebra_is_that_of_sets_and_leaves_operands_alone(left: set[int], right: set[int]) -> None:
    a, b = Idset.of(left), Idset.of(right)
    masks = a.mask, b.mask
    assert set(a | b) == left | right
    assert set(a & b) == left & right
    assert set(a - b) == left - right
    assert set(a ^ b) == left ^ right
    assert (a <= b, a < b, a == b) == (left <= right, left < right, left == right)
    assert (a >= b, a > b) == (left >= right, left > right)
    assert a.isdisjoint(b) == left.isdisjoint(right)
    assert (a.mask, b.mask) == masks


@given(small, small, small)
def test_set_laws(x: set[int], y: set[int], z: set[int]) -> None:
    a, b, c = Idset.of(x), Idset.of(y), Idset.of(z)
    assert a & (b | c) == (a & b) | (a & c)
    assert a - (b | c) == (a - b) & (a - c)
    assert (a - b) | (a & b) == a
    assert a ^ b == (a | b) - (a & b)
    assert (a & b) <= a <= (a | b)


@given(ids, st.integers(-2, 70))
def test_first_nth_and_index_agree_with_the_sorted_list(wanted: set[int], n: int) -> None:
    value, ordered = Idset.of(wanted), sorted(wanted)
    assert list(value.first(n)) == ordered[: max(n, 0)]
    assert [value.nth(k) for k in range(len(value))] == ordered
    assert [value.index(id) for id in ordered] == list(range(len(ordered)))
    assert value.index(n) == sum(id < n for id in wanted)
    if wanted:
        assert (value.min(), value.max()) == (ordered[0], ordered[-1])


@settings(max_examples=examples(200))
@given(st.text("0123456789,-[] x", max_size=12))
def test_any_text_is_parsed_or_politely_refused(text: str) -> None:
    try:
        value = Idset.parse(text)
    except InvalidValue:
        return
    assert Idset.parse(str(value)) == value
    assert [int(number) for number in text.strip("[]").replace("-", ",").split(",") if number][:1] == list(value)[:1]


def test_texts_are_kept_up_to_a_limit() -> None:
    for id in range(CACHED_TEXTS_MAX + 1):
        Idset.parse(str(id))
    assert idset._parse_cached.cache_info().currsize == CACHED_TEXTS_MAX
