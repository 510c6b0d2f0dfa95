"""Spare targets: what calls for one, which one comes, how it goes home, and what stays of it over a restart."""

from __future__ import annotations

import errno

import pytest

from fluxsched.core.rlite import Children
from fluxsched.errors import InvalidValue, Refused
from fluxsched.resource.parts import PartsRequest
from tests.resource.conftest import ids


@pytest.fixture
def site(start):
    """Eight targets online, 6-7 are spares; group b has 5."""
    return start(groups={"spares": "6-7", "b": "5"})


def in_service(h):
    return {each.target: (each.replaces, each.group) for each in h.module.spares}


def spares_idle(h):
    return str(h.module.report.states()["spare"])


def restarted(h, start, **options):
    return start(groups={"spares": "6-7", "b": "5"}, saved=h.saved(), **options)


def test_spares_belong_to_no_scheduler(site):
    with pytest.raises(Refused, match="join the group of what they replace") as refusal:
        site.acquire("s", "spares")
    assert refusal.value.errnum == errno.EPERM
    assert site.acquire("s", "default") == ["s: grow 0-4 up 0-4 down "]
    assert str(site.module.report.sched_status()["all"].ranks) == "0-5"
    assert spares_idle(site) == "6-7"


def test_a_drained_target_is_replaced_in_the_same_change_and_the_spare_goes_home_after_it(site):
    site.acquire("s", "default")
    assert site.drain("1") == ["s: grow 6 up 6 down ", "s: up  down 1", "s: spares {6: 1}"]
    assert in_service(site) == {6: (1, "default")}
    assert site.events("spare") == [("spare", {"idset": "6", "nodelist": "node6", "group": "default", "replaces": "1"})]
    assert site.row("assign", "node6") == {"group": "default", "replaces": "node1", "since": site.now_s - 1}
    assert spares_idle(site) == "7"
    site.hold(17, "6")
    assert site.undrain("1") == ["s: up 1 down 6", "s: spares {6: 6}"]
    assert in_service(site) == {}
    assert site.events("spare-return")[0][1]["idset"] == "6"
    site.disconnect("s")
    assert site.acquire("s", "default") == ["s: grow 0-4,6 up 0-4 down 6", "s: spares {6: 6}"]
    assert site.unhold(17, "6") == ["s: shrink 6", "s: spares {}"]
    site.release("s", "default", "6")
    assert not [row for row in site.rows if row[0] in ("assign", "leaving", "drain")]


def test_a_spare_replaces_what_goes_offline_and_not_what_has_not_come_up(start):
    h = start(groups={"spares": "6-7"}, online="0-3,6-7")
    assert in_service(h) == {}
    h.set("offline", "0")
    assert in_service(h) == {6: (0, "default")}
    h.set("online", "0,4")
    assert in_service(h) == {}


def test_a_lost_target_is_replaced_until_it_is_online_again(start, r):
    h = start(groups={"spares": "6-7", "b": "5"}, dynamic=True)
    h.acquire("s", "b")
    assert h.set("lost", "5") == ["s: grow 6 up 6 down ", "s: shrink 5", "s: spares {6: 5}"]
    h.release("s", "b", "5")
    h.add(r("0", "node5"))
    assert in_service(h) == {6: (5, "b")}
    assert h.set("online", "5") == ["s: shrink 6", "s: up 5 down ", "s: spares {}"]
    assert in_service(h) == {}


def test_each_is_replaced_while_there_are_spares_and_the_next_when_one_is_home(site):
    site.drain("0-2")
    assert in_service(site) == {6: (0, "default"), 7: (1, "default")}
    site.undrain("0")
    assert in_service(site) == {6: (2, "default"), 7: (1, "default")}


@pytest.mark.parametrize("call", [
    lambda h: (h.hold(3, "0"), h.assign("0", "b", graceful=True)),
    lambda h: h.set("torpid", "0"),
    lambda h: h.drain("6"),
    lambda h: (h.assign("0", "exclude"), h.set("offline", "0")),
    lambda h: h.reload(h.module.resources.without(ids("0")), {"spares": "6-7", "b": "5"}),
])  # fmt: skip
def test_what_calls_for_no_spare(site, call):
    call(site)
    assert in_service(site) == {}


def test_only_one_of_the_same_shape_will_do(start, r):
    wide, plain, fast = r("0,4,6", "node[0,4,6]", cores="0-7"), r("1,5", "node[1,5]"), r("2-3,7", "node[2-3,7]")
    h = start(wide | plain | fast.add_property("fast", ids("2,7")), {"spares": "5-7"})
    h.drain("0")
    assert in_service(h) == {6: (0, "default")}
    h.drain("2")
    assert in_service(h) == {6: (0, "default"), 7: (2, "default")}
    h.drain("4")
    assert len(in_service(h)) == 2, "no wide one is left"
    h.drain("3")
    assert in_service(h)[5] == (3, "default")
    h.undrain("2")
    h.undrain("3")
    h.drain("3")
    assert in_service(h)[5] == (3, "default")


def test_a_spare_that_fails_is_replaced_by_another(site):
    site.drain("0")
    site.hold(3, "6")
    site.drain("6", "broken, too")
    assert in_service(site) == {7: (0, "default")}
    site.unhold(3, "6")
    assert site.members("spares") == "6"
    assert [info.reason for info in site.drained().values()] == ["bad", "broken, too"]
    site.set("offline", "7")
    assert in_service(site) == {}
    site.set("online", "7")
    assert in_service(site) == {7: (0, "default")}


def test_one_on_its_way_home_stays_if_it_is_needed_again(site):
    site.drain("0")
    site.hold(3, "6")
    site.undrain("0")
    assert list(site.drained()) == ["6"]
    site.drain("1")
    assert in_service(site) == {6: (1, "default")}
    assert list(site.drained()) == ["1"]


def test_one_that_comes_home_replaces_what_has_waited_in_another_group(start):
    h = start(groups={"spares": "7", "b": "5"})
    h.acquire("s", "default")
    h.drain("1,5")
    assert in_service(h) == {7: (1, "default")}
    h.hold(17, "7")
    h.undrain("1")
    assert in_service(h) == {}
    h.unhold(17, "7")
    h.release("s", "default", "7")
    assert in_service(h) == {7: (5, "b")}


def test_one_that_an_administrator_assigns_or_excludes_is_theirs(site):
    site.drain("0")
    site.assign("6", "exclude")
    assert in_service(site) == {7: (0, "default")}
    site.assign("7", "b")
    assert in_service(site) == {}
    site.undrain("0")
    assert (site.members("exclude"), site.members("b")) == ("6", "5,7")
    with pytest.raises(InvalidValue, match="spares does not name it; add it there and reload"):
        site.assign("3", "spares")
    site.assign("6-7", "spares")
    assert site.members("spares") == "6-7"


def test_one_follows_the_group_of_what_it_replaces(site):
    site.drain("0")
    site.assign("0", "b")
    assert in_service(site) == {6: (0, "b")}
    assert site.members("b") == "0,5-6"


def test_a_restart_knows_which_are_in_service(site, start):
    site.drain("0")
    site.set("offline", "5")
    assert in_service(site) == {6: (0, "default"), 7: (5, "b")}
    h = restarted(site, start, online="", running=[(3, "7")])
    assert in_service(h) == {6: (0, "default"), 7: (5, "b")}
    h.set("online", "0-4,6-7")
    assert in_service(h) == {6: (0, "default"), 7: (5, "b")}
    h.set("online", "5")
    assert in_service(h) == {6: (0, "default")}
    again = restarted(h, start, online="0-7", running=[(3, "7")])
    assert again.members("b") == "5,7"
    again.unhold(3, "7")
    assert (again.members("b"), again.members("spares")) == ("5", "7")


def test_a_restart_without_spares_sends_them_to_where_they_belong(site, start):
    site.drain("0")
    site.set("offline", "5")
    h = start(groups={"b": "5"}, saved=site.saved())
    assert in_service(h) == {}
    assert (h.members("default"), h.members("b")) == ("0-4,6-7", "5")
    assert not [row for row in h.rows if row[0] == "assign"]


def test_a_reload_makes_and_unmakes_spares(site, r):
    site.drain("0-1")
    site.hold(3, "7")
    site.reload(r(), {"spares": "4,6"})
    assert in_service(site) == {4: (1, "default"), 6: (0, "default")}
    assert site.members("default") == "0-7"
    site.reload(r(), {})
    assert (in_service(site), site.members("default")) == ({}, "0-7")
    assert not [row for row in site.rows if row[0] == "assign"]


def test_discovered_hosts_find_each_other_after_a_restart(start, r):
    h = start(groups={"spares": "6-7"}, dynamic=True)
    h.drain("0")
    again = start(r("0-1", "node[9,6]"), {"spares": "1"}, dynamic=True, saved=h.saved())
    assert in_service(again) == {1: (None, "default")}, "what it replaces may come"
    again.add(r("2", "node0"))
    again.set("online", "2")
    assert in_service(again) == {1: (2, "default")}, "it came, and is drained"
    again.undrain("2")
    assert in_service(again) == {}


def test_one_with_drained_parts_is_not_whole(site):
    site._call("drain_parts", PartsRequest(ids("6"), Children(ids("0")), "bad", None, "ann", site.now_s))
    site.drain("0")
    assert in_service(site) == {7: (0, "default")}


def test_at_a_shutdown_nothing_is_replaced(site):
    site.module.spares.stop()
    site.set("offline", "0")
    assert in_service(site) == {}
