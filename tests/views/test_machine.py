"""The picture of the machine: partitions, arrangements, and that wholes and changes agree."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.idset import Idset
from fluxsched.views.feeds import joined
from fluxsched.views.machine import (
    ARRANGEMENTS,
    SECTIONS_MAX,
    STATES,
    LiveMachine,
    MapSection,
    bounded,
    state_named,
    states_table,
)

TARGETS = 24
WORDS = [state.word for state in STATES]


def r_of(count: int, hosts: str, properties: dict[str, str] | None = None) -> dict[str, Any]:
    execution: dict[str, Any] = {
        "R_lite": [{"rank": f"0-{count - 1}", "children": {"core": "0-7"}}],
        "nodelist": [hosts],
    }
    return {"version": 1, "execution": {**execution, **({"properties": properties} if properties else {})}}


def first(count: int = TARGETS) -> dict[str, Any]:
    groups = [{"name": "default", "targets": f"0-{count - 3}"}, {"name": "debug", "targets": f"{count - 2}"}]
    return {
        "R": r_of(count, f"n[0-{count - 1}]"), "states": {"free": f"0-{count - 1}"}, "busy": {}, "busy_gpus": {},
        "drains": {}, "groups": groups, "made_up": "",
    }  # fmt: skip


ranks = st.sets(st.integers(0, TARGETS // 2 - 1), min_size=1).map(lambda ids: str(Idset.of(ids)))
answers = st.one_of(
    st.tuples(st.sampled_from(WORDS), ranks).map(lambda pair: {"states": {pair[0]: pair[1]}}),
    st.tuples(st.integers(0, 8), ranks).map(lambda pair: {"busy": {str(pair[0]): pair[1]}}),
    ranks.map(lambda text: {"drains": {text: {"timestamp": 1.0, "reason": "fan"}}}),
    ranks.map(lambda text: {"parts": [{"targets": text, "cores": "4-7", "timestamp": 2.0, "reason": "dimm"}]}),
    ranks.map(lambda text: {"withheld": [{"targets": text, "cores": "8", "timestamp": 3.0, "state": "withheld"}]}),
    ranks.map(lambda text: {"outages": [{"name": "upd", "targets": text, "from": 1.0, "until": 2.0}]}),
    ranks.map(lambda text: {"groups": [{"name": "default", "targets": text}]}),
    st.sampled_from((first(TARGETS // 2), first())),
)


def view(whole: dict[str, Any]) -> dict[str, Any]:
    """A whole as it is compared: idle targets may be told as such or not at all."""
    return whole | {"busy": {count: ranks for count, ranks in whole["busy"].items() if count != "0"}}


@settings(max_examples=50)
@given(st.lists(answers, max_size=8), st.integers(0, 3))
def test_whole_and_changes_are_the_whole_asked_anew(history: list[dict[str, Any]], unread: int) -> None:
    """However many changes were merged before they were read."""
    machine = LiveMachine()
    machine.apply(first())
    held, waiting = machine.snapshot(), dict[str, Any]()
    for at, answer in enumerate(history):
        change = machine.apply(answer)
        if change is None:
            held, waiting = machine.snapshot(), {}
            continue
        waiting = joined(waiting, change)
        if at % (unread + 1) == 0:
            held, waiting = joined(held, waiting), {}
    assert view(joined(held, waiting)) == view(machine.snapshot())
    assert sum(machine.states.counts().values()) == len(machine.resources)


@settings(max_examples=30)
@given(st.lists(answers, max_size=6))
def test_a_viewer_can_keep_a_machine_of_its_own(history: list[dict[str, Any]]) -> None:
    machine, other = LiveMachine(), LiveMachine()
    machine.apply(first())
    other.apply(machine.snapshot())
    for answer in history:
        change = machine.apply(answer)
        other.apply(machine.snapshot() if change is None else change)
    assert view(other.snapshot()) == view(machine.snapshot())


def test_drains_parts_and_outages_say_where_what_and_why() -> None:
    machine = LiveMachine()
    parts = [
        {"targets": "2", "cores": "4-7", "timestamp": 9.0, "reason": "dimm", "user": "kim", "state": "draining"},
        {"targets": "2", "cores": "0", "gpus": "1", "timestamp": 3.0, "reason": "", "user": "fluxsched:health"},
    ]  # fmt: skip
    outage = {"name": "upd", "targets": "2-3", "from": 0.0, "until": 60.0, "every": 86400.0, "reason": "firmware"}
    drains = {"5-7": {"timestamp": 5.0, "reason": "fan", "state": "drained", "until": 90.0}}
    machine.apply({**first(), "drains": drains, "parts": parts, "outages": [outage]})
    assert [(row["hosts"], row["parts"], row["user"]) for row in machine.drained] == [
        ("n2", "cores 4-7", "kim"), ("n[5-7]", "", ""), ("n2", "core 0, GPU 1", "health")
    ]  # fmt: skip
    mine = machine.limits_of(Idset.parse("2"))
    assert mine[:2] == ["cores 4-7 draining by kim: dimm", "core 0, GPU 1 drained by health: no reason"]
    assert re.fullmatch(r"outage upd \w{3}\d\d \d\d:\d\d to \w{3}\d\d \d\d:\d\d, every 1d: firmware", mine[2])
    (fan,) = machine.limits_of(Idset.parse("7"))
    assert re.fullmatch(r"drained until \w{3}\d\d \d\d:\d\d:30: fan", fan)
    machine.apply({"parts": []})
    assert [row["hosts"] for row in machine.drained] == ["n[5-7]"], "the other drains stay"
    course = {"name": "course", "targets": "3", "from": 30.0, "until": 60.0, "reservation": True, "users": [0, 999999]}
    machine.apply({"outages": [course, {**course, "users": []}]})
    assert [row["for"] for row in machine.outages] == ["root,999999", "all users"]
    (some, every) = machine.limits_of(Idset.parse("3"))
    begin = r"reservation course for {} \w{{3}}\d\d \d\d:\d\d:30 to \w{{3}}\d\d \d\d:\d\d"
    assert re.fullmatch(begin.format("root,999999"), some)
    assert re.fullmatch(begin.format("all users"), every)
    own = {"targets": "0-23", "cores": "8", "timestamp": 1.0, "reason": "[resource] withhold", "state": "withheld"}
    machine.apply({"withheld": [own]})
    assert [(row["hosts"], row["parts"], row["cores"]) for row in machine.drained] == [
        ("n[5-7]", "", ""), ("n[0-23]", "core 8", "")
    ], "it is no core of R, which maps draw"  # fmt: skip
    assert machine.limits_of(Idset.parse("0")) == ["core 8 withheld: [resource] withhold"]


def test_targets_are_arranged_by_group_by_property_and_by_host() -> None:
    machine = LiveMachine()
    machine.apply({**first(), "R": r_of(TARGETS, "a[1-8],b[1-15],login", {"big": "0-3", "fast": "2-9"})})
    assert [(one.title, str(one.ranks)) for one in machine.arranged("group")] == [
        ("default", "0-21"), ("debug", "22"), ("no group", "23")
    ]  # fmt: skip
    assert [(one.title, str(one.ranks)) for one in machine.arranged("property")] == [
        ("big", "0-1"), ("big, fast", "2-3"), ("fast", "4-9"), ("no property", "10-23")
    ]  # fmt: skip
    assert [(one.title, str(one.ranks)) for one in machine.arranged("host")] == [
        ("a[1-8]", "0-7"), ("b[1-15]", "8-22"), ("login", "23")
    ]  # fmt: skip


def test_targets_are_arranged_by_the_lowest_switches_that_are_few_enough() -> None:
    def machine_of(targets: int, *switches: dict[str, str]) -> LiveMachine:
        described = r_of(targets, f"n[0-{targets - 1}]", {})
        machine = LiveMachine()
        scheduling = {"writer": "fluxsched", "topology": switches}
        machine.apply({**first(targets), "R": {**described, "scheduling": scheduling}})
        return machine

    leaves = [{"name": "l0", "hosts": "n[0-2]"}, {"name": "l1", "hosts": "n[3-4]"}, {"name": "s", "switches": "l[0-1]"}]
    assert [(one.title, str(one.ranks)) for one in machine_of(6, *leaves).arranged("switch")] == [
        ("l0", "0-2"), ("l1", "3-4"), ("no switch", "5")
    ]  # fmt: skip
    many = [{"name": f"l{at}", "hosts": f"n{at}"} for at in range(SECTIONS_MAX + 4)]
    spines = [{"name": "a", "switches": "l[0-99]"}, {"name": "b", "switches": f"l[100-{SECTIONS_MAX + 3}]"}]
    assert [one.title for one in machine_of(SECTIONS_MAX + 4, *many, *spines).arranged("switch")] == ["a", "b"]
    machine = LiveMachine()
    machine.apply(first(4))
    assert [(one.title, len(one.ranks)) for one in machine.arranged("switch")] == [("no switch", 4)]


def test_an_arrangement_has_a_bounded_number_of_sections() -> None:
    sections = bounded(MapSection(str(rank), Idset(1 << rank)) for rank in range(SECTIONS_MAX + 10))
    assert len(sections) == SECTIONS_MAX
    assert (sections[-1].title, len(sections[-1].ranks)) == ("others", 11)
    machine = LiveMachine()
    each = {f"p{rank}": str(rank) for rank in range(SECTIONS_MAX + 10)}
    machine.apply({**first(512), "R": r_of(512, "n[0-511]", each)})
    assert len(machine.arranged("property")) <= SECTIONS_MAX
    assert sum(len(one.ranks) for one in machine.arranged("property")) == 512


def test_131072_targets_are_a_few_idsets() -> None:
    machine = LiveMachine()
    machine.apply(first(131_072))
    machine.apply({"states": {"drained": "7,99-100"}, "busy": {"4": "131071"}})
    whole = machine.snapshot()
    assert whole["counts"] == {"free": 131_069, "drained": 3}
    assert whole["cores"] == {"total": 8 * 131_072, "in_use": 4}
    assert str(machine.states.parts["drained"]) == "7,99-100"
    assert len(str(whole)) < 3000


def test_each_state_has_a_word_a_sign_and_colours_of_its_own() -> None:
    for values in ([one.word for one in STATES], [one.sign for one in STATES], [one.light for one in STATES],
                   [one.dark for one in STATES], [one.terminal for one in STATES]):  # fmt: skip
        assert len(set(values)) == len(STATES)
    assert state_named("newer").sign == "?"
    assert [row["word"] for row in states_table()] == WORDS


def test_before_anything_is_known_every_arrangement_is_empty() -> None:
    assert [LiveMachine().arranged(by) for by in ARRANGEMENTS] == [[], [], [], []]
