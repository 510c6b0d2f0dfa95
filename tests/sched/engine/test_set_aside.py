"""Jobs that were accepted wait while their group cannot hold them; what could never run is denied."""

import pytest

from fluxsched.core.idset import Idset
from fluxsched.errors import InvalidValue, RemoteProtocolError
from fluxsched.sched.decisions import Annotated, Canceled, Denied, Granted, Release
from tests.sched.site import Bench, lowered, make_r, spec

NOON_S = 1763812980.0  # Nov22 12:03 UTC
MISSING = "needs 4 nodes of 1 core; the group has only 3 such nodes; it had 4 until Nov22 12:03 UTC"


def ids(text):
    return Idset.parse(text)


def shrink(bench, targets, now_s=NOON_S):
    return bench.did(bench.scheduler.shrunk("default", ids(targets), True, now_s))


def grow(bench, resources, now_s=NOON_S + 60.0):
    return bench.did(bench.scheduler.grown("default", resources, resources.ranks, Idset(), now_s))


def told(effects, jobid):
    [mine] = [effect for effect in effects if isinstance(effect, Annotated) and effect.jobid == jobid]
    return dict(mine.annotations["sched"])


def test_exclude_and_include_of_a_node_denies_no_job(bench):
    bench.grow("0-3")
    bench.submit(1, nodes=4)
    effects = shrink(bench, "3")
    assert told(effects, 1) == {"reason_pending": MISSING}
    assert Release("default", ids("3")) in effects
    assert bench.scheduler.why(1, NOON_S).reason == MISSING
    assert "set aside" in bench.scheduler.why(1, NOON_S).rule
    assert bench.run() == []
    assert told(grow(bench, make_r("3")), 1) == {"reason_pending": None}
    (granted,) = bench.run()
    assert isinstance(granted, Granted)


def test_reload_with_more_cores_denies_no_job_while_the_group_is_empty(bench):
    """All targets leave and come home; the jobs keep their order."""
    bench.grow("0-3")
    for jobid in (1, 2):
        bench.submit(jobid, nodes=4, cores=4)
    words = told(shrink(bench, "0-3"), 2)["reason_pending"]
    assert words.endswith("no node of the group matches; it had 4 until Nov22 12:03 UTC")
    grow(bench, make_r("0-3"))
    assert [effect.jobid for effect in bench.run() if isinstance(effect, Granted)] == [1]


def test_a_job_set_aside_blocks_no_other(bench):
    bench.grow("0-3")
    bench.submit(1, nodes=4)
    bench.submit(2, nodes=1)
    shrink(bench, "3")
    assert [effect.jobid for effect in bench.run() if isinstance(effect, Granted)] == [2]


def test_more_is_lost_and_the_reason_follows(bench):
    bench.grow("0-3")
    bench.submit(1, nodes=4)
    shrink(bench, "3")
    words = told(shrink(bench, "2", NOON_S + 3600.0), 1)["reason_pending"]
    assert words == MISSING.replace("only 3", "only 2")
    assert told(grow(bench, make_r("2")), 1)["reason_pending"] == MISSING


def test_what_it_had_counts_what_came_meanwhile(bench):
    bench.grow("0-3")
    bench.submit(1, nodes=4)
    grow(bench, make_r("4-5"))
    assert "it had 6 until" in told(shrink(bench, "0-2"), 1)["reason_pending"]


def test_deny_brings_the_old_rule_back():
    bench = Bench("fifo", unsatisfiable="deny")
    bench.grow("0-3")
    bench.submit(1, nodes=4)
    assert Denied(1, "needs 4 nodes of 1 core; the group has only 3 such nodes") in shrink(bench, "3")
    assert isinstance(bench.submit(2, nodes=4, unsatisfiable="wait")[0], Denied)
    with pytest.raises(InvalidValue, match="'later' is not one of wait, deny"):
        Bench("fifo", unsatisfiable="later")


def test_new_jobs_that_could_never_run_are_denied_and_old_ones_wait(bench):
    """After a reload of the scheduler or a restart of the instance nothing is known of the time before."""
    grow(bench, make_r("0-2"), NOON_S)
    scheduler = bench.scheduler
    (old,) = bench.did(scheduler.alloc(1, 16, 1000, NOON_S - 1.0, spec(nodes=4)))
    words = "needs 4 nodes of 1 core; the group has only 3 such nodes, at least since Nov22 12:03 UTC"
    assert told([old], 1) == {"reason_pending": words}
    assert bench.did(scheduler.alloc(2, 16, 1000, NOON_S + 1.0, spec(nodes=4))) == [Denied(2, words.split(", at")[0])]
    shrink(bench, "0", NOON_S + 10.0)
    (late,) = bench.did(scheduler.alloc(3, 16, 1000, NOON_S + 5.0, spec(nodes=3)))  # its dependency took so long
    assert "only 2 such nodes" in told([late], 3)["reason_pending"]


def test_a_job_that_asks_for_it_waits_for_what_never_was(bench):
    bench.grow("0-2")
    (note,) = bench.submit(1, nodes=4, unsatisfiable="wait")
    assert "only 3 such nodes" in told([note], 1)["reason_pending"]
    grow(bench, make_r("3"))
    assert isinstance(bench.run()[0], Granted)


def test_cancel_priority_and_numbers_of_who_is_set_aside():
    bench = Bench("firstfit")
    bench.grow("0-3")
    for jobid in (1, 2, 3):
        bench.submit(jobid, nodes=4)
    shrink(bench, "3")
    stats = bench.scheduler.report.stats()["groups"]["default"]
    assert (stats["waiting"], stats["unsatisfiable"]) == (3, 3)
    with pytest.raises(RemoteProtocolError, match="is already waiting or running"):
        bench.submit(1, spec())
    assert bench.did(bench.scheduler.cancel(1)) == [Canceled(1)]
    assert bench.did(bench.scheduler.cancel(1)) == []
    bench.did(bench.scheduler.prioritize([(3, 31), (2, 0)]))
    assert bench.why(2).endswith("it is held, too: raise its urgency")
    grow(bench, make_r("3"))
    assert [effect.jobid for effect in bench.run() if isinstance(effect, Granted)] == [3]
    assert "is held" in bench.why(2)


def test_the_way_back_into_a_full_queue_waits_for_the_next_change(bench):
    bench.grow("0-3")
    bench.submit(1, nodes=4)
    shrink(bench, "3")
    bench.submit(2)
    with lowered(WAITING_MAX=1):
        grow(bench, make_r("3"))
    assert bench.scheduler.report.set_aside().keys() == {1}
    grow(bench, make_r("4"))
    assert not bench.scheduler.report.set_aside()


def test_times_beyond_the_calendar_are_still_words(bench):
    bench.grow("0-3")
    bench.submit(1, nodes=4)
    words = told(bench.shrink("3", now_s=1e18), 1)["reason_pending"]
    assert words.endswith("it had 4 until 1000000000000000000 s")


def test_a_job_that_no_scheduler_has_judged_is_denied_like_a_new_one():
    bench = Bench("fifo")
    bench.did(bench.scheduler.grown("default", make_r("0-2"), ids("0-2"), Idset(), NOON_S))
    submitted_s, asked = NOON_S - 9.0, spec(nodes=4)
    assert isinstance(bench.scheduler.alloc(1, 16, 0, submitted_s, asked, NOON_S)[0], Annotated)
    (denied,) = bench.scheduler.alloc(2, 16, 0, submitted_s, asked, NOON_S, True)
    assert denied == Denied(2, "needs 4 nodes of 1 core; the group has only 3 such nodes")
    patient = spec(nodes=4, unsatisfiable="wait")
    assert isinstance(bench.scheduler.alloc(3, 16, 0, submitted_s, patient, NOON_S, True)[0], Annotated)
