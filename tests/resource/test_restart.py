"""What a restart restores from its rows: drains, assignments, groups, moves, properties, the journal (design.md)."""

from __future__ import annotations

from fluxsched.resource.effects import Saved

CONFIG = {"b": "6-7", "exclude": "5"}


def test_a_drain_survives_and_stays_as_it_was(start, h):
    h.drain("0-1", "broken fan")
    again = start(groups=CONFIG, saved=h.saved())
    assert again.drained() == h.drained()
    assert again.acquire("S", "default") == ["S: grow 0-4 up 2-4 down 0-1"]


def test_a_drain_follows_the_host_when_ranks_are_renumbered(start, h, r):
    h.drain("1", "broken fan")
    again = start(r("0-7", "node[7,6,5,4,3,2,1,0]"), saved=h.saved())
    assert list(again.drained()) == ["6"]
    again.undrain("6")
    assert again.rows == {}


def test_several_targets_a_host_follow_by_index(start, r):
    h = start(r("0-3", "a,a,b,b"))
    h.drain("1", "first host, second target")
    assert ("drain", "a,1") in h.rows
    again = start(r("0-3", "b,b,a,a"), saved=h.saved())
    assert list(again.drained()) == ["3"]


def test_a_drained_target_that_its_host_has_no_more_stands_for_the_first(start, r):
    h = start(r("0-1", "a,a"))
    h.drain("1", "broken")
    again = start(r("0", "a"), saved=h.saved())
    assert list(again.drained()) == ["0"]
    assert set(again.rows) == {("drain", "a")}


def test_the_drain_of_an_absent_host_is_kept_and_counts_when_it_joins(start, h, r):
    h.drain("7", "broken")
    again = start(r("0-6", "node[0-6]"), saved=h.saved(), dynamic=True)
    assert again.drained() == {}
    assert ("drain", "node7") in again.rows
    again.add(r("7", "node7"))
    assert list(again.drained()) == ["7"]


def test_live_assignments_and_groups_survive_and_override_the_configuration(start, h):
    h.assign("0,6", "new")
    h.assign("1", "exclude")
    again = start(groups=CONFIG, saved=h.saved())
    assert (again.members("new"), again.members("b"), again.members("exclude")) == ("0,6", "7", "1,5")
    again.include("0,6")
    assert (again.members("default"), again.members("b"), again.members("new")) == ("0,2-4", "6-7", "")
    last = start(groups={"new": "2", **CONFIG}, saved=again.saved())
    assert last.members("new") == "2"


def test_an_assignment_overrides_until_assigned_back_even_if_the_configuration_agrees_meanwhile(start, h):
    h.assign("0", "b")
    meanwhile = start(groups={"b": "0"}, saved=h.saved())
    assert meanwhile.members("b") == "0"
    after = start(groups={"b": "1"}, saved=meanwhile.saved())
    assert after.members("b") == "0-1"


def test_a_group_of_an_assignment_exists_even_if_its_row_is_gone(start):
    h = start(saved=[Saved("assign", "node1", {"group": "old"})])
    assert h.members("old") == "1"


def test_leaving_goes_on_by_the_second_rule(start, h):
    h.acquire("S", "default")
    h.hold(1, "0")
    h.assign("0-1", "b")
    assert h.row("leaving", "node1") is not None
    again = start(groups=CONFIG, saved=h.saved(), running=[(1, "0")])
    assert again.move("0-1") == ("1", "0", "")
    again.acquire("S", "default")
    again.acquire("T", "b")
    assert again.lines() == ["T: grow 1,6-7 up 1,6-7 down "]
    assert again.unhold(1, "0") == ["T: grow 0 up 0 down "]
    assert again.row("leaving", "node0") is None


def test_leaving_to_where_it_is_configured_now(start, h):
    h.acquire("S", "default")
    h.hold(1, "6")
    h.assign("6", "default")
    h.include("6")
    again = start(groups={"c": "6"}, saved=[Saved("leaving", "node6", {"from": "b", "to": "b"})], running=[(1, "6")])
    assert again.move("6") == ("", "6", "")
    again.unhold(1, "6")
    assert again.members("c") == "6"


def test_leaving_home_is_home_after_a_restart(start, h):
    h.acquire("S", "default")
    h.hold(1, "0")
    h.assign("0", "b")
    h.assign("0", "default")
    again = start(groups=CONFIG, saved=h.saved(), running=[(1, "0")])
    assert again.move("0") == ("0", "", "")
    assert again.row("leaving", "node0") is None


def test_a_graceful_move_goes_on(start, h):
    h.hold(1, "0")
    h.assign("0", "b", graceful=True)
    again = start(groups=CONFIG, saved=h.saved(), running=[(1, "0")])
    assert (again.move("0"), list(again.drained())) == (("", "", "0"), ["0"])
    again.unhold(1, "0")
    assert (again.members("b"), again.drained()) == ("0,6-7", {})
    assert set(again.rows) == {("assign", "node0")}


def test_a_graceful_move_whose_job_ended_in_between_is_done_at_the_start(start, h):
    h.hold(1, "0")
    h.assign("0", "b", graceful=True)
    again = start(groups=CONFIG, saved=h.saved())
    assert (again.members("b"), again.drained()) == ("0,6-7", {})


def test_a_drain_made_for_a_move_that_is_over_is_undone(start):
    row = {"timestamp": 1.0, "reason": "moving to group b", "user": None, "for_move": True}
    assert start(saved=[Saved("drain", "node0", row)]).drained() == {}


def test_excluded_by_configuration_now_a_drained_target_is_undrained(start, h):
    h.drain("0")
    again = start(groups={"exclude": "0"}, saved=h.saved())
    assert again.drained() == {}
    assert [context["idset"] for _, context in again.events("undrain")] == ["0"]


def test_live_properties_survive_in_both_directions(start, r):
    source = r(properties={"ssd": "0-1"})
    h = start(source)
    h.properties("add", fast="2")
    h.properties("remove", ssd="0")
    assert h.row("property", "node0") == {"add": [], "remove": ["ssd"]}
    again = start(source, saved=h.saved())
    assert {name: str(ranks) for name, ranks in again.module.resources.properties.items()} == {"ssd": "1", "fast": "2"}


def test_journal_history_is_restored_before_the_restart_event(start):
    old = [{"timestamp": 1.0, "name": "truncate"}, {"timestamp": 2.0, "name": "online", "context": {"idset": "0"}}]
    h = start(saved=[Saved("journal", str(n), event) for n, event in enumerate(old)])
    assert h.module.journal.events[:2] == old
    assert [event["name"] for event in h.module.journal.events[2:]] == ["restart", "resource-define"]


def test_the_start_journals_what_there_is(start):
    h = start(online="0-3")
    restart = {"ranks": "0-7", "online": "0-3", "nodelist": "node[0-7]"}
    assert h.events() == [("restart", restart), ("resource-define", {"method": "configuration"})]
