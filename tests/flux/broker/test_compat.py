"""What Flux's own tools expect beyond RFC 27: debug bits, annotations of overtaken jobs, estimates and forecasts."""

from __future__ import annotations

from fluxsched.flux.handle import FORECAST_MAX, BrokerReply


def freed(jobid: int, rank: str, core: str) -> dict:
    lite = [{"rank": rank, "children": {"core": core}}]
    return {"id": jobid, "R": {"version": 1, "execution": {"R_lite": lite}}, "final": True}


def test_debug_bits_deny_allocs_and_tell_places(hand):
    hand.begin(ranks="0")
    hand.bits.add(2)
    for jobid in (1, 2, 3):
        hand.alloc(jobid, slots=2)
    hand.turn()
    told = [(token, answer["annotations"]["sched"].get("jobs_ahead")) for token, answer in hand.take("respond")]
    assert told[-2:] == [(2, 0), (3, 1)]
    hand.commits[0][1](BrokerReply())
    hand.ask("sched.free", freed(1, "0", "0-1"))
    hand.turn()
    hand.commits[1][1](BrokerReply())
    granted = hand.take("respond")[-1][1]["annotations"]["sched"]
    assert granted == {"resource_summary": "rank0/core[0-1]", "reason_pending": None, "jobs_ahead": None}
    hand.bits.add(1)
    hand.alloc(4)
    assert hand.take("respond")[-1][1] == {"id": 4, "type": 2, "note": "DEBUG_FAIL_ALLOC"}


def test_a_job_that_overtakes_names_the_one_with_the_reservation(hand):
    hand.begin("policy=easy", ranks="0-1")
    hand.alloc(1, slots=3, duration=600)
    hand.turn()
    hand.alloc(2, slots=4, duration=600)
    hand.alloc(3, duration=60)
    hand.turn()
    for _, done in hand.commits:
        done(BrokerReply())
    granted = {said["id"]: said["annotations"]["sched"] for _, said in hand.take("respond") if said["type"] == 0}
    assert granted[1] == {"resource_summary": "rank0/core[0-1] rank1/core0"}
    assert granted[3]["backfill"] == "ƒ3"


def test_a_job_that_overtakes_names_none_of_another_queue(hand):
    """The head of `batch` has the first reservation, and nothing of `other` waits behind a head."""
    hand.begin("policy=easy", ranks="0-2")
    hand.alloc(1, slots=4, duration=600)
    hand.turn()
    hand.alloc(2, slots=6, duration=600, queue="batch")
    hand.alloc(3, slots=3, duration=600, queue="debug")
    hand.alloc(4, duration=60, queue="debug")
    hand.alloc(5, duration=60, queue="other")
    hand.turn()
    for _, done in hand.commits:
        done(BrokerReply())
    granted = {said["id"]: said["annotations"]["sched"] for _, said in hand.take("respond") if said["type"] == 0}
    overtaken = {jobid: sched.get("backfill") for jobid, sched in granted.items()}
    assert overtaken == {1: None, 4: "ƒ4", 5: None}, "F58 of job 3"


def test_who_comes_later_and_overtakes_leaves_the_estimate_as_it_is(hand):
    hand.begin("policy=easy", ranks="0-1")
    hand.alloc(1, slots=3, duration=600)
    hand.alloc(2, slots=4, duration=600)
    hand.turn()
    assert estimates(hand) == {2: 1600.0}
    hand.alloc(3, duration=60)  # nothing else has happened: the plan of the last pass is gone on with
    hand.turn()
    assert estimates(hand) == {}
    hand.commits[-1][1](BrokerReply())
    ((_, answer),) = hand.take("respond")
    assert answer["annotations"]["sched"]["backfill"] == "ƒ3"


def estimates(hand):
    """What jobs were told of their start since the last look, the latest first of each."""
    told = [(answer["id"], answer["annotations"]["sched"]) for _, answer in hand.take("respond") if answer["type"] < 2]
    return {jobid: sched["t_estimate"] for jobid, sched in told if "t_estimate" in sched}


def test_a_forecast_estimates_the_first_jobs_and_takes_back_what_no_longer_holds(hand):
    hand.begin("policy=fifo", "forecast=yes", ranks="0")
    hand.alloc(1, slots=2, duration=600)
    hand.turn()
    hand.alloc(2, slots=2, duration=60)
    hand.alloc(3, slots=2, duration=60)
    hand.turn()
    assert estimates(hand) == {2: 1600.0, 3: 1660.0}
    hand.alloc(5, slots=2, duration=60)
    hand.turn()
    assert estimates(hand) == {5: 1720.0}
    hand.ask("sched.cancel", {"id": 5})
    hand.turn()
    assert estimates(hand) == {}
    hand.alloc(4, slots=2, priority=20)  # nobody knows when it ends
    hand.turn()
    assert estimates(hand) == {4: 1600.0, 2: None, 3: None}


def test_a_forecast_is_made_for_the_first_jobs_only(hand):
    hand.begin("policy=fifo", "forecast=yes", ranks="0")
    for jobid in range(1, FORECAST_MAX + 4):
        hand.alloc(jobid, slots=2, duration=60)
    hand.turn()
    assert sorted(estimates(hand)) == list(range(2, FORECAST_MAX + 2)), "job 1 runs, and the last two are beyond"


def test_a_job_that_is_no_longer_the_head_is_told_so(hand):
    hand.begin("policy=easy", ranks="0")
    hand.alloc(1, slots=2, duration=600)
    hand.turn()
    hand.alloc(2, slots=2, duration=60)
    hand.turn()
    assert estimates(hand) == {2: 1600.0}
    hand.alloc(3, slots=2, duration=60, priority=20)
    hand.turn()
    assert estimates(hand) == {3: 1600.0, 2: None}
    hand.ask("sched.cancel", {"id": 3})
    hand.turn()
    assert estimates(hand) == {2: 1600.0}
    hand.commits[0][1](BrokerReply())
    hand.ask("sched.free", freed(1, "0", "0-1"))
    hand.turn()
    hand.commits[1][1](BrokerReply())
    assert estimates(hand) == {2: None}


def test_who_starts_at_once_is_told_nothing_else_and_who_waits_is_told_in_one_message(hand):
    hand.begin("policy=easy", ranks="0")
    hand.alloc(1, slots=2)  # without a limit: worth a warning, if it has to wait
    hand.turn()
    assert hand.take("respond") == []
    hand.alloc(2, slots=2)
    assert hand.take("respond") == []
    hand.turn()
    ((_, answer),) = hand.take("respond")
    assert answer["annotations"]["sched"].keys() == {"warning", "reason_pending"}
