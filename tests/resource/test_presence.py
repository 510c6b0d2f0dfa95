"""Targets that come and go: agents, lost and returned targets, reload (design.md 'Groups', dynamic inventories)."""

from __future__ import annotations

import errno

import pytest

from fluxsched.core.topology import EMPTY_TOPOLOGY, Topology
from fluxsched.errors import InvalidValue, LocalProtocolError, Refused
from fluxsched.resource.effects import Saved, ToAcquirer
from fluxsched.resource.inventory import Inventory


def test_events_of_the_monitor_are_changes_only(h):
    h.set("offline", "0-1")
    assert h.events() == [("offline", {"idset": "0-1"})]
    h.set("offline", "1")
    assert h.events() == []
    h.set("torpid", "0-2")  # said of those online
    assert h.events() == [("torpid", {"idset": "2"})]
    h.set("offline", "2")
    assert h.events() == [("offline", {"idset": "2"}), ("lively", {"idset": "2"})]
    h.set("online", "0-2")
    assert h.events() == [("online", {"idset": "0-2"})]


@pytest.mark.parametrize("state", ["online", "offline", "torpid", "lively"])
def test_availability_of_unknown_targets_names_them(h, state):
    with pytest.raises(InvalidValue, match="ranks 8-9 do not exist"):
        h.set(state, "0,8-9")


def test_a_lost_target_leaves_to_no_group_and_is_released(start):
    h = start(dynamic=True)
    h.acquire("S", "default")
    assert h.set("lost", "0-1") == ["S: shrink 0-1"]
    assert h.move("0-1") == ("", "0-1", "")
    assert h.release("S", "default", "0-1") == []
    assert (h.module.group_of(0), str(h.module.lost), h.members("default")) == (None, "0-1", "2-7")
    assert [name for name, _ in h.events()] == ["release"]
    assert h.rows == {}


def test_resurrection(start):
    """Targets lost before a scheduler is loaded anew are not in its first grow."""
    h = start(dynamic=True)
    h.acquire("S", "default")
    h.hold(1, "0")
    h.set("lost", "0-1")
    h.disconnect("S")
    assert h.acquire("S", "default") == ["S: grow 2-7 up 2-7 down "]
    assert h.unhold(1, "0") == []


def test_plain_and_lost(start):
    h = start(dynamic=True)
    h.acquire("P")
    assert h.set("lost", "0") == ["P: shrink 0"]
    assert h.module.group_of(0) is None


def test_an_agent_that_returns_is_a_new_grow_with_its_old_rank(start, r):
    h = start(dynamic=True)
    h.acquire("S", "default")
    h.drain("3")
    h.set("lost", "2-3")
    h.release("S", "default", "2-3")
    assert h.add(r("0-1", "node[2-3]")) == ["S: grow 2-3 up  down 2-3"]
    assert h.events("join") == [("join", {"idset": "2-3", "nodelist": "node[2-3]"})]
    assert h.set("online", "2-3") == ["S: up 2 down "]
    assert str(h.module.lost) == ""


def test_returned_before_it_was_released_it_must_still_be(start, r):
    h = start(dynamic=True)
    h.acquire("S", "default")
    h.hold(1, "0")
    h.set("lost", "0")
    assert h.add(r("0", "node0")) == []
    assert h.release("S", "default", "0") == []
    assert h.unhold(1, "0") == ["S: grow 0 up  down 0"]


def test_returned_to_a_group_without_acquirer_it_is_home(start, r):
    h = start(dynamic=True)
    h.hold(1, "0")
    h.set("lost", "0")
    h.add(r("0", "node0"))
    assert h.acquire("S", "default") == ["S: grow 0-7 up 1-7 down 0"]


def test_a_new_host_that_is_excluded_is_not_drained(start, r):
    drained = Saved("drain", "new0", {"timestamp": 1.0, "reason": "old", "user": None})
    h = start(saved=[drained])
    h.reload(r("0-8", "node[0-7],new0"), {"exclude": "8"})
    assert (h.members("exclude"), h.drained(), h.rows) == ("8", {}, {})


def test_returned_with_other_cores_it_grows_with_them(start, r):
    h = start(dynamic=True)
    h.acquire("S", "default")
    h.set("lost", "0")
    h.release("S", "default", "0")
    h.add(r("0", "node0", cores="0-7"))
    assert h.resources().summary() == "rank0/core[0-7]"


def test_a_lost_target_keeps_its_assignment_and_moves_on_return(start, r):
    h = start(dynamic=True)
    h.acquire("S", "default")
    h.assign("0", "b")
    h.set("lost", "0")
    h.acquire("T", "b")
    assert h.release("S", "default", "0") == []
    assert h.add(r("0", "node0")) == ["T: grow 0 up  down 0"]


def test_a_lost_target_drained_for_a_move_returns_undrained(start, r):
    h = start(dynamic=True)
    h.hold(1, "0")
    h.assign("0", "b", graceful=True)
    h.set("lost", "0")
    h.unhold(1, "0")
    h.add(r("0", "node0"))
    assert (h.members("b"), h.drained()) == ("0", {})


def test_new_hosts_get_new_ranks_in_default_and_those_that_return_their_group(start, r):
    h = start(groups={"b": "7"}, dynamic=True)
    h.acquire("S", "default")
    h.acquire("T", "b")
    h.set("lost", "7")
    h.release("T", "b", "7")
    lines = h.add(r("0-2", "new0,node7,new2"))
    assert lines == ["S: grow 8-9 up  down 8-9", "T: grow 7 up  down 7"]
    assert h.module.resources.host(9) == "new2"


def test_what_is_there_already_is_no_change(start, r):
    h = start(dynamic=True)
    h.add(r("0", "node0"))
    assert h.effects == []
    with pytest.raises(Refused, match=r"ranks 1-2 \(node\[1-2\]\)") as caught:
        h.add(r("0-1", "node[1-2]", cores="0"))
    assert caught.value.errnum == errno.EEXIST


def test_a_target_that_a_job_of_before_the_restart_holds_grows_when_it_is_free(start, r):
    h = start(r("0-6", "node[0-6]"), dynamic=True, running=[(1, "7")])
    h.acquire("S", "default")
    assert h.add(r("7", "node7")) == []
    assert h.unhold(1, "7") == ["S: grow 7 up  down 7"]


def test_lost_targets_are_no_targets_for_people(start):
    h = start(dynamic=True)
    h.set("lost", "0")
    calls = (
        lambda: h.drain("0-1"),
        lambda: h.undrain("0", mode="update"),
        lambda: h.assign("0", "b"),
        lambda: h.include("0"),
        lambda: h.set("online", "0"),
        lambda: h.properties("add", x="0"),
    )
    for call in calls:
        with pytest.raises(InvalidValue, match=r"rank 0 \(node0\) is lost"):
            call()
    assert h.set("offline", "0") == []
    assert h.set("lost", "0") == []


def test_a_static_inventory_neither_loses_nor_grows(h, r):
    with pytest.raises(InvalidValue, match="not dynamic"):
        h.set("lost", "0")
    with pytest.raises(InvalidValue, match=r"new0.*not dynamic"):
        h.add(r("0", "new0"))


def test_an_inventory_needs_hosts_and_a_method_of_rfc_44(r):
    with pytest.raises(InvalidValue, match="nodelist"):
        Inventory(type(r()).parse({"version": 1, "execution": {"R_lite": [{"rank": "0", "children": {}}]}}), "reload")
    with pytest.raises(InvalidValue, match="guesswork"):
        Inventory(r(), "guesswork")


# ---- jobs


def test_a_job_that_releases_what_it_does_not_hold_is_our_bug(h):
    h.hold(1, "0")
    with pytest.raises(LocalProtocolError, match="ranks 1"):
        h.unhold(1, "0-1")
    assert str(h.module.held) == "0"


def test_holding_twice_is_holding_once(h):
    h.hold(1, "0-1")
    h.hold(1, "1-2")
    h.unhold(1, "1")
    assert str(h.module.held) == "0,2"


# ---- reload


def test_reload_keeps_ranks_of_known_hosts_and_numbers_new_ones(h, r):
    h.acquire("S", "default")
    h.drain("0")
    lines = h.reload(r("0-8", "new,node[0-7]"), groups={"b": "7-8", "exclude": "6"})
    assert lines == ["S: grow 8 up  down 8"]
    assert (h.members("default"), h.members("b"), h.members("exclude")) == ("0-4,8", "6-7", "5")
    assert h.module.resources.host(8) == "new"
    assert list(h.drained()) == ["0"]
    assert h.events("resource-define") == [("resource-define", {"method": "reload"})]


def test_reload_loses_what_vanished(h, r):
    h.acquire("S", "default")
    assert h.reload(r("0-5", "node[2-7]"), groups={"b": "4-5", "exclude": "3"}) == ["S: shrink 0-1"]
    assert h.members("default") == "2-4"
    assert str(h.module.lost) == "0-1"
    h.release("S", "default", "0-1")
    assert h.reload(r(), groups={"b": "6-7", "exclude": "5"}) == ["S: grow 0-1 up  down 0-1"]


def test_reload_shrinks_and_regrows_what_changed(h, r):
    h.acquire("S", "default")
    changed = r("0", "node0", cores="0-7") | r("1-7", "node[1-7]")
    assert h.reload(changed, groups={"b": "6-7", "exclude": "5"}) == ["S: shrink 0"]
    assert h.release("S", "default", "0") == ["S: grow 0 up 0 down "]
    assert h.resources().summary() == "rank0/core[0-7]"


def test_reload_compares_first_so_that_what_stays_is_not_shrunk(h, r):
    """The same R, more nodes, one node with more cores: only what is really gone or other is taken away."""
    groups = {"b": "6-7", "exclude": "5"}
    h.acquire("S", "default")
    assert h.reload(r(), groups=groups) == []
    assert h.reload(r("0-8", "node[0-8]"), groups=groups) == ["S: grow 8 up  down 8"]
    text = {"version": 1, "execution": {"nodelist": ["node[0-8]"], "R_lite": [
        {"rank": "0-3,5-8", "children": {"core": "0-3"}}, {"rank": "4", "children": {"core": "0-7"}},
    ]}}  # fmt: skip
    assert h.reload(type(r()).parse(text), groups=groups) == ["S: shrink 4"]


def test_reload_tells_what_comes_before_what_goes_so_that_no_group_is_empty(h, r):
    h.acquire("S", "default")
    lines = h.reload(r("0-7", "other[0-7]"), groups={"b": "6-7", "exclude": "5"})
    assert lines == ["S: grow 8-12 up  down 8-12", "S: shrink 0-4"]


def test_reload_moves_what_is_configured_elsewhere_but_not_what_is_assigned(h, r):
    h.assign("0", "default")
    h.assign("1", "b")
    h.reload(r(), groups={"c": "0-1", "b": "6"})
    assert (h.members("c"), h.members("b"), h.members("default"), h.members("exclude")) == ("0", "1,6", "2-5,7", "")


def test_reload_is_refused_while_jobs_hold_what_it_takes_unless_forced(h, r):
    h.acquire("S", "default")
    h.hold(1, "0")
    h.hold(2, "1")
    h.hold(3, "2-3")
    new = r("1", "node1", cores="0") | r("2-7", "node[2-7]")
    with pytest.raises(Refused) as caught:
        h.reload(new, groups={"b": "2"})
    assert caught.value.errnum == errno.EBUSY
    for text in ("rank 0 (node0) not in", "rank 1 (node1) with other", "rank 2 (node2) going to group 'b'"):
        assert text in str(caught.value)
    assert h.members("default") == "0-4"
    lines = h.reload(new, groups={"b": "2"}, force=True)
    assert lines == ["S: grow 5-7 up 5-7 down ", "S: shrink 0-2"]


def test_reload_refuses_a_configuration_that_a_start_would_refuse(h, r):
    with pytest.raises(InvalidValue, match="both name"):
        h.reload(r(), groups={"b": "0", "c": "0"})
    assert h.members("default") == "0-4"


def test_reload_tells_what_changed_in_properties_and_expiration(h, r):
    h.acquire("S", "default")
    groups = {"b": "6-7", "exclude": "5"}
    h.properties("add", live="1")
    lines = h.reload(r(properties={"ssd": "0,6"}, expiration=5000.0), groups=groups)
    assert lines == ["S: update 5000.0 {'ssd': '0'} {}"]
    assert str(h.module.resources.properties["live"]) == "1"


def test_reload_tells_the_switches_of_the_group_where_they_are_others(h, r):
    leaves = [{"name": "l0", "hosts": "node[0-4]"}, {"name": "l1", "hosts": "node[5-7]"}]
    groups = {"b": "6-7", "exclude": "5"}
    h.acquire("S", "default")
    assert h.resources().topology == EMPTY_TOPOLOGY
    assert h.reload(r().with_topology(Topology.parse(leaves)), groups=groups) == ["S: update None {} {}"]
    (change,) = [effect.change for effect in h.effects if isinstance(effect, ToAcquirer)]
    assert change.topology == Topology.parse(leaves[:1])
    leaves[1]["hosts"] = "node[5-6]"
    assert h.reload(r().with_topology(Topology.parse(leaves)), groups=groups) == []
    h.acquire("T", "b")
    assert h.resources().topology.to_json() == [{"name": "l1", "hosts": "node6"}]
    h.reload(r(), groups=groups)
    assert h.module.resources.topology == EMPTY_TOPOLOGY
    assert "scheduling" not in h.module.report.sched_status()["all"].to_json()
