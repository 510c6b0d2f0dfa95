"""Targets from group to group: the protocol of rfc/acquisition.md, each sentence under a name."""

from __future__ import annotations

import pytest

from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.resource.inventory import GROUP_NAME_CHARS_MAX, GROUPS_MAX


def test_without_acquirer_and_job_they_leave_at_once(h):
    h.acquire("T", "b")
    assert h.assign("0-1", "b") == ["T: grow 0-1 up 0-1 down "]
    assert h.row("assign", "node0") == {"group": "b"}
    assert h.row("leaving", "node0") is None


def test_without_acquirer_they_leave_once_no_job_holds_them(h):
    h.acquire("T", "b")
    h.hold(1, "0-1")
    h.hold(2, "0")
    assert h.assign("0-2", "b") == ["T: grow 2 up 2 down "]
    assert h.row("leaving", "node0") == {"from": "default", "to": "b", "graceful": False}
    assert h.unhold(1, "0-1") == ["T: grow 1 up 1 down "]
    assert h.unhold(2, "0") == ["T: grow 0 up 0 down "]
    assert h.row("leaving", "node0") is None


def test_typed_is_told_to_shrink_and_only_a_release_moves_on(h):
    h.acquire("S", "default")
    h.acquire("T", "b")
    h.hold(1, "0")
    assert h.assign("0-1", "b") == ["S: shrink 0-1"]
    assert h.unhold(1, "0") == []
    assert h.release("S", "default", "0-1") == ["T: grow 0-1 up 0-1 down "]


def test_a_release_does_not_take_a_target_from_a_job(h):
    h.acquire("S", "default")
    h.acquire("T", "b")
    h.hold(1, "0")
    h.assign("0", "b")
    assert h.release("S", "default", "0") == []
    assert h.unhold(1, "0") == ["T: grow 0 up 0 down "]


def test_plain_is_told_and_they_leave_once_no_job_holds_them(h):
    h.acquire("P")
    h.acquire("T", "b")
    h.hold(1, "0")
    assert h.assign("0-1", "b") == ["P: shrink 0-1", "T: grow 1 up 1 down "]
    assert h.unhold(1, "0") == ["T: grow 0 up 0 down "]


def test_a_plain_acquirer_is_not_told_of_what_joins_and_may_move_on_unmentioned(h):
    h.acquire("P")
    h.acquire("T", "b")
    h.assign("6", "default")
    assert h.release("T", "b", "6") == []
    assert h.members("default") == "0-4,6"
    assert h.drain("6") == []
    assert h.undrain("6") == []
    assert h.assign("6", "b") == ["T: grow 6 up 6 down "]
    h.assign("6", "default")
    h.release("T", "b", "6")
    h.disconnect("P")
    assert h.acquire("P") == ["P: grow 0-4,6 up 0-4,6 down "]


def test_typed_lost_while_leaving_jobs_are_raised_once_and_nothing_leaves_before_they_end(h):
    h.acquire("S", "default")
    h.acquire("T", "b")
    h.hold(1, "0-1")
    h.hold(2, "2")
    h.hold(3, "3")
    h.assign("0-2,4", "b")
    assert h.disconnect("S") == ["raise (1, 2) on 0-2", "S: ended default 61", "T: grow 4 up 4 down "]
    assert h.acquire("S", "default") == ["S: grow 3 up 3 down "]
    h.assign("3", "b")
    assert h.disconnect("S")[0] == "raise (3,) on 3"
    assert h.unhold(1, "0-1") == ["T: grow 0-1 up 0-1 down "]


def test_a_job_is_raised_once_even_if_two_acquirers_are_lost(h):
    h.acquire("S", "default")
    h.hold(1, "0-1")
    h.assign("0", "b")
    assert h.disconnect("S")[0] == "raise (1,) on 0"
    h.acquire("S", "default")
    h.assign("1", "b")
    assert h.disconnect("S") == ["S: ended default 61"]


def test_what_was_released_raises_no_job_when_the_acquirer_is_lost(h):
    h.acquire("S", "default")
    h.assign("0", "b")
    h.release("S", "default", "0")
    assert h.disconnect("S") == ["S: ended default 61"]


def test_plain_lost_while_leaving_raises_nothing(h):
    h.acquire("P")
    h.hold(1, "0")
    h.assign("0", "b")
    assert h.disconnect("P") == ["P: ended default 61"]
    assert h.move("0") == ("", "0", "")
    h.unhold(1, "0")
    assert h.module.group_of(0) == "b"


def test_acquired_again_while_leaving_the_first_leaves_them_out(h):
    h.acquire("S", "default")
    h.hold(1, "0")
    h.assign("0", "b")
    h.disconnect("S")
    assert h.acquire("S2", "default") == ["S2: grow 1-4 up 1-4 down "]
    h.acquire("T", "b")
    assert h.unhold(1, "0") == ["T: grow 0 up 0 down "]


def test_a_second_assign_only_changes_the_destination(h):
    h.assign("", "c")
    for who, group in (("S", "default"), ("T", "b"), ("U", "c")):
        h.acquire(who, group)
    h.assign("0", "b")
    assert h.assign("0", "c") == []
    assert h.row("leaving", "node0") == {"from": "default", "to": "c", "graceful": False}
    assert h.release("S", "default", "0") == ["U: grow 0 up 0 down "]


def test_back_to_the_group_that_it_leaves_it_must_be_released_and_is_grown_again(h):
    h.acquire("S", "default")
    h.assign("0", "b")
    assert h.assign("0", "default") == []
    assert h.move("0") == ("", "0", "")
    assert h.release("S", "default", "0") == ["S: grow 0 up 0 down "]
    assert h.row("assign", "node0") is None
    assert h.row("leaving", "node0") is None


def test_back_home_a_job_still_holds_back_the_grow(h):
    h.acquire("S", "default")
    h.hold(1, "0")
    h.assign("0", "b")
    h.assign("0", "default")
    assert h.release("S", "default", "0") == []
    assert h.unhold(1, "0") == ["S: grow 0 up 0 down "]


def test_back_to_a_group_without_acquirer_it_is_home_at_once(h):
    h.hold(1, "0")
    h.assign("0", "b")
    h.assign("0", "default")
    assert h.move("0") == ("0", "", "")
    assert h.acquire("S", "default") == ["S: grow 0-4 up 0-4 down "]


def test_on_its_way_home_when_the_acquirer_is_lost_it_is_home(h):
    h.acquire("S", "default")
    h.hold(1, "0")
    h.assign("0", "b")
    h.assign("0", "default")
    assert h.disconnect("S") == ["raise (1,) on 0", "S: ended default 61"]
    assert h.acquire("S2", "default") == ["S2: grow 0-4 up 0-4 down "]


def test_back_to_a_plain_acquirer_it_joins_unmentioned(h):
    h.acquire("P")
    h.hold(1, "0")
    assert h.assign("0", "b") == ["P: shrink 0"]
    h.assign("0", "default")
    assert h.unhold(1, "0") == []
    assert h.members("default") == "0-4"
    assert h.drain("0") == []


def test_of_a_leaving_target_nothing_more_is_heard_and_the_grow_tells_the_latest(h):
    h.acquire("S", "default")
    h.acquire("T", "b")
    h.assign("0-2", "b")
    assert h.drain("0") == []
    assert h.set("offline", "1") == []
    assert h.release("S", "default", "0-2") == ["T: grow 0-2 up 2 down 0-1"]


def test_include_returns_to_the_configured_group_else_default(h):
    h.assign("0-1,6", "exclude")
    h.include("0,6")
    assert (h.members("default"), h.members("b"), h.members("exclude")) == ("0,2-4", "6-7", "1,5")
    assert h.row("assign", "node0") is None
    h.include("5")  # configured as excluded: asked for all the same
    assert h.members("default") == "0,2-5"
    assert h.row("assign", "node5") == {"group": "default"}


def test_excluding_a_drained_target_undrains_it_with_an_event(h):
    h.drain("0-1")
    h.assign("0", "exclude")
    context = {"idset": "0", "nodelist": "node0", "reason": "excluded", "overwrite": 0}
    assert h.events("undrain") == [("undrain", context)]
    assert list(h.drained()) == ["1"]
    assert h.row("drain", "node0") is None


def test_it_stays_drained_until_it_is_excluded(h):
    h.hold(1, "0")
    h.drain("0")
    h.assign("0", "exclude")
    assert list(h.drained()) == ["0"]
    h.unhold(1, "0")
    assert h.drained() == {}


def test_assign_makes_a_group_that_stays(h):
    h.assign("0", "new")
    assert h.row("group", "new") == {}
    h.assign("0", "default")
    assert h.members("new") == ""


def test_assign_where_it_is_already_says_nothing(h):
    assert h.assign("0-4", "default") == []
    assert h.effects == []


def test_assign_and_release_are_journaled(h):
    h.assign("0", "b")
    assign = {"idset": "0", "nodelist": "node0", "group": "b", "graceful": False, "user": "ann"}
    release = {"idset": "0", "nodelist": "node0", "from": "default", "group": "b"}
    assert h.events() == [("assign", assign), ("release", release)]


@pytest.mark.parametrize("name", ["", "a b", "-x", "x" * (GROUP_NAME_CHARS_MAX + 1)])
def test_names_that_are_none(h, name):
    with pytest.raises(InvalidValue, match="group name"):
        h.assign("0", name)


def test_groups_are_limited(h):
    for n in range(GROUPS_MAX - 3):
        h.assign("", f"g{n}")
    with pytest.raises(LimitExceeded, match=str(GROUPS_MAX)):
        h.assign("0", "onemore")
    assert h.members("default") == "0-4"


def test_unknown_targets_are_all_named_and_nothing_moves(h):
    for call in (lambda: h.assign("0,8,10", "new"), lambda: h.include("5,8,10")):
        with pytest.raises(InvalidValue, match="ranks 8,10 do not exist"):
            call()
    assert h.members("default") == "0-4"
    assert h.row("group", "new") is None


def test_overlapping_configuration_names_target_and_both_groups(start):
    with pytest.raises(InvalidValue, match=r"'b' and 'c' both name ranks 1-2 \(node\[1-2\]\)"):
        start(groups={"b": "0-2", "c": "1-3"})


@pytest.mark.parametrize(("groups", "named"), [({"b": "7-9"}, "ranks 8-9"), ({"default": "0"}, "default")])
def test_configurations_that_cannot_be(start, groups, named):
    with pytest.raises(InvalidValue, match=named):
        start(groups=groups)


def test_groups_view(h):
    h.acquire("S", "default")
    h.assign("0", "b")
    views = {view.name: view for view in h.module.report.groups()}
    default, b = views["default"], views["b"]
    assert tuple(map(str, default[1:4])) == ("1-4", "0", "")
    assert (default.acquirer, default.dialect) == ("S", "typed")
    assert tuple(map(str, b[1:4])) == ("6-7", "", "0")
    assert (b.acquirer, b.dialect) == (None, None)


def test_foreign_targets_are_those_no_scheduler_of_the_groups_may_use(h):
    h.acquire("S", "default")
    h.assign("0", "b")
    assert str(h.module.foreign(["default"], h.module.resources.ranks)) == "5-7"
    h.release("S", "default", "0")
    assert str(h.module.foreign(["default"], h.module.resources.ranks)) == "0,5-7"
    assert str(h.module.foreign(["default", "b"], h.module.resources.ranks)) == "5"


# ---- graceful


def test_graceful_drains_what_is_held_and_moves_the_rest(h):
    h.acquire("S", "default")
    h.acquire("T", "b")
    h.hold(1, "0")
    assert h.assign("0-1", "b", graceful=True) == ["S: shrink 1", "S: up  down 0"]
    assert h.move("0-1") == ("", "1", "0")
    assert h.row("leaving", "node0") == {"from": "default", "to": "b", "graceful": True}
    assert h.drained()["0"].reason == "moving to group b"
    assert h.unhold(1, "0") == ["S: shrink 0"]
    assert h.release("S", "default", "0-1") == ["T: grow 0-1 up 0-1 down "]
    assert h.drained() == {}
    assert not [key for key in h.rows if key[0] in ("drain", "leaving")]


def test_graceful_without_acquirer(h):
    h.hold(1, "0")
    h.assign("0", "b", graceful=True)
    assert h.members("default") == "0-4"
    h.unhold(1, "0")
    assert (h.members("b"), h.drained()) == ("0,6-7", {})


def test_graceful_exclude_and_include(h):
    h.hold(1, "0")
    h.assign("0", "exclude", graceful=True)
    h.unhold(1, "0")
    assert (h.members("exclude"), h.drained()) == ("0,5", {})
    h.include("0", graceful=True)
    assert h.members("default") == "0-4"


def test_an_excluded_target_under_a_job_is_not_drained_to_move_on(start, r):
    h = start(dynamic=True, groups={"exclude": "3"}, running=[(1, "3")])
    h.set("lost", "3")
    h.add(r("0", "node3"))
    h.include("3", graceful=True)
    assert (h.members("exclude"), h.drained()) == ("3", {})
    h.unhold(1, "3")
    assert (h.members("default"), h.drained()) == ("0-7", {})


def test_graceful_leaves_the_drain_that_was_there(h):
    h.hold(1, "0")
    h.drain("0", "broken fan")
    h.assign("0", "b", graceful=True)
    h.unhold(1, "0")
    assert h.drained()["0"].reason == "broken fan"


def test_a_person_who_overwrites_the_drain_of_a_move_owns_it(h):
    h.hold(1, "0")
    h.assign("0", "b", graceful=True)
    h.drain("0", "broken fan", mode="overwrite")
    h.unhold(1, "0")
    assert (h.members("b"), h.drained()["0"].reason) == ("0,6-7", "broken fan")


def test_undraining_does_not_call_off_the_move(h):
    h.acquire("S", "default")
    h.hold(1, "0")
    h.assign("0", "b", graceful=True)
    assert h.undrain("0") == ["S: up 0 down "]
    assert h.unhold(1, "0") == ["S: shrink 0"]


def test_assigned_home_the_graceful_move_is_called_off(h):
    h.acquire("S", "default")
    h.hold(1, "0")
    h.assign("0", "b", graceful=True)
    assert h.assign("0", "default") == ["S: up 0 down "]
    assert (h.move("0"), h.drained()) == (("0", "", ""), {})
    assert h.row("leaving", "node0") is None
    assert h.unhold(1, "0") == []


def test_a_plain_assign_hurries_a_graceful_one(h):
    h.acquire("S", "default")
    h.hold(1, "0")
    h.assign("0", "b", graceful=True)
    assert h.assign("0", "b") == ["S: shrink 0"]
    assert h.row("leaving", "node0") == {"from": "default", "to": "b", "graceful": False}
    h.unhold(1, "0")
    h.release("S", "default", "0")
    assert h.drained() == {}


def test_a_graceful_assign_of_what_leaves_only_changes_the_destination(h):
    h.acquire("S", "default")
    h.hold(1, "0")
    h.assign("0", "exclude")
    h.assign("0", "b", graceful=True)
    assert h.move("0") == ("", "0", "")
    assert h.drained() == {}


def test_nothing_is_sent_twice_over_a_long_way(h):
    h.acquire("S", "default")
    h.hold(1, "0")
    h.assign("0", "b", graceful=True)
    h.assign("0", "exclude", graceful=True)
    assert h.unhold(1, "0") == ["S: shrink 0"]
    h.release("S", "default", "0")
    assert h.members("exclude") == "0,5"
