"""Status, properties, the journal's bound, and the shape of the cost."""

from __future__ import annotations

import pytest

from fluxsched.core.idset import EMPTY
from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.resource.inventory import PROPERTIES_MAX


def test_status(start):
    h = start(groups={"b": "6-7", "exclude": "5"}, dynamic=True, online="0-5")
    h.set("torpid", "1")
    h.drain("2-3")
    h.set("lost", "7")
    status = h.module.report.status()
    sets = {key: str(status[key]) for key in ("online", "offline", "exclude", "torpid", "lost")}
    assert sets == {"online": "0-5", "offline": "6", "exclude": "5", "torpid": "1", "lost": "7"}
    groups = {name: str(ranks) for name, ranks in status["groups"].items()}
    assert groups == {"default": "0-4", "exclude": "5", "b": "6"}
    assert [str(targets) for targets in status["drain"]] == ["2-3"]
    assert str(status["R"].ranks) == "0-7"


def test_equal_drains_are_one_line(h):
    h.drain("0,2")
    h.drain("1", "other")
    assert list(h.drained()) == ["0,2", "1"]


def test_a_lost_target_is_not_among_the_drained(start):
    h = start(dynamic=True)
    h.drain("0-1")
    h.set("lost", "0")
    assert list(h.drained()) == ["1"]


def test_sched_status_leaves_out_what_is_excluded_or_lost(start):
    h = start(groups={"exclude": "5"}, dynamic=True)
    h.set("lost", "7")
    h.drain("0")
    h.set("offline", "1")
    status = h.module.report.sched_status()
    assert (str(status["all"].ranks), str(status["down"].ranks), len(status["allocated"])) == ("0-4,6", "0-1", 0)


def test_usable_and_unknown_groups(h):
    h.drain("0")
    assert str(h.module.usable("default")) == "1-4"
    for read in (h.module.usable, h.module.targets_of_group):
        with pytest.raises(Refused, match=r"no group 'x': the groups are b, default, exclude"):
            read("x")


def test_group_of(h):
    assert [h.module.group_of(rank) for rank in (0, 5, 7, 8)] == ["default", "exclude", "b", None]


def test_properties_are_checked_whole(h):
    h.properties("add", ssd="0-1")
    assert h.events() == [("property-add", {"properties": {"ssd": "0-1"}})]
    for verb, properties, named in (
        ("add", {"ssd": "2", "x": "8-9"}, "ranks 8-9"),
        ("add", {"ssd": "2", "no!": "3"}, "no!"),
        ("add", {}, "no target"),
        ("remove", {"ssd": "0-2"}, "2"),
    ):
        with pytest.raises(InvalidValue, match=named):
            h.properties(verb, **properties)
    assert str(h.module.resources.properties["ssd"]) == "0-1"
    h.properties("remove", ssd="0-1")
    assert h.module.resources.properties == {}


def test_properties_are_limited(h):
    with pytest.raises(LimitExceeded, match=str(PROPERTIES_MAX)):
        h.properties("add", **{f"p{n}": "0" for n in range(PROPERTIES_MAX + 1)})


def test_an_expiration_must_be_a_time(h):
    with pytest.raises(InvalidValue):
        h.expire(-1.0)
    assert h.module.resources.expiration_s == 0.0


def test_the_journal_is_bounded_and_says_what_was_dropped(start):
    h = start(history_events_max=4)
    for n in range(5):
        h.set(("offline", "online")[n % 2], "0")
    events = h.module.journal.events
    assert events[0] == {"timestamp": 101.0, "name": "truncate"}
    assert [event["timestamp"] for event in events[1:]] == [102.0, 103.0, 104.0, 105.0]


def test_every_event_is_published_once_and_remembered(h):
    h.drain("0")
    h.undrain("0")
    assert [event["name"] for event in h.module.journal.events[-2:]] == ["drain", "undrain"]
    assert h.module.journal.take_effects() == []


def test_an_inventory_of_nothing(start, r):
    h = start(r("", ""))
    assert h.acquire("S", "default") == ["S: grow  up  down "]
    assert h.module.report.online == EMPTY
