"""What our scheduler reads of Flux's configuration, and of the jobs that run: jobspecs with their updates."""

from __future__ import annotations

import json

import pytest

from fluxsched.errors import InvalidValue
from fluxsched.flux.bridge import preempted_s, read_site, updated
from fluxsched.flux.outages import RETRY_S


def test_fair_and_the_time_until_a_job_is_killed_are_read():
    site = read_site({"fair": {"signal": "flow", "banks": {"physics": 3}}, "exec": {"kill-timeout": "10s"}})
    assert site.fair.signal.value == "flow"
    assert site.fair.banks["physics"].weight == 3
    assert site.preempt_timeout_s == 10.0


@pytest.mark.parametrize("table", [None, {}, {"kill-timeout": 3}, {"kill-timeout": "x"}])
def test_what_flux_says_otherwise_or_not_at_all_is_the_usual(table):
    assert read_site({"exec": table}).preempt_timeout_s == 5.0
    assert read_site({}).fair.banks is None


def test_a_bad_table_is_named_at_load():
    with pytest.raises(InvalidValue, match=r"half-life.*signal|signal.*half-life"):
        read_site({"fair": {"signal": "loud", "half-life": -1}})


NIGHT = {"name": "night", "targets": "n[0-1]", "from": 1060.0, "for": "1m", "reason": "kernel"}


def test_outages_of_the_configuration_keep_jobs_off_their_targets(hand):
    bad = {"name": "far", "targets": "n99", "from": 1060.0, "for": "1m"}
    hand.site = read_site({"outages": [NIGHT, bad]}, reads_fair=False)
    hand.begin("policy=firstfit", ranks="0-3")
    assert [text for _, text in hand.take("log") if "[[outages]] far is left out: " in text]
    for jobid, duration in ((1, 61.0), (2, 61.0), (3, 60.0)):
        hand.alloc(jobid, 4, duration=duration)
    hand.turn()
    lite = {name: value["execution"]["R_lite"] for values, _ in hand.commits for name, value in values.items()}
    assert {name[-6:-2]: line[0]["rank"] for name, line in lite.items()} == {"0001": "2-3", "0003": "0-1"}
    assert hand.bridge.scheduler.next_notice_s == 1120.0  # a pass comes at its end


def drains_at(hand, now_s, **drained):
    """What Flux is asked for at a time when it says that these ranks are drained; nothing if nothing is due."""
    hand.now_s = now_s
    hand.take("rpc")
    hand.turn()
    if ("resource.status", None) in hand.take("rpc"):
        rows = {ranks.strip("_"): {"timestamp": 1.0, "reason": reason} for ranks, reason in drained.items()}
        hand.answer("resource.status", {"drain": rows})
    return [
        (topic.removeprefix("resource."), asked["targets"], asked["mode"], asked.get("reason"))
        for topic, asked in hand.take("rpc")
    ]


BY_NIGHT, BY_UPD = "outage night: kernel", "outage upd"
UPD = {"name": "upd", "targets": "n[1-2]", "from": 1090.0, "for": "1m"}


def test_an_outage_drains_at_its_begin_what_is_not_drained_and_undrains_just_that_at_its_end(hand):
    hand.site = read_site({"outages": [NIGHT]}, reads_fair=False)
    hand.begin()
    hand.answer("resource.status", {"drain": {}})
    assert hand.delays[-1] == 60.0
    assert drains_at(hand, 1059.0) == []
    assert drains_at(hand, 1060.0, _1="bad disk") == [("drain", "0", "update", BY_NIGHT)]
    assert hand.delays[-1] == 60.0
    assert drains_at(hand, 1119.0) == []
    assert drains_at(hand, 1120.0, _0=BY_NIGHT, _1="bad disk") == [("undrain", "0", "update", None)]
    assert drains_at(hand, 9999.0) == []


def test_a_target_of_two_outages_is_drained_until_the_later_end(hand):
    hand.site = read_site({"outages": [NIGHT, UPD]}, reads_fair=False)
    hand.begin()
    hand.answer("resource.status", {"drain": {}})
    assert drains_at(hand, 1060.0) == [("drain", "0-1", "update", BY_NIGHT)]
    assert drains_at(hand, 1090.0, **{"0-1": BY_NIGHT}) == [("drain", "2", "update", BY_UPD)]
    assert drains_at(hand, 1120.0, **{"0-1": BY_NIGHT, "2": BY_UPD}) == [
        ("drain", "1", "overwrite", BY_UPD),
        ("undrain", "0", "update", None),
    ]
    assert drains_at(hand, 1150.0, **{"1": BY_UPD, "2": "mine now"}) == [("undrain", "1", "update", None)]


def test_a_module_that_is_loaded_late_ends_and_begins_what_it_has_missed(hand):
    hand.site, hand.now_s = read_site({"outages": [NIGHT, UPD]}, reads_fair=False), 1130.0
    hand.begin()
    assert drains_at(hand, 1130.0) == [], "it asks when it is ready, not in each turn"
    hand.answer("resource.status", {"drain": {"0-1": {"timestamp": 1.0, "reason": BY_NIGHT}}})
    assert [(topic, asked["targets"]) for topic, asked in hand.take("rpc")] == [
        ("resource.drain", "2"),
        ("resource.drain", "1"),
        ("resource.undrain", "0"),
    ]
    hand.answer("resource.undrain", errnum=22, text="no such rank")
    assert [text for _, text in hand.take("log")][-1] == "[[outages]]: Flux does not undrain ranks 0: no such rank"


def test_a_drain_and_an_undrain_that_flux_refuses_are_tried_again(hand):
    hand.site = read_site({"outages": [NIGHT]}, reads_fair=False)
    hand.begin()
    hand.answer("resource.status", {"drain": {}})
    for now_s, drained, asked in (
        (1060.0, {}, ("drain", "0-1", "update", BY_NIGHT)),
        (1120.0, {"0-1": BY_NIGHT}, ("undrain", "0-1", "update", None)),
    ):
        assert drains_at(hand, now_s, **drained) == [asked]
        hand.answer(f"resource.{asked[0]}", errnum=11, text="not now")
        assert drains_at(hand, now_s + RETRY_S - 1, **drained) == []
        assert hand.delays[-1] == 1.0
        assert drains_at(hand, now_s + RETRY_S, **drained) == [asked]
    assert drains_at(hand, 9999.0) == []


def test_an_outage_that_has_another_reason_now_ends_its_drains(hand):
    hand.site = read_site({"outages": [NIGHT]}, reads_fair=False)
    hand.begin()
    hand.answer("resource.status", {"drain": {}})
    drained = {"0": "outage night: disks", "1": "outage night", "2": "outage nights: disks"}
    assert drains_at(hand, 1120.0, **drained) == [("undrain", "0-1", "update", None)]


@pytest.mark.parametrize("answer", [{}, {"drain": 3}, {"drain": {"x": {"reason": ""}}}, {"drain": {"0": {}}}])
def test_an_answer_about_drains_that_cannot_be_read_is_logged(hand, answer):
    hand.site, hand.now_s = read_site({"outages": [NIGHT]}, reads_fair=False), 1060.0
    hand.begin()
    hand.answer("resource.status", answer)
    assert "Flux does not say what is drained" in hand.take("log")[-1][1]
    hand.answer("resource.status", errnum=38, text="nobody is there")
    assert "nobody is there" in hand.take("log")[-1][1]


@pytest.mark.parametrize("change", [{"queue": "debug"}, {"end-jobs": True}, {"until": 3.0}, {"targets": 7}])
def test_outages_that_are_none_in_flux_are_named_at_load(change):
    with pytest.raises(InvalidValue, match=r"outages"):
        read_site({"outages": [NIGHT | change]})


SPEC = b'{"attributes": {"system": {"duration": 5}}}'


def event(name: str, **context: object) -> str:
    return json.dumps({"timestamp": 1.0, "name": name, "context": context}) + "\n"


def test_a_jobspec_comes_with_the_updates_of_its_eventlog():
    log = event("submit") + event("jobspec-update", **{"attributes.system.bank": "a", "attributes.system.duration": 9})
    log += event("jobspec-update", **{"attributes.system.bank": "b"})
    assert json.loads(updated(SPEC, log.encode())) == {"attributes": {"system": {"duration": 9, "bank": "b"}}}
    assert updated(SPEC, event("submit").encode()) is SPEC


UPDATE = '{"name": "jobspec-update", '


@pytest.mark.parametrize("log", ['"jobspec-update"', f'{UPDATE}"context": 3}}', f'{UPDATE}"context": {{"": 1}}', "{"])
def test_an_eventlog_that_cannot_be_read_says_nothing(log):
    log += '"jobspec-update"'
    assert updated(SPEC, (event("submit") + log).encode()) is SPEC


def test_a_job_that_was_preempted_and_still_holds_something_is_known_by_its_eventlog():
    log = event("submit") + event("exception", type="preempt", severity=0, note="for f3")
    assert preempted_s(log.encode()) == 1.0
    for other in ({"type": "preempt", "severity": 1}, {"type": "cancel", "severity": 0}):
        assert preempted_s((event("submit") + event("exception", **other)).encode()) is None
    assert preempted_s((event("memo", note='"exception"', type="preempt", severity=0)).encode()) is None


@pytest.mark.parametrize("line", ['"exception"', '{"name": "exception"}', '{"name": "exception", "context": 3}'])
def test_an_exception_that_cannot_be_read_says_nothing(line):
    assert preempted_s(line.encode()) is None
