"""Planned outages: drains at the begin, undrains of just those at the end, what acquirers hear, restarts."""

from __future__ import annotations

import errno

import pytest

from fluxsched.core.outages import OUTAGES_MAX, Outage
from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.resource.drain import REASON_CHARS_MAX
from fluxsched.resource.effects import ToAcquirer
from fluxsched.resource.inventory import Inventory
from tests.resource.conftest import ids


def planned(targets="0-1", from_s=200.0, until_s=300.0, every_s=0.0, reason="kernel", name="upd"):
    return Outage(name, ids(targets), from_s, until_s, every_s, reason)


def add(h, *args, user="ann", **kwargs):
    return h._call("add_outage", planned(*args, **kwargs), user, h.now_s)


def pass_to(h, now_s):
    h.now_s = now_s
    return h._call("advance_outages", now_s)


def told(h):
    """Outages of the last message that had some."""
    found = [each.change.outages for each in h.effects if isinstance(each, ToAcquirer)]
    return [[each.name for each in outages.all] for outages in found if outages is not None]


def reasons(h):
    return {targets: info.reason for targets, info in h.drained().items()}


def test_at_its_begin_it_is_a_drain_and_at_its_end_an_undrain(h):
    add(h)
    assert reasons(h) == {}
    assert h.module.outages.next_s == 200.0
    pass_to(h, 199.0)
    assert reasons(h) == {}
    pass_to(h, 200.0)
    assert reasons(h) == {"0-1": "kernel"}
    assert h.drained()["0-1"].user == "ann"
    assert h.module.outages.next_s == 300.0
    pass_to(h, 300.0)
    assert reasons(h) == {}
    assert h.module.outages.next_s == float("inf")
    assert not [key for key in h.rows if key[0] == "outage"]


def test_only_its_own_drains_are_undone(h):
    h.drain("0", "broken fan")
    add(h, "0-3")
    pass_to(h, 200.0)
    assert reasons(h) == {"0": "broken fan; also: kernel", "1-3": "kernel"}
    h.drain("1", "no, this is broken, too", mode="overwrite")
    pass_to(h, 300.0)
    assert reasons(h) == {"0": "broken fan", "1": "no, this is broken, too"}


def test_its_begin_and_its_end_are_an_event_whatever_other_reasons_its_targets_have(h):
    for rank in range(3):
        h.drain(str(rank), f"broken {rank}")
    add(h, "0-3")
    pass_to(h, 200.0)
    context = {"idset": "0-3", "nodelist": "node[0-3]", "user": "ann"}
    assert h.events() == [("drain", {**context, "reason": "kernel", "overwrite": 0})]
    pass_to(h, 300.0)
    context = {"idset": "0-2", "nodelist": "node[0-2]", "reason": "the outage is over"}
    assert h.events("drain-lift", "drain") == [("drain-lift", {**context, "only": "kernel"})]
    assert [context["idset"] for _, context in h.events("undrain")] == ["3"]


def test_what_a_program_has_drained_and_finds_good_stays_drained_for_the_outage_that_is_on(h):
    h.drain("0,3", "no space", user="fluxsched:health")
    add(h, "0-1")
    pass_to(h, 200.0)
    h._call("undrain_good", ids("0,3"), "health check passed", "fluxsched:health", h.now_s)
    assert reasons(h) == {"0-1": "kernel"}
    pass_to(h, 300.0)
    assert reasons(h) == {}


def test_where_outages_overlap_a_target_is_undrained_after_the_last(h):
    add(h, "0-1", 200.0, 300.0, name="a", reason="a")
    add(h, "1-2", 250.0, 400.0, name="b", reason="b")
    pass_to(h, 250.0)
    assert reasons(h) == {"0": "a", "1": "a; also: b", "2": "b"}
    pass_to(h, 300.0)
    assert reasons(h) == {"1-2": "b"}
    pass_to(h, 400.0)
    assert reasons(h) == {}


def test_one_that_recurs_begins_again(h):
    add(h, every_s=1000.0)
    pass_to(h, 250.0)
    pass_to(h, 300.0)
    assert reasons(h) == {}
    assert h.module.outages.next_s == 1200.0
    pass_to(h, 1250.0)
    assert reasons(h) == {"0-1": "kernel"}


def test_removed_while_it_is_on_it_undrains(h):
    add(h)
    pass_to(h, 200.0)
    h._call("remove_outage", "upd", "ann", h.now_s)
    assert reasons(h) == {}
    with pytest.raises(Refused, match="there is no outage 'upd': there are none") as caught:
        h._call("remove_outage", "upd", "ann", h.now_s)
    assert caught.value.errnum == errno.ENOENT


def test_updated_while_it_is_on_it_keeps_what_it_still_has(h):
    add(h, "0-1")
    pass_to(h, 200.0)
    h._call("update_outage", planned("1-2", 200.0, 500.0), "ben", h.now_s)
    assert list(h.drained()) == ["1", "2"]
    h._call("update_outage", planned("1-2", 400.0, 500.0), "ben", h.now_s)
    assert reasons(h) == {}


def test_acquirers_are_told_at_the_acquire_and_of_each_change(h):
    h.acquire("S", "default")
    assert told(h) == []
    add(h)
    assert told(h) == [["upd"]]
    h.drain("3")
    assert told(h) == []
    h.disconnect("S")
    h.acquire("T", "default")
    assert told(h) == [["upd"]]
    pass_to(h, 300.0)
    assert told(h) == [[]]


def test_it_survives_a_restart_and_follows_its_hosts(h, start, r):
    add(h, "0-1")
    renumbered = r("0-7", hosts="node[7,1,0,2-6]")
    again = start(renumbered, saved=h.saved())
    (record,) = again.module.outages
    assert (str(record.outage.targets), record.user, record.outage.reason) == ("1-2", "ann", "kernel")
    pass_to(again, 250.0)
    third = start(renumbered, saved=again.saved())
    assert list(third.drained()) == ["1-2"]
    pass_to(third, 300.0)
    assert reasons(third) == {}


@pytest.mark.parametrize("is_configured", [False, True])
def test_what_an_administrator_undrains_during_it_stays_so_after_a_restart(start, is_configured):
    outages = [planned(from_s=90.0)] if is_configured else []
    h = start(outages=outages)
    if not is_configured:
        add(h, from_s=90.0)
    h.undrain("0")
    again = start(saved=h.saved(), outages=outages)
    assert reasons(again) == {"1": "kernel"}
    pass_to(again, 300.0)
    assert reasons(again) == {}
    assert not [key for key in again.rows if key[0] == "outage"]


def test_what_ended_in_between_is_undrained_at_the_start(h, start):
    add(h, "0-1", 99.0, 100.0 + 1e-6 + 1, user=None)
    assert list(h.drained()) == ["0-1"]
    rows = [row for row in h.saved() if row.table != "outage"]
    assert start(saved=rows).drained() == {}  # the outage is not planned any more


def test_those_of_the_configuration_are_changed_there_alone(start):
    h = start(outages=[planned(name="night", from_s=90.0)])
    assert reasons(h) == {"0-1": "kernel"}
    with pytest.raises(Refused, match=r"'night' is in \[\[outages\]\] of the configuration") as caught:
        h._call("remove_outage", "night", None, h.now_s)
    assert caught.value.errnum == errno.EPERM
    assert start(saved=h.saved()).drained() == {}  # the configuration has it no more


def test_excluded_targets_are_left_alone(start):
    h = start(groups={"exclude": "0"})
    add(h)
    pass_to(h, 200.0)
    assert list(h.drained()) == ["1"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"targets": ""}, "name at least one"),
        ({"targets": "0,9"}, "rank 9 does not exist"),
        ({"until_s": 200.0}, "ends as it begins"),
        ({"from_s": 1.0, "until_s": 2.0}, "is over since"),
        ({"every_s": 99.0}, "recurs every 1.65m and lasts 100s"),
        ({"name": ""}, "1 to 64 printable characters"),
        ({"name": "x" * 65}, "1 to 64 printable characters"),
        ({"until_s": float("inf")}, "finite"),
        ({"reason": "x" * (REASON_CHARS_MAX + 1)}, str(REASON_CHARS_MAX)),
    ],
)
def test_what_is_no_outage_is_refused(h, change, error):
    with pytest.raises(InvalidValue, match=error):
        add(h, **change)
    assert h.module.outages.next_s == float("inf")


def test_a_name_is_given_once(h):
    add(h, name=h.module.outages.name_for(None))
    assert h.module.outages.name_for(None) == "outage2"
    with pytest.raises(Refused, match="there is an outage 'outage1' already") as caught:
        add(h, name="outage1")
    assert caught.value.errnum == errno.EEXIST


def test_what_is_wrong_with_a_reservation_calls_it_one(h):
    held = planned("0-1", name="a")._replace(is_reservation=True)
    h._call("add_outage", held, "ann", h.now_s)
    with pytest.raises(Refused, match="there is a reservation 'a' already"):
        add(h, name="a")
    with pytest.raises(InvalidValue, match="reservation 'b' ends as it begins"):
        h._call("add_outage", held._replace(name="b", until_s=held.from_s), "ann", h.now_s)
    with pytest.raises(InvalidValue, match="name others, or another time"):
        h._call("add_outage", held._replace(name="b"), "ann", h.now_s)


def test_so_many_may_be_planned(h):
    for number in range(OUTAGES_MAX):
        h.module.outages.add(planned("0", name=f"o{number}"), None, 100.0)
    with pytest.raises(LimitExceeded, match=str(OUTAGES_MAX)):
        h.module.outages.add(planned("0", name="one more"), None, 100.0)
    h.module.journal.take_effects()


# ---- targets that join, and the configuration


@pytest.mark.parametrize("call", ["add_targets", "join"])
def test_a_target_that_joins_during_its_outage_is_drained(start, r, call):
    h = start(dynamic=True)
    add(h, "6-7")
    h._call("set_lost", ids("7"), h.now_s)
    pass_to(h, 200.0)
    assert reasons(h) == {"6": "kernel"}
    h._call(call, r("0-7").restrict(ids("7")), h.now_s)
    assert reasons(h) == {"6": "kernel", "7": "kernel"}
    pass_to(h, 300.0)
    assert reasons(h) == {}


def test_one_that_was_not_there_at_the_restart_is_drained_when_it_joins(start, r):
    h = start()
    add(h, "6-7")
    again = start(r("0-6", "node[0-6]"), dynamic=True, saved=h.saved())
    pass_to(again, 200.0)
    assert reasons(again) == {"6": "kernel"}
    again._call("add_targets", r("7", "node7"), again.now_s)
    assert reasons(again) == {"6": "kernel", "7": "kernel"}


def test_a_reload_replaces_those_of_the_configuration_and_leaves_the_others(start, r):
    h = start(outages=[planned("0", 200.0, 300.0, name="a"), planned("1", 200.0, 400.0, name="b")])
    add(h, "2", 200.0, 500.0, name="mine")
    pass_to(h, 200.0)
    assert sorted(h.drained()) == ["0-1", "2"]

    def reload(*outages):
        h._call("reload", Inventory(r(), "reload"), {}, h.now_s, False, outages)
        return sorted(rank for targets in reasons(h) for rank in ids(targets))

    changed = planned("1,3", 150.0, 450.0, name="b")
    assert reload(changed) == [1, 2, 3]  # that of 0 has gone
    assert reload(changed, planned("4", 600.0, 700.0, name="c")) == [1, 2, 3]
    pass_to(h, 450.0)
    assert reload(planned("4", 600.0, 700.0, name="c")) == [2]
    pass_to(h, 600.0)
    assert reasons(h) == {"4": "kernel"}
    assert reload() == []
    assert not list(h.module.outages)


# ---- dedicated time


def test_a_reservation_drains_nothing_and_survives_a_restart(h, start):
    outage = planned("0-1", 90.0)._replace(is_reservation=True, users=(7, 1000))
    h._call("add_outage", outage, "ann", h.now_s)
    assert h.drained() == {}
    (record,) = start(saved=h.saved()).module.outages
    assert (record.outage, record.is_on) == (outage, True)
    pass_to(h, 300.0)
    assert not list(h.module.outages)


def test_nodes_of_a_reservation_are_the_lowest_that_are_free_at_that_time(h):
    pick = h.module.outages.pick
    assert pick(ids("0-7"), 2, 200.0, 300.0) == ids("0-1")
    h.drain("0", "broken")
    add(h, "2", 250.0, 260.0, name="a")
    assert pick(ids("0-7"), 2, 200.0, 300.0) == ids("1,3")
    assert pick(ids("0-7"), 2, 260.0, 300.0) == ids("1-2")
    assert pick(ids("2-7"), 2, 200.0, 300.0) == ids("3-4")  # 5 is excluded
    assert pick(ids("4-7"), 2, 200.0, 300.0) == ids("6-7")  # of one group
    with pytest.raises(InvalidValue, match="4 targets of one group are not free at that time, only 3"):
        pick(ids("0-7"), 4, 200.0, 300.0)


@pytest.mark.parametrize(("change", "is_refused"), [({}, True), ({"from_s": 250.0}, False), ({"every_s": 900.0}, True)])
def test_a_target_is_in_one_reservation_at_a_time(h, change, is_refused):
    h._call("add_outage", planned("0-1", name="a")._replace(is_reservation=True, until_s=250.0), "ann", h.now_s)
    add(h, "0-1", name="b")  # an outage may be wherever it has to
    other = planned("1-2", name="c")._replace(is_reservation=True, **change)
    if is_refused:
        with pytest.raises(InvalidValue, match=r"reservation 'a' has rank 1 \(node1\) at that time"):
            h._call("add_outage", other, "ann", h.now_s)
    else:
        h._call("add_outage", other, "ann", h.now_s)


def dedicated(targets="0-1", **change):
    return planned(targets, **change)._replace(queue="debug", group="debug")


def plan(h, outage, verb="add_outage"):
    h._call(verb, outage, "ann", h.now_s)


def test_dedicated_targets_go_to_the_group_gracefully_and_come_back(start):
    h = start(groups={"debug": "6-7"})
    h._call("assign", ids("1"), "lab", h.now_s)
    h.hold(7, "0")
    plan(h, dedicated())
    pass_to(h, 200.0)
    assert h.members("debug") == "1,6-7"
    assert reasons(h) == {"0": "moving to group debug"}  # a job holds it
    h.unhold(7, "0")
    assert (h.members("debug"), reasons(h)) == ("0-1,6-7", {})
    h.hold(8, "0")
    pass_to(h, 300.0)
    assert h.members("lab") == "1"
    h.unhold(8, "0")
    assert (h.members("debug"), h.members("lab"), reasons(h)) == ("6-7", "1", {})
    assert "0" in h.members("default")


@pytest.mark.parametrize("end", ["remove", "update", "restart"])
def test_dedicated_targets_come_back_however_it_ends(start, end):
    h = start(groups={"debug": "6-7"})
    h._call("assign", ids("1"), "lab", h.now_s)
    plan(h, dedicated())
    pass_to(h, 200.0)
    if end == "remove":
        h._call("remove_outage", "upd", "ann", h.now_s)
    elif end == "update":
        plan(h, dedicated("0", until_s=400.0), "update_outage")
        assert (h.members("debug"), h.members("lab")) == ("0,6-7", "1")
        pass_to(h, 400.0)
    else:
        h = start(groups={"debug": "6-7"}, saved=h.saved())
        assert h.members("debug") == "0-1,6-7"
        pass_to(h, 300.0)
    assert (h.members("debug"), h.members("lab")) == ("6-7", "1")


def test_it_comes_back_again_and_again_and_what_was_moved_elsewhere_stays(start):
    h = start(groups={"debug": "6-7"})
    plan(h, dedicated(every_s=1000.0))
    for begin_s in (200.0, 1200.0):
        pass_to(h, begin_s)
        assert h.members("debug") == "0-1,6-7"
        if begin_s > 1000.0:
            h._call("assign", ids("0"), "lab", h.now_s)
        pass_to(h, begin_s + 100.0)
        assert h.members("debug") == "6-7"
    assert h.members("lab") == "0"


def test_its_group_knows_only_when_it_ends(start):
    h = start(groups={"debug": "6-7"})
    h.acquire("S", "default")
    h.acquire("D", "debug")
    plan(h, dedicated())
    known = {each.group: each.change.outages.all for each in h.effects if isinstance(each, ToAcquirer)}
    assert (known["default"][0].from_s, known["default"][0].until_s) == (200.0, 300.0)
    assert known["debug"][0].from_s == 300.0


def test_what_cannot_be_dedicated_is_refused(start):
    h = start(groups={"debug": "6-7"})
    with pytest.raises(InvalidValue, match=r"cannot dedicate .*: in its group 'debug' already"):
        plan(h, dedicated("5-6"))
    assert not list(h.module.outages)
