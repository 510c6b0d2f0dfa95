"""TARGETS of admin commands: idset or hostlist, all offenders named."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.targets import parse_targets
from fluxsched.errors import InvalidValue, LimitExceeded

HOSTS = {"n0": Idset.parse("0"), "n1": Idset.parse("1-2"), "n10": Idset.parse("3")}
RANKS = Idset.parse("0-3")


def ranks_on(hosts: Iterable[str]) -> tuple[Idset, list[str]]:
    found, unknown = Idset(), list[str]()
    for host in hosts:
        found |= HOSTS.get(host, Idset())
        unknown += [] if host in HOSTS else [host]
    return found, unknown


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", "0"), ("1-3", "1-3"), ("[0,2]", "0,2"), ("", ""), ("n1", "1-2"), ("n[0-1,10]", "0-3"), ("n10,n0,n0", "0,3"),
     ("0,n1", "0-2"), ("n[0,10],[1-2]", "0-3"), ("n1,3,0-1", "0-3")],
)
def test_ranks_or_hosts(text: str, expected: str) -> None:
    assert str(parse_targets(text, ranks_on, RANKS)) == expected


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("2-5,9", "ranks 4-5,9: the ranks here are 0-3"),
        ("n[0-3],x", r"hosts n\[2-3\],x:"),
        ("0,99,nope", "^unknown ranks 99 and hosts nope: the ranks here are 0-3$"),
        ("0,nope", "^unknown hosts nope:"),
        ("n0,9", "^unknown ranks 9: the ranks here are 0-3$"),
        ("3,1", "'1' does not come after 3"),
        ("n[", "brackets"),
    ],
)
def test_all_offenders_are_named(text: str, named: str) -> None:
    with pytest.raises(InvalidValue, match=named):
        parse_targets(text, ranks_on, RANKS)


def test_no_ranks_at_all() -> None:
    with pytest.raises(InvalidValue, match="ranks here are none"):
        parse_targets("0", ranks_on, Idset())


@pytest.mark.parametrize("text", ["0-4000000000", "n[0-999999999]"])
def test_bombs_are_refused(text: str) -> None:
    with pytest.raises(LimitExceeded):
        parse_targets(text, ranks_on, RANKS)


def test_only_text() -> None:
    with pytest.raises(InvalidValue, match="string"):
        parse_targets(3, ranks_on, RANKS)
