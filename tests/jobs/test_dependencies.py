"""RFC 26's simple dependencies."""

from __future__ import annotations

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.jobfields import ANTECEDENTS_MAX
from fluxsched.core.jobid import format_f58
from fluxsched.core.outages import Outage, Outages
from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.jobs.dependencies import parse_dependencies
from fluxsched.jobs.states import State, WakeAt


def on(*pairs):
    return {"dependencies": [{"scheme": scheme, "value": str(value)} for scheme, value in pairs]}


# scheme, how the antecedent ends, whether the dependent may run
CASES = [
    ("after", "success", True),
    ("after", "failure", True),
    ("after", "canceled while pending", False),
    ("afterstart", "success", True),
    ("afterstart", "canceled while pending", False),
    ("afterany", "success", True),
    ("afterany", "failure", True),
    ("afterany", "canceled while pending", True),
    ("afterok", "success", True),
    ("afterok", "failure", False),
    ("afterok", "canceled while pending", False),
    ("afternotok", "success", False),
    ("afternotok", "failure", True),
    ("afternotok", "canceled while pending", True),
]


def finish(world, how):
    if how == "canceled while pending":
        world.do("cancel", 1, 0, "")
        return
    world.grant(1)
    world.do("started", 1)
    world.end(1, 0 if how == "success" else 256)


@pytest.mark.parametrize(("scheme", "how", "runs"), CASES)
@pytest.mark.parametrize("submitted", ["before", "after"])
def test_each_scheme(world, spec, scheme, how, runs, submitted):
    world.submit(1)
    if submitted == "after":
        finish(world, how)
    world.submit(2, spec(**on((scheme, 1))))
    if submitted == "before":
        assert world.state(2) is State.DEPEND
        assert world.names(2) == ["submit", "validate", "dependency-add"]
        finish(world, how)
    assert world.contexts(2, "dependency-add") == [{"description": f"{scheme}=1"}]
    if runs:
        assert world.state(2) is State.SCHED
        assert world.names(2)[-3:] == ["dependency-remove", "depend", "priority"]
    else:
        assert world.state(2) is State.INACTIVE
        assert world.contexts(2, "exception")[0]["type"] == "depend"
        assert world.contexts(2, "exception")[0]["note"].startswith(f"{scheme}=1: job ƒ2 ")


def test_after_is_met_at_the_start_event(world, spec):
    world.submit(1)
    world.submit(2, spec(**on(("after", 1), ("afterany", 1))))
    world.grant(1)
    assert world.job(2).dependencies.keys() == {"after=1", "afterany=1"}
    world.do("started", 1)
    assert world.job(2).dependencies.keys() == {"afterany=1"}
    world.end(1)
    assert world.state(2) is State.SCHED


def test_all_dependencies_must_be_met(world, spec):
    world.submit(1)
    world.submit(2)
    world.submit(3, spec(**on(("afterok", 1), ("afterok", 2), ("afterok", 1))))
    assert world.names(3).count("dependency-add") == 2
    for jobid in (1, 2):
        assert world.state(3) is State.DEPEND
        world.grant(jobid)
        world.end(jobid)
    assert world.sent() == [3]


def test_one_that_can_never_be_met_ends_the_job_once(world, spec):
    world.submit(1)
    world.submit(2, spec(**on(("afterok", 1), ("after", 1), ("begin-time", 1000))))
    world.do("cancel", 1, 0, "")
    assert world.names(2).count("exception") == 1
    assert world.names(2).count("clean") == 1
    world.now_s = 2000.0
    assert world.do("due") == []


def test_one_that_can_never_be_met_at_submission(world, spec):
    world.submit(1)
    world.do("cancel", 1, 0, "")
    world.submit(2, spec(**on(("afterok", 1), ("begin-time", 1000))))
    assert world.state(2) is State.INACTIVE


@pytest.mark.slow
def test_a_long_chain_of_failures_needs_no_stack(world, spec):
    manager = world.manager
    world.submit(1)
    for jobid in range(2, 2001):
        manager.requests.submit(jobid, spec_of(jobid - 1, spec), userid=1, now_s=5.0)
    world.do("cancel", 1, 0, "")
    assert len(manager.jobs.inactive) == 2000


def spec_of(antecedent, spec):
    return spec(**on(("afterok", antecedent)))


def test_two_thousand_jobs_become_runnable_in_one_instant(world, spec):
    """The peer's `recursion`: about 970 jobs in one pass and it dies."""
    world.submit(1)
    dependent = spec_of(1, spec)
    for jobid in range(2, 2002):
        world.manager.requests.submit(jobid, dependent, userid=1, urgency=jobid % 16 + 1, now_s=5.0)
    world.grant(1)
    world.end(1)
    sent = world.sent()
    assert len(sent) == 2000
    assert sent == sorted(sent, key=lambda jobid: (-(jobid % 16), jobid))


def test_a_grant_that_comes_too_late_for_a_deadline_is_given_back(world, spec):
    for jobid in (1, 2):
        world.submit(jobid, spec(deadline_s=300.0, duration_s=60.0))
    world.now_s = 239.0
    world.grant(1)
    world.now_s = 240.005  # its timer is due, and the answer was read before it
    world.grant(2)
    assert [world.state(jobid).name for jobid in (1, 2)] == ["RUN", "INACTIVE"]
    assert [each["type"] for each in world.contexts(2, "exception")] == ["deadline"]
    assert [each.id for each in world.freed()] == [2]


def test_a_job_that_can_no_longer_be_over_by_its_deadline_ends(world, spec):
    with pytest.raises(Refused, match="the deadline of the job is in 58s, and its limit is 1m: give a later one"):
        world.submit(1, spec(deadline_s=160.0, duration_s=60.0))
    with pytest.raises(Refused, match="the deadline of the job is over: give a later one"):
        world.submit(1, spec(deadline_s=100.0))
    said = (
        "is in 196s, its begin-time in 136s, and its limit is 1m: give a later one, or a shorter limit, or an earlier"
    )
    with pytest.raises(Refused, match=said):
        world.submit(1, spec(deadline_s=300.0, duration_s=60.0, **on(("begin-time", 240))))
    world.submit(1, spec(deadline_s=300.0, duration_s=60.0))
    assert world.of(WakeAt) == [WakeAt(240.0)]
    world.submit(2, spec(deadline_s=300.0))
    world.submit(3, spec(deadline_s=300.0, duration_s=60.0, **on(("begin-time", 239))))
    world.submit(4, spec(deadline_s=300.0))
    world.grant(4)
    world.submit(5, spec(deadline_s=400.0, duration_s=200.0))
    world.do("update", 5, {"attributes.system.duration": 160.0})
    world.now_s = 240.0
    world.do("due")
    assert world.contexts(1, "exception") == [
        {"type": "deadline", "severity": 0, "note": "it can no longer be over by its deadline: its limit is 1m"}
    ]
    assert [world.state(jobid).name for jobid in (2, 3, 4, 5)] == ["SCHED", "INACTIVE", "RUN", "INACTIVE"]
    assert world.of(WakeAt)[-1] == WakeAt(300.0)
    world.now_s = 300.0
    world.do("due")
    assert world.contexts(2, "exception")[0]["note"] == "it has not started by its deadline"
    assert world.state(4).name == "RUN"


def test_a_deadline_is_kept_over_a_restart(world, new_world, spec):
    world.submit(1, spec(deadline_s=300.0))
    again = new_world()
    again.perform(again.manager.restore(world.rows(), 200.0).effects)
    assert again.of(WakeAt) == [WakeAt(300.0)]


def reserved(from_s=200.0, until_s=300.0, **options):
    return Outages([Outage("course", Idset(1), from_s, until_s, is_reservation=True, **options)])


def test_a_job_waits_for_its_reservation_and_ends_with_it(world, new_world, spec):
    world.do("change", reserved())
    for jobid in (1, 2):
        world.submit(jobid, spec(reservation="course", duration_s=99.0))
    assert world.contexts(1, "dependency-add") == [{"description": "reservation=course"}]
    assert world.why(1).when == "not before its reservation begins: see fluxsched reserve list"
    world.do("change", reserved(150.0))  # it is moved
    assert world.sent() == []
    again = new_world()
    again.scheduler()
    again.perform(again.manager.restore(world.rows(), 100.0).effects)
    for site in (world, again):
        site.now_s = 200.0
        site.do("change", reserved())
        assert site.sent() == [1, 2]
        site.submit(3, spec(reservation="course", duration_s=50.0))
        assert site.state(3).name == "SCHED"
        site.grant(1)
        site.do("change", Outages())
        assert [site.state(jobid).name for jobid in (1, 2, 3)] == ["RUN", "INACTIVE", "INACTIVE"]
        note = "reservation 'course' is over, or was removed"
        assert [site.contexts(jobid, "exception")[0]["note"] for jobid in (2, 3)] == [note, note]


def test_jobs_whose_reservation_is_no_more_after_a_restart_end(world, new_world, spec):
    world.do("change", reserved())
    world.submit(1, spec(reservation="course", duration_s=99.0))
    again = new_world()
    again.perform(again.manager.restore(world.rows(), 100.0).effects)
    again.do("change", Outages())
    assert again.state(1).name == "INACTIVE"


def test_a_job_that_its_reservation_no_longer_holds_ends_and_keeps_nobody_waiting(world, new_world, spec):
    world.do("change", reserved())
    for jobid in (1, 2):
        world.submit(jobid, spec(reservation="course", duration_s=60.0))
    again = new_world()
    again.scheduler()
    again.perform(again.manager.restore(world.rows(), 100.0).effects)
    for site in (world, again):
        site.do("change", reserved())
        site.now_s = 200.0
        site.do("change", reserved(until_s=290.0))  # it ends earlier
        site.grant(1)
        site.now_s = 227.0
        site.do("due")
        assert [site.state(jobid).name for jobid in (1, 2)] == ["RUN", "SCHED"]
        site.do("change", reserved())  # as late as before
        site.now_s = 230.0
        site.do("due")
        assert site.state(2).name == "SCHED"
        site.now_s = 240.0
        site.do("due")
        assert [site.state(jobid).name for jobid in (1, 2)] == ["RUN", "INACTIVE"]
        [ended] = site.contexts(2, "exception")
        assert (ended["type"], ended["note"]) == (
            "reservation",
            "it can no longer be over when its reservation ends: its limit is 1m",
        )


def test_a_job_waits_for_the_next_time_of_a_reservation_that_recurs(world, spec):
    world.do("change", reserved(every_s=1000.0))
    world.submit(1, spec(reservation="course", duration_s=60.0))
    world.now_s = 290.0
    world.do("change", reserved(every_s=1000.0))
    world.do("due")
    assert world.state(1).name == "SCHED"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"reservation": "x"}, "there is no reservation 'x', or it is over; there is only course"),
        ({"duration_s": 100.0}, r"a limit of 100s and would run on after reservation 'course': give .* at most 1.65m"),
        ({}, "no time limit and would run on"),
        ({"userid": 8}, "reservation 'course' is for other users"),
        (
            {"nodes": 2, "duration_s": 50.0},
            r"the job needs 2 nodes, and reservation 'course' has 1: ask for at most 1 \(--nodes\)",
        ),
    ],
)
def test_what_cannot_run_in_its_reservation_is_refused(world, spec, options, said):
    world.do("change", reserved(users=(7,)))
    userid = options.pop("userid", 7)
    with pytest.raises(Refused, match=said):
        world.do("submit", 1, spec(**{"reservation": "course", **options}), userid=userid)


def test_begin_time(world, spec):
    world.submit(1, spec(**on(("begin-time", 200.5))))
    assert world.of(WakeAt) == [WakeAt(200.5)]
    world.submit(2, spec(**on(("begin-time", 300))))
    assert world.of(WakeAt) == []
    world.submit(3, spec(**on(("begin-time", 150))))
    assert world.of(WakeAt) == [WakeAt(150.0)]
    world.submit(4, spec(**on(("begin-time", 50))))
    assert world.sent() == [4]
    world.now_s = 199.5
    world.do("due")
    assert world.sent() == [1, 3]  # in priority and submit order, as RFC 27 wants them sent
    assert world.of(WakeAt) == [WakeAt(300.0)]
    world.do("due")
    assert world.of(WakeAt) == [WakeAt(300.0)]  # woken too early: asks again
    world.now_s = 400.0
    world.do("due")
    assert world.sent() == [2]
    assert world.of(WakeAt) == []


def test_any_form_of_job_id(world, spec):
    world.submit(1)
    world.submit(2, spec(**on(("afterok", format_f58(1)))))
    world.grant(1)
    world.end(1)
    assert world.sent() == [2]


def test_unknown_jobs_are_refused_all_named(world, spec):
    world.submit(1)
    with pytest.raises(Refused, match="afterok=8, after=9: no such job"):
        world.submit(2, spec(**on(("afterok", 8), ("after", 1), ("after", 9))))
    assert 2 not in world.stored


@pytest.mark.parametrize(
    ("scheme", "value", "match"),
    [
        ("string", "x", "'string' is not known: use one of after, afterstart, afterany"),
        ("begin-time", "soon", "begin-time 'soon'"),
        ("begin-time", "nan", "begin-time 'nan'"),
        ("begin-time", "-1", "begin-time '-1'"),
        ("afterok", "no job", "no job"),
        ("afterok", "1" * 300, "longer than 256"),
    ],
)
def test_bad_dependencies_are_refused(world, spec, scheme, value, match):
    with pytest.raises(InvalidValue, match=match):
        world.submit(1, spec(**on((scheme, value))))
    assert world.stored == {}


def test_dependencies_are_bounded():
    with pytest.raises(LimitExceeded, match="more than 256 dependencies"):
        parse_dependencies({"scheme": "after", "value": str(one)} for one in range(1, ANTECEDENTS_MAX + 2))


@pytest.mark.parametrize("scheme", ["after", "afterstart", "afterany", "afterok", "afternotok"])
def test_job_0_is_as_unknown_as_any_other(world, spec, scheme):
    with pytest.raises(Refused, match=f"{scheme}=0: no such job"):
        world.submit(1, spec(**on((scheme, 0))))
    assert world.stored == {}


ALONE = on(("singleton", ""))


def test_singletons_of_a_name_run_one_after_another(world, spec):
    for jobid in (1, 2, 3):
        world.submit(jobid, spec(name="a", **ALONE))
    assert [world.state(jobid) for jobid in (1, 2, 3)] == [State.SCHED, State.DEPEND, State.DEPEND]
    assert world.contexts(2, "dependency-add") == [{"description": "singleton"}]
    world.submit(4, spec(name="b", **ALONE))
    world.do("submit", 5, spec(name="a", **ALONE), userid=7)
    assert world.state(4) is world.state(5) is State.SCHED
    world.grant(1)
    world.end(1)
    assert world.sent() == [2]
    world.do("cancel", 3, 0, "")
    world.submit(6, spec(name="a", **ALONE))
    world.submit(7, spec(name="a"))  # a job of the name that waits for none is waited for, whenever it came
    world.do("cancel", 2, 0, "")
    assert world.state(6) is State.DEPEND
    world.do("cancel", 7, 0, "")
    assert world.sent() == [6]


def test_a_singleton_waits_for_its_other_dependencies_too(world, spec):
    world.submit(1, spec(name="a"))
    world.submit(2)
    world.submit(3, spec(name="a", **on(("singleton", ""), ("afterok", 2))))
    world.submit(4, spec(name="a", **ALONE))
    world.do("cancel", 1, 0, "")
    assert world.job(3).dependencies.keys() == {"afterok=2"}
    world.do("cancel", 2, 0, "")
    assert [world.state(3), world.state(4)] == [State.INACTIVE, State.SCHED]


def test_singletons_wait_again_after_a_restart(world, new_world, spec):
    world.submit(1, spec(name="a"))
    for jobid in (2, 3):
        world.submit(jobid, spec(name="a", **ALONE))
    again = new_world()
    again.stored = world.stored
    again.perform(again.manager.restore(world.rows(), 500.0).effects)
    again.scheduler()
    assert [again.state(jobid) for jobid in (2, 3)] == [State.DEPEND, State.DEPEND]
    again.do("cancel", 1, 0, "")
    assert [again.state(jobid) for jobid in (2, 3)] == [State.SCHED, State.DEPEND]


def test_singletons_wait_for_the_next_attempt_of_a_preempted_job(world, spec):
    world.submit(1, spec(name="a", requeue=1, preemptible_after_s=0.0))
    world.submit(2, spec(name="a", **ALONE))
    world.grant(1)
    world.do("started", 1)
    world.do("raise_exception", 1, "preempt", 0, "", None)
    world.end(1, 15)
    assert world.state(2) is State.DEPEND
    world.do("cancel", world.job(1).next_id, 0, "")
    assert world.sent() == [2]


def test_what_a_singleton_needs(world, spec):
    with pytest.raises(InvalidValue, match="singleton jobs require a job name"):
        world.submit(1, spec(**ALONE))
    with pytest.raises(InvalidValue, match="singleton takes no value"):
        world.submit(1, spec(name="a", **on(("singleton", "a"))))
    with pytest.raises(InvalidValue, match="scheme 'alone' is not known"):
        world.submit(1, spec(name="a", **on(("alone", ""))))
