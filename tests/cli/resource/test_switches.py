"""`resource list --topology`: the tree, what is free under each switch, and what has no switch."""

from __future__ import annotations

from typing import Any

import pytest

from fluxsched.cli.options import Output
from fluxsched.cli.output import parse_format
from fluxsched.cli.target_rows import SWITCH_FIELDS, show_switches
from fluxsched.core.idset import Idset
from fluxsched.errors import Refused

SWITCHES = [
    {"name": "leaf0", "hosts": "n[0-1]"},
    {"name": "leaf1", "hosts": "n[2-4]"},
    {"name": "spine", "switches": "leaf[0-1]"},
    {"name": "far", "hosts": "other"},
]


def r_of(ranks: str, hosts: str, switches: list[dict[str, str]] | None = None) -> dict[str, Any]:
    rlite = [{"rank": ranks, "children": {"core": "0-3"}}] if ranks else []
    found: dict[str, Any] = {"version": 1, "execution": {"R_lite": rlite, "nodelist": [hosts]}}
    return found | ({"scheduling": {"writer": "fluxsched", "topology": switches}} if switches else {})


class Instance:
    def __init__(self, switches: list[dict[str, str]] | None) -> None:
        self._switches = switches

    def rpc(self, topic: str) -> dict[str, Any]:
        assert topic == "resource.status"
        return {"R": r_of("0-5", "n[0-5]", self._switches)}


ANSWER = {"all": r_of("0-5", "n[0-5]"), "down": r_of("4", "n4"), "allocated": r_of("1", "n1")}


def shown(layout: str, wanted: str | None = None, *, as_json: bool = False) -> None:
    output = Output(as_json, parse_format(layout, SWITCH_FIELDS), SWITCH_FIELDS, True)
    show_switches(Instance(SWITCHES), ANSWER, None if wanted is None else Idset.parse(wanted), output)  # type: ignore[arg-type]


def test_the_tree_is_shown_with_what_is_free(capsys: pytest.CaptureFixture[str]) -> None:
    shown("{state} {nnodes} {nodelist}")
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["SWITCH", "HOPS", "NNODES", "FREE", "ALLOCATED", "DOWN", "NODELIST"],
        ["spine", "4", "5", "3", "1", "1", "n[0-4]"],
        ["leaf0", "2", "2", "1", "1", "0", "n[0-1]"],
        ["leaf1", "2", "3", "2", "0", "1", "n[2-4]"],
        ["no", "switch", "1", "1", "0", "0", "n5"],
    ]
    shown("{switch} {free}", "0-1")
    assert capsys.readouterr().out.split() == ["SWITCH", "FREE", "spine", "1", "leaf0", "1"]
    shown("{switch}", "2", as_json=True)
    assert '"name": "leaf1", "above": "spine", "hops": 2, "free": 1' in capsys.readouterr().out


def test_without_switches_the_remedy_is_told() -> None:
    output = Output(False, parse_format("{switch}", SWITCH_FIELDS), SWITCH_FIELDS, True)
    with pytest.raises(Refused, match=r"has no switches: describe them in \[topology\]"):
        show_switches(Instance(None), ANSWER, None, output)  # type: ignore[arg-type]
