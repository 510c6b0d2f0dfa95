"""The scheduler's side of allocation (RFC 27): answers to alloc, free, cancel, prioritize, expiration, feasibility."""

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import InvalidValue, Refused, RemoteProtocolError
from fluxsched.sched.decisions import Annotated, Canceled, Denied, Granted
from tests.sched.site import limit, lowered, make_r, scheduler_of, spec

NOTICE_EVERY_S = limit("NOTICE_EVERY_S")


def test_a_grant_says_everything(bench):
    bench.grow(make_r("0-1", 4, 2, ssd="0", **{"+local": "0"}))
    bench.submit(1, nslots=2, cores=2, gpus=1, duration=30.0)
    (granted,) = bench.run()
    assert granted.jobid == 1
    assert granted.R == {
        "version": 1,
        "execution": {
            "R_lite": [{"rank": "0", "children": {"core": "0-3", "gpu": "0-1"}}],
            "starttime": 100.0,
            "expiration": 130.0,
            "nodelist": ["n0"],
            "properties": {"ssd": "0"},
            "nslots": 2,
        },
    }
    assert granted.annotations == {
        "sched": {"resource_summary": "rank0/core[0-3],gpu[0-1]", "selection_type": "immediate"}
    }


def test_grants_of_the_same_cores_differ_in_their_times_and_in_what_their_targets_are_now(bench):
    bench.grow(make_r("0", 1))
    for jobid, duration_s in enumerate((30.0, 0.0, 5.0), start=1):
        bench.submit(jobid, duration=duration_s)
        (granted,) = bench.run()
        assert granted.resources.to_json() == granted.R
        assert list(granted.R["execution"]) == list(granted.resources.to_json()["execution"])
        assert granted.annotations["sched"]["resource_summary"] == granted.resources.summary() == "rank0/core0"
        bench.free(jobid)
        bench.now_s += 1.0
    bench.scheduler.updated("default", property_add={"ssd": Idset.parse("0")})
    bench.submit(4)
    (granted,) = bench.run()
    assert granted.R["execution"]["properties"] == {"ssd": "0"}


def test_grants_are_remembered_up_to_a_limit(bench):
    bench.grow(make_r("0-3", 4))
    with lowered(GRANTS_CACHED_MAX=2):
        for jobid in range(1, 5):
            bench.submit(jobid, nodes=1, exclusive=True)
        found = bench.run()
        assert [granted.R["execution"]["R_lite"][0]["rank"] for granted in found] == ["0", "1", "2", "3"]
        pool = bench.scheduler.group("default").pool
        assert 0 < len(pool.usual_grants) <= 2
    bench.grow(make_r("4", 4))
    assert not pool.usual_grants, "they would keep what was there before each change"


def test_free_makes_room_for_the_next(bench):
    bench.grow("0")
    bench.submit(1, cores=4)
    bench.submit(2, cores=4)
    assert [type(effect) for effect in bench.run()] == [Granted, Annotated]
    assert bench.run() == []
    bench.free(1)
    (granted,) = bench.run()
    assert granted.annotations["sched"] == {
        "resource_summary": "rank0/core[0-3]", "selection_type": "immediate", "reason_pending": None
    }  # fmt: skip
    with pytest.raises(RemoteProtocolError, match="freed before"):
        bench.scheduler.free(1, bench.granted[2], True)


def test_pending_reasons_are_annotated_only_when_they_change(bench):
    bench.grow("0-2")
    bench.submit(1, nodes=1, exclusive=True)
    bench.submit(2, nodes=1, exclusive=True)
    bench.submit(3, nodes=3, exclusive=True)
    reason = "needs 3 exclusive nodes of 1 core; 1 node fits now, 2 nodes are busy"
    assert bench.run()[2:] == [Annotated(3, {"sched": {"reason_pending": reason}})]
    assert bench.why(3) == reason
    bench.submit(4, spec())
    assert bench.run() == []  # a pass was run, and there is nothing new to say
    assert bench.why(4) == "waits its turn; 1 ahead of it in the queue"
    bench.did(bench.scheduler.went_offline(Idset.parse("2")))
    bench.free(1)
    words = "1 node fits now, n2 is out of service, 1 node is busy"
    assert bench.run() == []  # it has changed, but not much time has passed
    assert words in bench.why(3)
    bench.now_s += NOTICE_EVERY_S
    bench.did(bench.scheduler.cancel(4))
    (annotated,) = bench.run()
    assert words in annotated.annotations["sched"]["reason_pending"]


BAD_SPECS = [
    ({}, "jobspec"),
    ("{", "JSON"),
    ([], "object"),
    ({"version": 1, "resources": [{"type": "rack", "count": 1}], "tasks": [], "attributes": {}}, "rack"),
]


@pytest.mark.parametrize(("bad", "words"), BAD_SPECS)
def test_a_bad_jobspec_is_denied_and_the_module_lives_on(bench, bad, words):
    bench.grow("0")
    (denied,) = bench.submit(1, bad)
    assert isinstance(denied, Denied)
    assert words in denied.note
    assert bench.scheduler.feasible(bad) == denied.note
    bench.submit(2, spec())
    assert isinstance(bench.run()[0], Granted)


def test_a_job_alloced_twice_is_the_senders_fault(bench):
    bench.grow("0")
    bench.submit(1, spec())
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="job 1"):
            bench.submit(1, spec())
        bench.run()


def test_a_full_queue_denies_politely(bench, lower):
    lower(WAITING_MAX=1)
    bench.grow("0")
    bench.submit(1, spec())
    (denied,) = bench.submit(2, spec())
    assert denied == Denied(2, "the queue is full: 1 jobs wait; submit again when some have started")


def test_cancel_answers_only_who_waits(bench):
    bench.grow("0")
    bench.submit(1, cores=4)
    bench.submit(2, cores=4)
    bench.run()
    assert bench.did(bench.scheduler.cancel(2)) == [Canceled(2)]
    assert bench.did(bench.scheduler.cancel(2)) == []
    assert bench.did(bench.scheduler.cancel(1)) == []  # its success is on the way: the job manager frees it


def test_cancel_of_a_blocked_head_lets_others_pass(bench):
    bench.grow("0-1")
    bench.submit(1, nodes=1, exclusive=True)
    bench.submit(2, nodes=2, exclusive=True)
    bench.submit(3, nodes=1, exclusive=True)
    bench.run()
    assert set(bench.granted) == {1}
    bench.did(bench.scheduler.cancel(2))
    assert [effect.jobid for effect in bench.run()] == [3]


def test_prioritize_reorders_holds_and_ignores_who_is_gone(bench):
    bench.grow("0")
    for jobid in (1, 2, 3):
        bench.submit(jobid, cores=4)
    bench.did(bench.scheduler.prioritize([(3, 31), (1, 0), (99, 5)]))
    assert [effect.jobid for effect in bench.run()] == [3, 2]
    assert "held" in bench.why(1)
    bench.did(bench.scheduler.prioritize([(1, 4294967295), (2, 0)]))
    bench.free(3)
    assert [effect.jobid for effect in bench.run()] == [1]


def test_expiration_of_a_running_job(bench):
    bench.grow(make_r("0", expiration=500.0))
    bench.submit(1, duration=10.0)
    bench.run()
    assert bench.did(bench.scheduler.expiration(1, 200.0)) == []
    with pytest.raises(Refused, match="job ƒ2 cannot run beyond the end of its resources, Jan01 00:08 UTC"):
        bench.scheduler.expiration(1, 501.0)
    with pytest.raises(Refused, match="job ƒ3: it holds no resources"):
        bench.scheduler.expiration(2, 200.0)
    (running,) = bench.scheduler.group("default").allocations()
    assert running.expiration_s == 200.0


def test_feasibility_ignores_availability_and_load(bench):
    bench.grow("0-3", offline="0-3")
    assert bench.scheduler.feasible(spec(nodes=4, cores=4)) is None
    assert bench.scheduler.feasible(Jobspec.parse(spec(nodes=4, cores=4))) is None
    assert "only 4 such nodes" in (bench.scheduler.feasible(spec(nodes=5)) or "")
    bench.did(bench.scheduler.shrunk("default", Idset.parse("0"), True))
    assert bench.scheduler.feasible(spec(nodes=4)) is not None


def test_status_and_stats(bench):
    bench.grow(make_r("0-3", 4, 1), offline="3")
    bench.submit(1, cores=2, gpus=1)
    bench.submit(2, nodes=4)
    bench.submit(3, nodes=5)
    bench.run()
    total, down, allocated = bench.scheduler.report.resource_status()
    assert [part.summary() for part in (total, down, allocated)] == [
        "rank[0-3]/core[0-3],gpu0",
        "rank3/core[0-3],gpu0",
        "rank0/core[0-1],gpu0",
    ]
    stats = bench.scheduler.report.stats()
    assert stats["policy"] == "fifo"
    assert (stats["granted"], stats["denied"], stats["running"]) == (1, 1, 1)
    counts = {"targets": 4, "down": 1, "leaving": 0, "waiting": 1, "planned": 0, "queues": {}}
    assert stats["groups"] == {"default": counts}


def test_why_of_others(bench):
    bench.grow("0")
    bench.submit(1, spec())
    bench.run()
    assert bench.why(1) == "holds resources"
    with pytest.raises(Refused, match="job ƒA is unknown"):
        bench.why(9)


def test_groups_are_checked_when_it_is_made():
    with pytest.raises(InvalidValue, match="at least one group"):
        scheduler_of("fifo", ())
    with pytest.raises(InvalidValue, match="groups b"):
        scheduler_of("fifo", ("a",), {"q": "b"})
