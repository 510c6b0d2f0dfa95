"""Clusters that answer nonsense or nothing, die between a submit and its answer, come back without their state, or with
a second copy of a job.
"""

from __future__ import annotations

import asyncio
import errno

import pytest

from fluxsched.leases.states import LeaseState
from fluxsched.protocol.framing.header import make_error, make_response
from fluxsched.runtime.clusters import loop as cluster_loop

from .other import Bench, Other, entry

ENDED = {"state": "ended", "began": True, "status": 0}


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """bench(others..., state=...): a loop whose pauses are short."""
    monkeypatch.setattr(cluster_loop, "RECONNECT_S", 0.005)
    monkeypatch.setattr(cluster_loop, "RESUBMIT_S", 0.005)
    made = []

    def make(*others, **options):
        made.append(Bench(tmp_path, asyncio.get_running_loop(), *others, **options))
        return made[-1]

    yield make
    for one in made:
        one.loop.close()
        one.turns.stop()


@pytest.mark.parametrize("nonsense", [b"\xff\xff", b"\x81\xa6leases\x01", b"\x81\xa6leases\x91\x80"])
async def test_one_that_answers_nonsense_is_given_up_and_keeps_its_leases(bench, eventually, nonsense):
    bad, good = Other(is_silent=True), Other()
    table = bench(bad, good).loop.table
    await eventually(lambda: bool(bad.said("lease.watch")))
    (watch,) = [message for message in bad.messages if message.topic == "lease.watch"]
    bad.put(make_response(watch, nonsense))
    await eventually(lambda: bool(good.said("lease.submit")))
    assert bad.lost == "closed"
    assert table.leases["me/1"].state is LeaseState.SENT
    assert len(good.said("lease.submit")) == 1


async def test_one_that_answers_nothing_is_given_up_and_keeps_its_leases(bench, eventually, monkeypatch):
    monkeypatch.setattr(cluster_loop, "LISTEN_S", 0.01)
    silent, good = Other(is_silent=True), Other()
    made = bench(silent, good)
    await eventually(lambda: bool(good.said("lease.submit")))
    assert silent.lost == "closed"
    assert not silent.said("lease.submit")
    assert made.reported == []


@pytest.mark.parametrize("was_accepted", [True, False])
async def test_one_that_dies_between_submit_and_answer_has_no_second_copy(bench, eventually, was_accepted):
    first, second = Other(), Other([entry()] if was_accepted else [])
    made = bench(first, second)
    await eventually(lambda: bool(first.said("lease.submit")))
    first.lose()
    await eventually(lambda: made.loop.table.is_known and made.loop._connection is not None and bool(second.asked))
    if not was_accepted:
        await eventually(lambda: bool(second.said("lease.submit")))
        second.accept(7)
    second.tell(entry(state="running", began=True))
    second.tell(entry(**ENDED))
    await eventually(lambda: ("finished", 1, 0) in made.reported)
    assert len(second.said("lease.submit")) == (0 if was_accepted else 1)
    assert made.reported == [("started", 1), ("started", 1), ("finished", 1, 0)]
    await eventually(lambda: second.said("lease.settle") == [{"names": ["me/1"]}])


async def test_one_without_its_state_does_not_run_again_what_had_begun(bench, eventually):
    empty = Other()
    made = bench(empty, state=LeaseState.RUNNING)
    await eventually(lambda: bool(made.reported))
    assert "how it ended is unknown" in made.reported[0][2]
    assert not empty.said("lease.submit")
    assert ("lease", (1,)) in made.rows


async def test_a_second_copy_and_jobs_without_a_lease_are_cancelled(bench, eventually):
    running = entry(jobid=8, state="running", began=True)
    other = Other([entry(jobid=9), running, entry("me/5", 4), entry("me/6", 5, **ENDED)])
    made = bench(other, state=LeaseState.SENT)
    await eventually(lambda: ("started", 1) in made.reported)
    await eventually(lambda: len(other.said("lease.settle")) == 2)
    assert {one["id"] for one in other.said("job-manager.cancel")} == {9, 4}
    assert other.said("lease.settle") == [{"names": ["me/5"]}, {"names": ["me/6"]}]
    other.tell(entry(jobid=10))
    await eventually(lambda: 10 in {one["id"] for one in other.said("job-manager.cancel")})
    assert made.reported == [("started", 1)]


async def test_a_refusal_that_passes_is_tried_again_and_another_ends_the_job(bench, eventually):
    other = Other()
    made = bench(other)
    await eventually(lambda: bool(other.said("lease.submit")))
    other.refuse(errno.EAGAIN, "too many jobs")
    await eventually(lambda: len(other.said("lease.submit")) == 2)
    other.refuse(errno.EINVAL, "no such queue")
    await eventually(lambda: bool(made.reported))
    assert made.reported == [("failed", 1, "cluster east: no such queue")]


async def test_of_two_instances_with_the_same_leases_the_earlier_keeps_away(bench, eventually):
    other = Other()
    made = bench(other, Other(), Other())
    await eventually(lambda: bool(other.said("lease.submit")))
    other.put(make_error(other._watch, errno.ESTALE, "a later session of me watches now"))
    await eventually(lambda: made.loop.info().state == "silent")
    assert made.loop.info().note == cluster_loop.DISPLACED
    await asyncio.sleep(0.05)
    assert len(made.others) == 2, "it does not connect again"
    assert made.reported == []


async def test_a_start_with_an_earlier_number_than_another_says_what_to_do_and_tries_again(bench, eventually):
    first, second = Other(is_silent=True), Other(is_silent=True)
    made = bench(first, second)
    await eventually(lambda: bool(first.said("lease.watch")))
    (watch,) = [message for message in first.messages if message.topic == "lease.watch"]
    first.put(make_error(watch, errno.ESTALE, "session 1 of me is over: session 2 has begun"))
    await eventually(lambda: bool(second.said("lease.watch")))
    assert made.loop.info().state == "silent"
    assert "the clock here was behind at this start" in made.loop.info().note
    assert made.reported == []
