"""Drains of parts of targets: refused whole or done whole, kept by a restart, told to those who understand them."""

from __future__ import annotations

import dataclasses
import errno

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.outages import Outage
from fluxsched.core.rlite import Children, PartsByRank
from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.protocol import framing
from fluxsched.protocol.sessions import AcquireClient, AcquireServer, to_messages
from fluxsched.resource.drain import REASON_CHARS_MAX, REASONS_MAX
from fluxsched.resource.effects import ToAcquirer
from fluxsched.resource.inventory import Inventory
from fluxsched.resource.parts import PartsRequest


def asked(h, targets, cores, reason="hot", mode=None, gpus="", **more):
    parts = Children(Idset.parse(cores), Idset.parse(gpus))
    return PartsRequest(Idset.parse(targets), parts, reason, mode, "ann", h.now_s, **more)


def drain(h, *args, **more):
    return h._call("drain_parts", asked(h, *args, **more))


def undrain(h, *args, **more):
    return h._call("undrain_parts", asked(h, *args, **more))


def told(h):
    """The parts that acquirers were told in the last call."""
    changes = [effect.change for effect in h.effects if isinstance(effect, ToAcquirer)]
    return [change.parts.to_json() for change in changes if change.parts is not None]


def lines(h):
    return [(str(targets), str(line.parts), line.reason) for targets, line in h.module.parts.report()]


def test_who_when_and_why(h):
    drain(h, "0-1", "2-3")
    assert lines(h) == [("0-1", "core[2-3]", "hot")]
    row = {"drains": [{"children": {"core": "2-3"}, "timestamp": 101.0, "reason": "hot", "user": "ann"}]}
    assert (h.row("parts", "node0"), h.row("parts", "node1")) == (row, row)
    assert h.events() == [("parts-drain", {
        "idset": "0-1", "nodelist": "node[0-1]", "children": {"core": "2-3"}, "overwrite": 0, "reason": "hot",
        "user": "ann",
    })]  # fmt: skip
    assert h.drained() == {}


def test_several_reasons_on_one_target_are_kept(h):
    drain(h, "0", "0", "fan")
    drain(h, "0", "2-3", "dimm")
    assert lines(h) == [("0", "core0", "fan"), ("0", "core[2-3]", "dimm")]
    undrain(h, "0", "0,3", mode=None)
    assert lines(h) == [("0", "core2", "dimm")]
    assert h.events()[0][0] == "parts-undrain"
    undrain(h, "0", "2")
    assert (lines(h), h.row("parts", "node0")) == ([], None)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_several_reasons_on_one_part_are_kept_until_all_are_lifted(h, start, is_restarted):
    drain(h, "0", "0-1", "fan")
    drain(h, "0-1", "1-2", "dimm", mode="add", until_s=200.0)
    assert lines(h) == [("0", "core[0-1]", "fan"), ("0-1", "core[1-2]", "dimm")]
    h = start(saved=h.saved()) if is_restarted else h
    h.acquire("S", "default")
    assert [name for name, _ in h.events()] == []
    undrain(h, "0", "1", only="fan")
    assert lines(h) == [("0", "core0", "fan"), ("0-1", "core[1-2]", "dimm")]
    assert (told(h), [name for name, _ in h.events()]) == ([], ["parts-undrain"])  # core 1 is drained all the same
    drain(h, "0", "2", "hot", mode="add")
    h._call("advance_outages", 200.0)
    assert lines(h) == [("0", "core0", "fan"), ("0", "core2", "hot")]
    undrain(h, "0", "0-3", mode="update")
    assert lines(h) == []


@pytest.mark.parametrize("is_restarted", [False, True])
def test_reasons_of_parts_may_end_together(h, start, is_restarted):
    until_s = 99.0 if is_restarted else 200.0  # a start looks for what is due
    for targets, cores, reason in (
        ("0", "0-1", "fan"),
        ("0", "0-1", "dimm"),
        ("0", "0", "hot"),
        ("0-1", "1-2", "disk"),
    ):
        drain(h, targets, cores, reason, mode="add", until_s=until_s)
    drain(h, "0", "0", "stays", mode="add")
    h = start(saved=h.saved()) if is_restarted else h
    h.acquire("S", "default")
    h._call("advance_outages", 200.0)
    assert (lines(h), h.module.outages.next_s) == ([("0", "core0", "stays")], float("inf"))
    if not is_restarted:
        ended = [(context["idset"], context["children"]["core"], context["only"]) for _, context in h.events()]
        assert sorted(ended) == [("0", "0", "hot"), ("0", "0-1", "dimm"), ("0", "0-1", "fan"), ("0-1", "1-2", "disk")]
    undrain(h, "0", "0")
    assert lines(h) == []


def test_reasons_of_parts_are_counted_for_each_core(h):
    for at in range(REASONS_MAX):
        drain(h, "0", str(at % 4), f"reason {at}", mode="add")
    drain(h, "0", "0-3", "one more", mode="add")
    assert len(lines(h)) == REASONS_MAX + 1


def test_what_cannot_be_added_to_or_lifted_of_a_part_is_refused(h):
    drain(h, "0", "0", "fan")
    with pytest.raises(InvalidValue, match="added has a reason"):
        drain(h, "0", "0", None, mode="add")
    with pytest.raises(Refused, match=r"rank 0 \(node0\): core0 not drained for 'dimm'"):
        undrain(h, "0", "0", only="dimm")
    for at in range(1, REASONS_MAX):
        drain(h, "0", "0", f"reason {at}", mode="add")
    with pytest.raises(LimitExceeded, match=f"drained for {REASONS_MAX} reasons"):
        drain(h, "0", "0", "one more", mode="add")
    drain(h, "0", "0", "fan", mode="add")
    assert len(lines(h)) == REASONS_MAX


def test_modes(h):
    drain(h, "0", "0-1", "fan")
    with pytest.raises(Refused, match=r"rank 0 \(node0\): core1 already drained$") as caught:
        drain(h, "0-1", "1-2", "dimm")
    assert (caught.value.errnum, lines(h)) == (errno.EEXIST, [("0", "core[0-1]", "fan")])
    drain(h, "0-1", "1-2", "dimm", mode="update")
    assert lines(h) == [("0", "core[0-1]", "fan"), ("0", "core2", "dimm"), ("1", "core[1-2]", "dimm")]
    drain(h, "0", "1-2", "both", mode="overwrite")
    assert lines(h)[:2] == [("0", "core0", "fan"), ("0", "core[1-2]", "both")]


def test_an_undrain_of_what_is_not_drained(h):
    drain(h, "0", "0-1")
    with pytest.raises(Refused, match=r"ranks 0-1 .*: core2 not drained") as caught:
        undrain(h, "0-1", "0-2")
    with pytest.raises(InvalidValue, match="undrain mode 'add' is unknown"):
        undrain(h, "0", "0-1", mode="add")
    assert (caught.value.errnum, lines(h)) == (errno.EEXIST, [("0", "core[0-1]", "hot")])
    undrain(h, "0-1", "0-2", mode="update")
    assert lines(h) == []


@pytest.mark.parametrize(
    ("targets", "cores", "gpus", "named"),
    [
        ("0-1", "3-4", "", r"ranks 0-1 \(node\[0-1\]\) without core4"),
        ("0", "0", "1", "without gpu1"),
        ("0,8-9", "0", "", "ranks 8-9 do not exist"),
        ("", "0", "", "at least one target"),
    ],
)
def test_what_is_refused_changes_nothing(h, targets, cores, gpus, named):
    for call in (drain, undrain):
        with pytest.raises(InvalidValue, match=named):
            call(h, targets, cores, gpus=gpus)
    assert (lines(h), h.module.parts.value.of) == ([], {})


def test_a_reason_that_is_too_long(h):
    with pytest.raises(LimitExceeded):
        drain(h, "0", "0", "x" * (REASON_CHARS_MAX + 1))


def test_a_restart_keeps_them_and_knows_hosts_by_name(start, r):
    h = start()
    drain(h, "1", "2-3", "fan")
    drain(h, "1", "0", "dimm")
    again = start(r(ranks="0-3", hosts="node[1-4]"), saved=h.saved())
    assert lines(again) == [("0", "core[2-3]", "fan"), ("0", "core0", "dimm")]
    again.acquire("s", "default")
    assert told(again) == [[{"rank": "0", "children": {"core": "0,2-3"}}]]


def test_a_host_that_joins_later_has_its_drained_parts(start, r):
    h = start(dynamic=True)
    drain(h, "7", "1")
    later = start(r(ranks="0-3", hosts="node[0-3]"), dynamic=True, saved=h.saved())
    later.acquire("s", "default")
    assert (lines(later), told(later)) == ([], [])
    later.add(r(ranks="4", hosts="node7"))
    assert (lines(later), told(later)) == ([("4", "core1", "hot")], [[{"rank": "4", "children": {"core": "1"}}]])


def test_acquirers_are_told_all_that_is_drained(h):
    h.acquire("s", "default")
    assert drain(h, "0", "2-3") == ["s: update None {} {}"]
    assert told(h) == [[{"rank": "0", "children": {"core": "2-3"}}]]
    drain(h, "1", "2-3")
    assert told(h) == [[{"rank": "0-1", "children": {"core": "2-3"}}]]
    undrain(h, "0-1", "2-3")
    assert told(h) == [[]]


def test_a_target_without_a_core_left_is_offline(h):
    h.acquire("s", "default")
    drain(h, "0", "0-2")
    assert drain(h, "0", "3") == ["s: up  down 0", "s: update None {} {}"]
    assert h.module.report.states()["drained"] == Idset.parse("0")
    assert str(h.module.report.sched_status()["down"].ranks) == "0"
    assert undrain(h, "0", "1") == ["s: up 0 down ", "s: update None {} {}"]


def test_what_is_drained_is_down_for_schedulers_to_the_core(h):
    drain(h, "0", "2-3")
    status = h.module.report.sched_status()
    assert (status["down"].summary(), status["all"].count("core")) == ("rank0/core[2-3]", 28)
    assert h.module.report.states()["drained"] == Idset()


@pytest.mark.parametrize("accepts", [True, False])
def test_only_who_accepts_parts_is_sent_them(h, accepts):
    client, server = AcquireClient("default"), AcquireServer(True, True, accepts)
    client.request()
    found = []

    def pass_on():
        for effect in h.effects:
            if isinstance(effect, ToAcquirer):
                server.add(effect.change)
        for change in server.take():
            for message in to_messages(change, True, lambda resources: resources.to_json()):
                heard = client.receive(framing.pack(message))
                found.append(None if heard.parts is None else heard.parts.to_json())

    drain(h, "0", "1")
    h.acquire("s", "default")
    pass_on()
    drain(h, "1", "1")
    pass_on()
    undrain(h, "0-1", "1")
    pass_on()
    both = [[{"rank": "0", "children": {"core": "1"}}], [{"rank": "0-1", "children": {"core": "1"}}], []]
    assert found == (both if accepts else [None])


# ---- drains that end by themselves


def test_a_drain_ends_by_itself_unless_it_is_overwritten(h):
    h._call("drain", Idset.parse("0-2"), "hot", None, "ann", 101.0, 161.0)
    h.drain("1", "broken", mode="overwrite")
    assert h.module.outages.next_s == 161.0
    h._call("advance_outages", 160.0)
    assert list(h.drained()) == ["0,2", "1"]
    h._call("advance_outages", 161.0)
    assert list(h.drained()) == ["1"]
    assert h.events() == [("undrain", {
        "idset": "0,2", "nodelist": "node[0,2]", "reason": "its time is over", "overwrite": 0,
    })]  # fmt: skip
    assert h.module.outages.next_s == float("inf")


def test_an_outage_that_is_on_keeps_what_would_end(h):
    h._call("drain", Idset.parse("0"), "hot", None, "ann", 101.0, 161.0)
    h._call("add_outage", Outage("upd", Idset.parse("0"), 120.0, 500.0, reason="kernel"), "ann", 102.0)
    h._call("advance_outages", 161.0)
    assert h.drained()["0"].reason == "kernel"
    h._call("advance_outages", 500.0)
    assert h.drained() == {}


def test_parts_end_by_themselves_each_when_it_is_due(h):
    for cores, until_s in (("0", 150.0), ("1-2", 140.0)):
        wanted = dataclasses.replace(asked(h, "0-1", cores), until_s=until_s)
        h._call("drain_parts", wanted)
    drain(h, "1", "3")
    assert h.module.outages.next_s == 140.0
    h._call("advance_outages", 140.0)
    assert lines(h) == [("0-1", "core0", "hot"), ("1", "core3", "hot")]
    assert [name for name, _ in h.events()] == ["parts-undrain"]
    h._call("advance_outages", 150.0)
    assert lines(h) == [("1", "core3", "hot")]


def test_what_ended_while_the_instance_was_down_ends_at_the_start(start):
    h = start()
    h._call("drain", Idset.parse("0"), "hot", None, "ann", 90.0, 99.0)
    h._call("drain", Idset.parse("1"), "hot", None, "ann", 90.0, 1000.0)
    h._call("drain_parts", dataclasses.replace(asked(h, "2", "0"), until_s=99.0))
    h._call("drain_parts", dataclasses.replace(asked(h, "2", "1"), until_s=1000.0))
    again = start(saved=h.saved())
    assert (list(again.drained()), lines(again)) == (["1"], [("2", "core1", "hot")])
    assert again.module.outages.next_s == 1000.0


def test_withheld_cores_follow_their_host_in_a_reload(h, r):
    own = PartsByRank.parse([{"rank": "0", "children": {"core": "8"}}])
    other = Inventory(r("0-7", hosts="node[7,0-6]"), "reload", withheld=own)
    h._call("reload", other, {}, 200.0)
    assert (list(h.module.targets.withheld.of), h.module.withheld_s) == ([7], 200.0)
    status = h.module.report.sched_status()
    assert (status["all"].count("core"), status["withheld"].summary()) == (32, "rank7/core8")
    h._call("reload", other, {}, 300.0)
    assert h.module.withheld_s == 200.0
    h.assign("7", "exclude")
    assert "withheld" not in h.module.report.sched_status()
