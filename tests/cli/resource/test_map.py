"""`fluxsched resource map` and `resource status --watch`: what they show, and when."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fluxsched.cli.machine_map import PARTS_SHOWN
from fluxsched.errors import Disconnected, Refused


def watched(count: int, **more: Any) -> dict[str, Any]:
    targets = [{"rank": f"0-{count - 1}", "children": {"core": "0-3"}}]
    return {
        "R": {"version": 1, "execution": {"R_lite": targets, "nodelist": [f"node[0-{count - 1}]"]}},
        "states": {"free": f"0-{count - 1}"}, "busy": {}, "busy_gpus": {}, "drains": {}, "made_up": "",
        "groups": [{"name": "default", "targets": f"0-{count - 1}"}], **more,
    }  # fmt: skip


@pytest.fixture
def draw(cli, targets):
    return lambda whole, *words, **more: cli(
        "resource", "map", *words,
        answers={"resource.watch": [whole, {"states": {"lost": "0"}}], "resource.targets": targets(whole["R"])}, **more,
    )  # fmt: skip


def test_a_small_machine_has_a_sign_a_target(draw) -> None:
    states = {"free": "0-1", "allocated": "2-3", "drained": "4", "offline": "5"}
    groups = [{"name": "default", "targets": "0-3"}, {"name": "debug", "targets": "4-5"}]
    assert draw(watched(6, states=states, busy={"4": "2", "1": "3"}, groups=groups)).out == (
        "6 targets, 24 cores, 21 % of them in use\n"
        "default  4\n"
        ".   .   A   a\n"
        "debug  2\n"
        "D   o\n"
        ". free 2  aA allocated 2  D drained 1  o offline 1\n"
    )


def test_drained_and_withheld_parts_follow_in_words(draw) -> None:
    parts = [{"targets": "1", "cores": "2-3", "timestamp": 9.0, "reason": "dimm", "state": "drained", "user": "kim"}]
    own = {"targets": "0-5", "cores": "4", "timestamp": 1.0, "reason": "[resource] withhold", "state": "withheld"}
    lines = draw(watched(6, parts=parts, withheld=[own])).out.splitlines()
    assert lines[-2:] == [
        "node1: cores 2-3 drained by kim: dimm", "node[0-5]: core 4 withheld: [resource] withhold"
    ]  # fmt: skip
    many = [{**parts[0], "targets": str(at), "timestamp": float(at)} for at in range(PARTS_SHOWN + 2)]
    lines = draw(watched(12, parts=many)).out.splitlines()
    assert lines[-2:] == ["node2: cores 2-3 drained by kim: dimm", "and 2 more: see fluxsched resource status"]


def test_131072_targets_fit_80_columns_and_a_cell_says_how_many_it_is(draw) -> None:
    lines = draw(watched(131_072, states={"free": "0-131000", "drained": "131001-131071"})).out.splitlines()
    assert len(lines) <= 26
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("131,072 targets, 524,288 cores, 0 % of them in use; a cell is ")
    assert lines[-1] == ". free 131,001  D drained 71"


def test_colour_only_where_it_is_wanted(draw, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = watched(4, states={"free": "0-2", "drained": "3"})
    assert "\x1b" not in draw(whole).out
    assert "\x1b[38;5;166m" in draw(whole, "--color", "always").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in draw(whole, "--color", "auto").out


def test_some_targets_an_arrangement_and_json(draw) -> None:
    whole = watched(8, busy={"2": "6-7"}, states={"free": "0-5", "allocated": "6-7"})
    assert draw(whole, "-i", "node[5-6]", "--by", "host").out.splitlines() == [
        "2 targets, 8 cores, 25 % of them in use", ".   a", ". free 1  aA allocated 1"
    ]  # fmt: skip
    found = json.loads(draw(whole, "-i", "5-6", "--json").out)
    assert (found["counts"], found["sections"]["host"]) == ({"free": 1, "allocated": 1}, [["node[5-6]", "5-6"]])
    assert "'colour'" in draw(whole, "--by", "colour").err
    assert "nohost" in draw(whole, "-i", "nohost").err


def test_each_of_many_switches_has_its_name_above_its_targets(draw) -> None:
    whole = watched(400)
    assert "this instance has no switches: describe them in [topology]" in draw(whole, "--by", "switch").err
    leaves = [{"name": f"leaf{at}", "hosts": f"node[{10 * at}-{10 * at + 9}]"} for at in range(40)]
    whole["R"]["scheduling"] = {"writer": "fluxsched", "topology": leaves}
    lines = draw(whole, "--by", "switch").out.splitlines()
    assert lines[1:3] + lines[79:81] == ["leaf0  10", ".   " * 9 + ".", "leaf39  10", ".   " * 9 + "."]


def test_names_of_a_site_are_only_text(draw) -> None:
    groups = [{"name": "\x1b[31mred", "targets": "0"}, {"name": "default", "targets": "1-3"}]
    assert "\\x1b[31mred  1\n" in draw(watched(4, groups=groups)).out


@pytest.fixture
def live(cli, fake, status, monkeypatch: pytest.MonkeyPatch):
    """`resource status --watch WORDS...`, told one after the other; at the second look no target is drained."""

    def run(stream: list[Any], *words: str) -> Any:
        left = [*stream, None]
        told: list[Any] = []

        def tell(answer: Any) -> None:
            if isinstance(answer, Exception):
                raise answer
            told[-1](answer)

        tables = iter([status, {**status, "drain": {}}])
        monkeypatch.setattr(fake, "subscribe", lambda self, topic, request, take: told.append(take))
        monkeypatch.setattr(fake, "listen", lambda self, limit_s, beside=None: tell(left.pop(0)))
        monkeypatch.setattr(fake, "reconnect", lambda self, began: began(), raising=False)
        monkeypatch.setattr("fluxsched.cli.watch.ASKED_EVERY_S", 0.0)
        return cli("resource", "status", "--watch", *words, answers={"resource.status": lambda _: next(tables)})

    return run


def test_watch_prints_what_changes_and_asks_only_then(live) -> None:
    done = live([{"states": {"allocated": "0"}, "busy": {"1": "0"}}, {"drains": {}}, {"states": {"free": "0"}}])
    assert (done.code, done.out) == (0, (
        "     STATE UP NNODES NODELIST\n"
        "     avail  ✔      1 node0\n"
        "   exclude  ✔      1 node2\n"
        "   drained  ✔      1 node1\n"
        " draining*  ✗      1 node3\n"
        "     avail  ✔      1 node1\n"
        "    avail*  ✗      1 node3\n"
    ))  # fmt: skip
    assert [topic for topic, _ in done.calls] == ["resource.status", "resource.status"]


def test_watch_follows_targets_out_of_the_states_that_were_asked_for(live) -> None:
    lines = live([{"states": {"drained": "1"}}], "-n", "-s", "drained").out.split()
    assert lines == ["drained", "✔", "1", "node1", "avail", "✔", "1", "node1"]


def test_watch_goes_on_once_an_instance_is_back(live) -> None:
    done = live([Disconnected("the instance is gone")], "-n", "-s", "drained")
    assert done.out.split() == ["drained", "✔", "1", "node1", "avail", "✔", "1", "node1"]
    assert "the instance is gone: connecting again when it is back" in done.err


def test_watch_as_json_says_what_the_instance_says_and_a_fault_ends_it(cli, status) -> None:
    stream = [watched(2), {"states": {"drained": "1"}}]
    done = cli("resource", "status", "--watch", "--json", answers={"resource.watch": stream})
    assert [json.loads(line) for line in done.out.splitlines()] == stream
    failing = {"resource.watch": [Refused("it is shutting down")], "resource.status": status}
    assert (
        cli("resource", "status", "--watch", answers=failing).err == "fluxsched: resource status: it is shutting down\n"
    )
