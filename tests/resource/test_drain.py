"""Drain and undrain: all modes, all offenders named, nothing by halves (rfc/admin.md, RFC 44)."""

from __future__ import annotations

import errno

import pytest

from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.resource.drain import OVERWRITE, REASON_CHARS_MAX


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
    with pytest.raises(Refused, match=r"ranks 1,3 \(node\[1,3\]\) already drained") as caught:
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


def test_update_drains_the_new_ones_and_keeps_reasons(h):
    h.drain("1", "old")
    h.drain("0-1", "new", mode="update", user="bob")
    assert lines(h) == {"0": (102.0, "new", "bob"), "1": (101.0, "old", "ann")}
    assert [context["idset"] for _, context in h.events("drain")] == ["0"]


def test_update_gives_a_reason_to_those_without(h):
    h.drain("1", None)
    h.drain("1", "found out", mode="update", user="bob")
    assert lines(h) == {"1": (101.0, "found out", "ann")}
    assert [context["overwrite"] for _, context in h.events("drain")] == [1]


def test_update_of_nothing_new_does_nothing(h):
    h.drain("1", "old")
    h.drain("1", "new", mode="update")
    assert h.effects == []


def test_overwrite_replaces_the_reason_and_keeps_the_timestamp(h):
    h.drain("1", "old")
    h.drain("0-1", "new", mode="overwrite", user="bob")
    assert lines(h) == {"0": (102.0, "new", "bob"), "1": (101.0, "new", "ann")}
    assert [context["overwrite"] for _, context in h.events("drain")] == [1]


def test_force_overwrite_replaces_both(h):
    h.drain("1", "old")
    h.drain("0-1", "new", mode="force-overwrite", user="bob")
    assert lines(h) == {"0-1": (102.0, "new", "bob")}
    assert [context["overwrite"] for _, context in h.events("drain")] == [2]


def test_undrain(h):
    h.acquire("S", "default")
    h.drain("0-1")
    assert h.undrain("0", "rebooted") == ["S: up 0 down "]
    context = {"idset": "0", "nodelist": "node0", "reason": "rebooted", "overwrite": 0, "user": "ann"}
    assert h.events() == [("undrain", context)]
    assert h.row("drain", "node0") is None


def test_undrain_of_what_is_not_drained_names_all_and_does_nothing(h):
    h.drain("1")
    with pytest.raises(Refused, match=r"ranks 0,2,5 \(node\[0,2,5\]\) are not drained; `--force` undrains") as caught:
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
