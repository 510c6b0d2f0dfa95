"""TARGETS of admin commands: idset or hostlist, all offenders named."""

from __future__ import annotations

import pytest

from fluxsched.core.constraint import parse_targets
from fluxsched.core.idset import Idset
from fluxsched.core.resources import EMPTY_R, ResourceSet
from fluxsched.core.topology import Topology
from fluxsched.errors import InvalidValue, LimitExceeded, Refused

SITE = ResourceSet.parse(
    {
        "version": 1,
        "execution": {
            "R_lite": [{"rank": "0-3", "children": {"core": "0"}}],
            "nodelist": ["n0,n1,n1,n10"],
            "properties": {"gpu": "1,3", "fast@2024": "2"},
            "starttime": 0,
            "expiration": 0,
        },
    }
)


def look_up(kind: str, name: str) -> Idset:
    if (kind, name) == ("group", "debug"):
        return Idset.parse("0-1")
    raise Refused(f"there is no {kind} {name!r}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", "0"),
        ("1-3", "1-3"),
        ("[0,2]", "0,2"),
        ("", ""),
        ("n1", "1-2"),
        ("n[0-1,10]", "0-3"),
        ("n10,n0,n0", "0,3"),
        ("0,n1", "0-2"),
        ("n[0,10],[1-2]", "0-3"),
        ("n1,3,0-1", "0-3"),
    ],
)
def test_ranks_or_hosts(text: str, expected: str) -> None:
    assert str(parse_targets(text, SITE)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", "0-3"),
        ("property:gpu", "1,3"),
        ("property:fast", "2"),
        ("group:debug", "0-1"),
        ("group:debug,property:fast,n10", "0-3"),
        ("2,all", "0-3"),
    ],
)
def test_named_sets(text: str, expected: str) -> None:
    assert str(parse_targets(text, SITE, look_up)) == expected


def test_a_set_is_limited_to_what_a_request_applies_to_and_a_rank_is_not() -> None:
    drained = Idset.parse("1")
    assert str(parse_targets("all", SITE, look_up, drained)) == "1"
    assert str(parse_targets("0,property:gpu", SITE, look_up, drained)) == "0-1"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (
            "property:gpux,9,group:lab",
            r"^unknown ranks 9: .* 0-3; no target has property 'gpux': .* fast@2024, gpu; there is no group 'lab'$",
        ),
        ("group:,0", "the name is missing, as in group:NAME"),
        ("Property:gpu", "unknown hosts Property:gpu"),
    ],
)
def test_unknown_sets_are_named_among_all_offenders(text: str, named: str) -> None:
    with pytest.raises(InvalidValue, match=named):
        parse_targets(text, SITE, look_up)


def test_a_switch_has_all_targets_under_it() -> None:
    switches = [
        {"name": "leaf0", "hosts": "n[0-1]"}, {"name": "leaf1", "hosts": "n[2-3],else"},
        {"name": "leaf2", "hosts": "x"}, {"name": "spine", "switches": "leaf[0-1]"},
    ]  # fmt: skip
    site = ResourceSet.parse({"version": 1, "execution": {
        "R_lite": [{"rank": "0-3", "children": {"core": "0"}}], "nodelist": ["n[0-3]"],
    }}).with_topology(Topology.parse(switches))  # fmt: skip
    found = [str(parse_targets(f"switch:{name}", site)) for name in ("leaf1", "spine", "leaf2")]
    assert found == ["2-3", "0-3", ""]
    with pytest.raises(InvalidValue, match="there is no switch 'leaf3': there are leaf0, leaf1, leaf2, spine"):
        parse_targets("0,switch:leaf3", site)


def test_a_queue_is_not_known_without_an_instance() -> None:
    with pytest.raises(InvalidValue, match="queue:batch: only an instance knows its queues"):
        parse_targets("queue:batch", SITE)


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
        parse_targets(text, SITE)


def test_no_ranks_at_all() -> None:
    with pytest.raises(InvalidValue, match="ranks here are none"):
        parse_targets("0", EMPTY_R)


@pytest.mark.parametrize("text", ["0-4000000000", "n[0-999999999]"])
def test_bombs_are_refused(text: str) -> None:
    with pytest.raises(LimitExceeded):
        parse_targets(text, SITE)


def test_only_text() -> None:
    with pytest.raises(InvalidValue, match="string"):
        parse_targets(3, SITE)


@pytest.mark.parametrize(
    ("there", "words"),
    [({"gpu": "1", "+debug": "0"}, "the properties are gpu$"), ({"+debug": "0"}, "no target has any$")],
)
def test_marks_of_queues_are_not_listed_as_properties(there: dict[str, str], words: str) -> None:
    site = SITE
    for name, ranks in SITE.properties.items():
        site = site.remove_property(name, ranks)
    for name, ranks in there.items():
        site = site.add_property(name, Idset.parse(ranks))
    with pytest.raises(InvalidValue, match=words):
        parse_targets("property:gpux", site)
