"""Hostlist against RFC 29: all its test vectors, and the law that printing loses nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxsched.core.hostlist import HOST_CHARS_MAX, HOSTS_MAX, Hostlist
from fluxsched.errors import InvalidValue, LimitExceeded

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "rfc29_hostlist.json").read_text(encoding="utf-8"))

# few stems and narrow numbers, so that runs, duplicates and differing widths meet
numbered = st.builds(
    "{}{}{}".format, st.sampled_from(["", "n", "a-1b"]), st.sampled_from(["", "", "0", "00"]), st.integers(0, 12)
)
names = st.lists(numbered | st.sampled_from(["login", "n", "n1-eth0", "n2-eth0", "-", "!"]), max_size=20)


@pytest.mark.parametrize(("text", "expected"), VECTORS["rfc"])
def test_rfc_vectors(text: str, expected: str) -> None:
    hosts = Hostlist.parse(text)
    assert list(hosts) == (expected.split(",") if expected else [])
    assert Hostlist.parse(expected) == hosts
    assert Hostlist.parse(str(hosts)) == hosts


@pytest.mark.parametrize(("text", "expected"), VECTORS["compressed"])
def test_print_compresses_trailing_numbers(text: str, expected: str) -> None:
    assert str(Hostlist.parse(text)) == expected


@pytest.mark.parametrize(("text", "named"), VECTORS["invalid"])
def test_invalid_text_is_refused_and_the_part_named(text: str, named: str) -> None:
    with pytest.raises(InvalidValue, match="hostlist") as caught:
        Hostlist.parse(text)
    assert named in str(caught.value)


@pytest.mark.parametrize("text", VECTORS["too_large"])
def test_bombs_are_refused_not_expanded(text: str) -> None:
    with pytest.raises(LimitExceeded, match=str(HOSTS_MAX)):
        Hostlist.parse(text)


def test_long_names_are_refused() -> None:
    longest = "h" * HOST_CHARS_MAX
    assert Hostlist.parse(longest).hosts == (longest,)
    for text in (longest + "h", longest + "[0-3]", f"a[{'9' * 5000}]", f"[0-1]{longest}", longest + "h,a[0-1]"):
        with pytest.raises(LimitExceeded, match=str(HOST_CHARS_MAX)):
            Hostlist.parse(text)


@pytest.mark.parametrize("thing", [None, 3, ["a"]])
def test_only_text_is_parsed(thing: object) -> None:
    with pytest.raises(InvalidValue, match="string"):
        Hostlist.parse(thing)


@pytest.mark.parametrize("name", ["", "a,b", "a[1]", "a b", "é", "a\n"])
def test_of_takes_names_not_expressions(name: str) -> None:
    with pytest.raises(InvalidValue, match="host name"):
        Hostlist.of(["ok", name])


def test_total_is_limited_when_adding() -> None:
    whole = Hostlist(("a",) * HOSTS_MAX)
    with pytest.raises(LimitExceeded, match=str(HOSTS_MAX)):
        whole + Hostlist(("b",))


def test_sequence_manners() -> None:
    hosts = Hostlist.parse("n[3,1-2],x,n1")
    assert (len(hosts), hosts[0], hosts[-1]) == (5, "n3", "n1")
    assert hosts[1:3] == Hostlist.parse("n[1-2]")
    assert "x" in hosts
    assert "n9" not in hosts
    assert hosts.positions("n1") == (1, 4)
    assert hosts.positions("n9") == ()
    assert str(hosts.unique()) == "n[3,1-2],x"
    assert str(Hostlist.parse("n[10,9,1,09],a").sorted()) == "a,n[1,9],n[09-10]"
    assert hosts + Hostlist() == hosts
    assert not Hostlist()
    assert hash(hosts) == hash(Hostlist.of(list(hosts)))
    assert repr(Hostlist.parse("n1,n2")) == "Hostlist.parse('n[1-2]')"


def test_large_lists_stay_linear() -> None:
    assert str(Hostlist.of([f"node{i:04d}" for i in range(10_001)])) == "node[0000-10000]"
    odd = Hostlist.of([f"node{i}" for i in range(1, 4000, 2)])
    assert Hostlist.parse(str(odd)) == odd


@given(names)
def test_parse_undoes_print(wanted: list[str]) -> None:
    hosts = Hostlist.of(wanted)
    assert list(hosts) == wanted
    assert Hostlist.parse(str(hosts)) == hosts
    assert Hostlist.parse(",".join(wanted)) == hosts


@given(names, names)
def test_adding_keeps_order_and_operands(left: list[str], right: list[str]) -> None:
    a, b = Hostlist.of(left), Hostlist.of(right)
    assert list(a + b) == left + right
    assert (list(a), list(b)) == (left, right)
    assert set((a + b).unique()) == {*left, *right}
    assert sorted((a + b).sorted()) == sorted(left + right)


@given(st.text("a01,-[] ", max_size=14))
def test_any_text_is_parsed_or_politely_refused(text: str) -> None:
    try:
        hosts = Hostlist.parse(text)
    except InvalidValue:
        return
    assert Hostlist.parse(str(hosts)) == hosts
    assert Hostlist.of(hosts) == hosts


def test_of_the_most_hosts_none_may_share_a_bracket() -> None:
    """Fifteen bytes that mean 262,144 hosts were printed in half a second."""
    hosts = Hostlist.parse("a[0-262143]b")
    assert str(hosts).startswith("a0b,a1b,a2b,")
    assert str(hosts).endswith(",a262142b,a262143b")
