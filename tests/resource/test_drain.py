"""Drain and undrain: all modes, all offenders named, nothing by halves (rfc/admin.md, RFC 44)."""

from __future__ import annotations

import errno

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.outages import Outage
from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.resource.drain import OVERWRITE, REASON_CHARS_MAX, REASONS_MAX


def lines(h):
    return {targets: (info.timestamp_s, info.reason, info.user) for targets, info in h.drained().items()}


def test_who_when_and_why(h):
    h.drain("0-1", "broken fan")
    assert lines(h) == {"0-1": (101.0, "broken fan", "ann")}
    row = {"timestamp": 101.0, "reason": "broken fan", "user": "ann"}
    assert (h.row("drain", "node0"), h.row("drain", "node1")) == (row, row)
    context = {"idset": "0-1", "nodelist": "node[0-1]", "reason": "broken fan", "overwrite": 0, "user": "ann"}
    assert h.events() == [("drain", context)]
    assert h.module.journal.events[-1]["timestamp"] == 101.0


def test_without_a_reason_none_is_recorded(h):
    h.drain("0", None, user=None)
    assert h.events() == [("drain", {"idset": "0", "nodelist": "node0", "overwrite": 0})]
    assert h.drained()["0"].reason is None


def test_draining_while_a_job_holds_it_then_drained(h):
    h.hold(1, "0")
    h.hold(2, "0")
    h.drain("0-1")
    assert {targets: info.state for targets, info in h.drained().items()} == {"0": "draining", "1": "drained"}
    h.unhold(1, "0")
    assert h.drained()["0"].state == "draining"
    h.unhold(2, "0")
    assert h.drained()["0-1"].state == "drained"


def test_already_drained_names_all_with_hosts_and_does_nothing(h):
    h.drain("1,3", "old")
    with pytest.raises(Refused, match=r"ranks 1,3 \(node\[1,3\]\) already drained$") as caught:
        h.drain("0-4", "new")
    assert caught.value.errnum == errno.EEXIST
    assert list(lines(h)) == ["1,3"]


def test_drained_without_a_reason_may_be_given_one_once(h):
    h.drain("1", None)
    h.drain("1", None)
    h.drain("1", "why")
    assert h.drained()["1"].reason == "why"
    with pytest.raises(Refused, match="already drained"):
        h.drain("1", "and why")


def test_excluded_and_drained_are_all_named_in_one_error(h):
    h.drain("1")
    with pytest.raises(Refused, match=r"rank 5 \(node5\) is excluded; rank 1 \(node1\) already drained") as caught:
        h.drain("0-1,5")
    assert caught.value.errnum == errno.EEXIST


@pytest.mark.parametrize("mode", [None, *OVERWRITE])
@pytest.mark.parametrize(
    ("targets", "named"),
    [
        ("0,5", r"rank 5 \(node5\) is excluded"),
        ("0,8-9", "ranks 8-9 do not exist"),
        ("5,8", "rank 8 .*rank 5"),
        ("", "empty"),
    ],
)
def test_phantom_drain(h, mode, targets, named):
    """What is refused, for excluded, unknown or no targets, has drained nobody, in any mode."""
    with pytest.raises(InvalidValue, match=named) as caught:
        h.drain(targets, mode=mode)
    assert caught.value.errnum == errno.EINVAL
    assert (h.drained(), h.rows) == ({}, {})


def test_unknown_and_drained_are_named_together(h):
    h.drain("0")
    with pytest.raises(InvalidValue, match=r"rank 9 does not exist; rank 0 \(node0\) already drained"):
        h.drain("0,9")


@pytest.mark.parametrize(
    ("mode", "found", "drained"),
    [
        ("update", {"0": (102.0, "new", "bob"), "1": (101.0, "old", "ann")}, [("0", 0)]),
        ("overwrite", {"0": (102.0, "new", "bob"), "1": (101.0, "new", "ann")}, [("0-1", 1)]),
        ("force-overwrite", {"0-1": (102.0, "new", "bob")}, [("0-1", 2)]),
    ],
)
def test_what_becomes_of_the_reason_and_the_time_of_what_is_drained(h, mode, found, drained):
    h.drain("1", "old")
    h.drain("0-1", "new", mode=mode, user="bob")
    assert lines(h) == found
    assert [(context["idset"], context["overwrite"]) for _, context in h.events("drain")] == drained


def test_update_gives_a_reason_to_those_without(h):
    h.drain("1", None)
    h.drain("1", "found out", mode="update", user="bob")
    assert lines(h) == {"1": (101.0, "found out", "ann")}
    assert [context["overwrite"] for _, context in h.events("drain")] == [1]


def test_update_of_nothing_new_does_nothing(h):
    h.drain("1", "old")
    h.drain("1", "new", mode="update")
    assert h.effects == []


def test_undrain(h):
    h.acquire("S", "default")
    h.drain("0-1")
    assert h.undrain("0", "rebooted") == ["S: up 0 down "]
    context = {"idset": "0", "nodelist": "node0", "reason": "rebooted", "overwrite": 0, "user": "ann"}
    assert h.events() == [("undrain", context)]
    assert h.row("drain", "node0") is None


def test_undrain_of_what_is_not_drained_names_all_and_does_nothing(h):
    h.drain("1")
    with pytest.raises(Refused, match=r"ranks 0,2,5 \(node\[0,2,5\]\) are not drained$") as caught:
        h.undrain("0-2,5")
    assert caught.value.errnum == errno.EEXIST
    assert list(lines(h)) == ["1"]


@pytest.mark.parametrize("mode", ["update", "overwrite", "force-overwrite"])
def test_undrain_with_a_mode_undrains_those_that_are(h, mode):
    h.drain("1")
    h.undrain("0-2", mode=mode)
    assert h.drained() == {}


@pytest.mark.parametrize(("targets", "named"), [("1,8", "rank 8 does not exist"), ("", "empty")])
def test_undrain_of_unknown_or_no_targets(h, targets, named):
    h.drain("1")
    with pytest.raises(InvalidValue, match=named):
        h.undrain(targets, mode="update")


def test_an_unknown_mode_is_named_with_those_there_are(h):
    for call in (h.drain, h.undrain):
        with pytest.raises(InvalidValue, match=r"'harder'.*force-overwrite"):
            call("0", mode="harder")


def test_an_undrain_adds_nothing(h):
    h.drain("0")
    with pytest.raises(
        InvalidValue, match=r"^undrain mode 'add' is unknown: give one of none, update, overwrite, force-"
    ):
        h.undrain("0", mode="add")
    assert list(lines(h)) == ["0"]


def test_reasons_are_limited(h):
    h.drain("0", "x" * REASON_CHARS_MAX)
    for call in (h.drain, h.undrain):
        with pytest.raises(LimitExceeded, match=str(REASON_CHARS_MAX)):
            call("0", "x" * (REASON_CHARS_MAX + 1))


def test_drain_applies_to_what_is_leaving_and_shows_where_it_arrives(h):
    h.acquire("S", "default")
    h.assign("0", "b")
    h.drain("0")
    h.release("S", "default", "0")
    assert (h.members("b"), list(h.drained())) == ("0,6-7", ["0"])


# ---- several reasons on one target


def reasons(h):
    return {targets: info.reason for targets, info in h.drained().items()}


def test_an_added_reason_is_kept_beside_the_first_and_lifted_alone(h):
    h.acquire("S", "default")
    h.drain("0-1", "disk")
    assert h.drain("1-2", "fan", mode="add", user="bob") == ["S: up  down 2"]
    added = {"reason": "fan", "overwrite": 0, "user": "bob"}
    assert h.events() == [("drain", {"idset": "1-2", "nodelist": "node[1-2]", **added})]
    assert lines(h) == {
        "0": (102.0, "disk", "ann"), "1": (102.0, "disk; also: fan", "ann"), "2": (103.0, "fan", "bob"),
    }  # fmt: skip
    assert h.undrain("1", only="disk") == []
    assert h.events() == [("drain-lift", {"idset": "1", "nodelist": "node1", "user": "ann", "only": "disk"})]
    assert lines(h) == {"0": (102.0, "disk", "ann"), "1-2": (103.0, "fan", "bob")}
    assert h.undrain("1-2", only="fan") == ["S: up 1-2 down "]
    assert (reasons(h), [name for name, _ in h.events()]) == ({"0": "disk"}, ["undrain"])


def test_an_undrain_without_a_choice_lifts_all_reasons_and_an_overwrite_replaces_them(h):
    for reason in ("disk", "fan", "dimm"):
        h.drain("0-1", reason, mode="add")
    assert reasons(h) == {"0-1": "disk; also: fan; also: dimm"}
    h.drain("1", "all new", mode="overwrite", user="bob")
    assert lines(h)["1"] == (101.0, "all new", "ann")
    h.undrain("0-1")
    assert (h.drained(), h.rows) == ({}, {})


def test_a_reason_is_there_once_and_may_be_given_another_end(h):
    h.drain("0", "disk")
    h.drain("0", "disk", mode="add")
    assert h.effects == []
    h.drain("0", "disk", mode="add", until_s=200.0)
    assert (lines(h), h.drained()["0"].until_s) == ({"0": (101.0, "disk", "ann")}, 200.0)


def test_equal_reasons_of_two_persons_end_each_by_itself(h):
    h.drain("0", "disk", user="bob")
    h.drain("0", "disk", mode="add", user="ann", until_s=200.0)
    assert reasons(h) == {"0": "disk"}
    h._call("advance_outages", 200.0)
    assert (lines(h), h.events()) == ({"0": (101.0, "disk", "bob")}, [])
    h.undrain("0", only="disk")
    assert reasons(h) == {}


def test_another_reason_of_a_program_takes_the_place_of_its_former_one_in_the_journal_too(h):
    for reason in ("no space", "no memory"):
        h.drain("0", "fan", mode="add")
        h.drain("0-1", reason, mode="add", user="fluxsched:health")
    context = {"idset": "0-1", "nodelist": "node[0-1]", "user": "fluxsched:health"}
    assert h.events() == [
        ("drain-lift", {**context, "only": "no space"}),
        ("drain", {**context, "reason": "no memory", "overwrite": 0}),
    ]


def test_a_host_that_joins_when_its_outage_and_its_move_are_over_is_in_service(start, r):
    h = start(dynamic=True)
    h._call("add_outage", Outage("upd", Idset.parse("7"), 110.0, 200.0, 0.0, "kernel"), "ann", h.now_s)
    h._call("advance_outages", 110.0)
    h.hold(1, "6")
    h.assign("6", "b", graceful=True)
    assert reasons(h) == {"6": "moving to group b", "7": "kernel"}
    later = start(r(ranks="0-3", hosts="node[0-3]"), dynamic=True, saved=h.saved())
    later._call("advance_outages", 200.0)
    later.add(r(ranks="4-5", hosts="node[6-7]"))
    assert (reasons(later), later.rows.get(("drain", "node7"))) == ({}, None)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_each_reason_ends_by_itself_at_its_own_time(h, start, is_restarted):
    h.drain("0", "disk", until_s=300.0)
    h.drain("0-1", "fan", mode="add", until_s=200.0)
    assert (h.drained()["0"].until_s, h.drained()["1"].until_s) == (300.0, 200.0)
    h = start(saved=h.saved()) if is_restarted else h
    ends = []
    for now_s in (199.0, 200.0, 300.0):
        h._call("advance_outages", now_s)
        ends.append((reasons(h), h.module.outages.next_s))
    assert ends == [({"0": "disk; also: fan", "1": "fan"}, 200.0), ({"0": "disk"}, 300.0), ({}, float("inf"))]


def test_an_admin_s_reason_may_come_and_go_while_an_outage_lasts(h):
    h._call("add_outage", Outage("upd", Idset.parse("0-1"), 200.0, 300.0, 0.0, "kernel"), "ann", h.now_s)
    h._call("advance_outages", 200.0)
    h.drain("0-1", "disk", mode="add")
    h.undrain("1", only="disk")
    assert reasons(h) == {"0": "kernel; also: disk", "1": "kernel"}
    h._call("advance_outages", 300.0)
    assert reasons(h) == {"0": "disk"}


def test_a_program_has_one_reason_a_target_and_lifts_that_alone(h):
    h.drain("0", "disk")
    h.drain("0", "no space", mode="add", user="fluxsched:health")
    h.drain("0-1", "no network", mode="add", user="fluxsched:health")
    h.drain("0", "epilog: exit 1", mode="add", user="fluxsched:epilog")
    assert reasons(h) == {"0": "disk; also: no network; also: epilog: exit 1", "1": "no network"}
    h._call("undrain_good", Idset.parse("0-1"), "health check passed", "fluxsched:health", h.now_s)
    assert reasons(h) == {"0": "disk; also: epilog: exit 1"}


def test_a_graceful_move_lifts_its_own_reason(h):
    h.hold(1, "0-1")
    h.drain("0", "disk")
    h.assign("0-1", "b", graceful=True)
    assert reasons(h) == {"0": "disk; also: moving to group b", "1": "moving to group b"}
    h.unhold(1, "0-1")
    assert (reasons(h), h.members("b")) == ({"0": "disk"}, "0-1,6-7")


def test_all_reasons_survive_a_restart_and_a_row_of_before_has_one(h, start):
    h.drain("0", "disk")
    h.drain("0", "fan", mode="add", user="bob", until_s=1000.0)
    row = {"timestamp": 101.0, "reason": "disk", "user": "ann"}
    more = {"timestamp": 102.0, "reason": "fan", "until": 1000.0, "user": "bob"}
    assert h.row("drain", "node0") == row | {"also": [more]}
    again = start(saved=h.saved())
    assert again.drained() == h.drained()
    again.undrain("0", only="fan")
    assert again.row("drain", "node0") == row  # as it was stored before a target could have several
    assert reasons(start(saved=again.saved())) == {"0": "disk"}


def test_what_cannot_be_added_or_lifted_is_refused_and_named(h):
    h.drain("0", "disk")
    for reason in (None, ""):
        with pytest.raises(InvalidValue, match="added has a reason"):
            h.drain("0", reason, mode="add")
    with pytest.raises(Refused, match=r"ranks 0-1 \(node\[0-1\]\) are not drained for 'fan'$") as caught:
        h.undrain("0-1", only="fan")
    assert caught.value.errnum == errno.EEXIST
    h.undrain("0-1", mode="update", only="fan")
    assert (h.effects, reasons(h)) == ([], {"0": "disk"})


def test_so_many_reasons_of_persons_may_be_there_and_those_of_others_beside_them(h):
    for at in range(REASONS_MAX):
        h.drain("0", f"reason {at}", mode="add")
    with pytest.raises(LimitExceeded, match=rf"rank 0 \(node0\): drained for {REASONS_MAX} reasons"):
        h.drain("0-1", "one more", mode="add")
    assert list(h.drained()) == ["0"]
    h.drain("0", "reason 3", mode="add")
    h.drain("0", "no space", mode="add", user="fluxsched:health")
    assert h.drained()["0"].reason.endswith("; also: no space")
