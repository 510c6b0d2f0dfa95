"""What a busy scheduler says late, or not at all, is not waited for, and what it said stays known."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from fluxsched.views import feeds, timeline
from fluxsched.views.follower import Follower
from tests.views.conftest import job_info, until, whole_of


async def test_the_first_rows_do_not_wait_for_reasons_that_take_long(following: Follower, spoken: Any) -> None:
    spoken.answers["job-manager.queue-status"] = {"enable": True, "start": True, "group": "default"}
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    spoken.answers["job-manager.reasons"] = lambda _: asyncio.shield(answer)
    async with following, following.subscribe("jobs") as viewer:
        whole = await whole_of(viewer)
        assert whole["jobs"][0]["reason"] == ""
        answer.set_result({"jobs": [[1, "7 ahead of it", 2e9, True]]})
        whole = await until(viewer, whole, lambda whole: whole["jobs"][0]["reason"])
        assert whole["jobs"][0]["reason"] == "7 ahead of it"


async def test_a_queue_says_why_its_jobs_wait_once_that_is_known(
    following: Follower, spoken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "QUEUES_EVERY_S", 1e6)
    status = {"enable": True, "start": True, "group": "default", "waiting": [1]}
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    spoken.answers |= {
        "job-manager.queue-list": {"queues": []}, "job-manager.queue-status": status, "config.get": {},
        "job-manager.list": {"jobs": [job_info(1)], "count": 1},
        "job-manager.reasons": lambda _: asyncio.shield(answer),
    }  # fmt: skip
    async with following, following.subscribe("queues") as viewer:
        whole = await whole_of(viewer)
        assert whole["queues"][0]["reasons"] == []
        answer.set_result({"jobs": [[1, "needs 4 nodes", 2e9, True]], "kinds": ["no free nodes"]})
        whole = await until(viewer, whole, lambda whole: whole["queues"][0]["reasons"])
        assert whole["queues"][0]["reasons"] == [["no free nodes", 1]]


async def test_a_timeline_does_not_wait_for_a_plan_that_takes_long(
    following: Follower, spoken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "TIMELINE_EVERY_S", 0.001)
    plan: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    spoken.answers |= {
        "job-manager.running": {"jobs": [], "left_out": 0},
        "sched.plan": lambda _: asyncio.shield(plan),
        "history.intervals": {"intervals": []},
    }
    async with following, following.subscribe("timeline") as viewer:
        whole = await whole_of(viewer)
        assert whole["starts"] == []
        now_s = time.time()
        plan.set_result({"jobs": [[1, now_s + 60.0, now_s + 120.0, "0", 0, 4, True]]})
        whole = await until(viewer, whole, lambda whole: whole["starts"])
        assert whole["starts"][0]["promised"]


async def test_reasons_that_a_busy_scheduler_does_not_tell_in_time_stay_known(
    spoken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "REASONS_EVERY_S", -1.0)
    monkeypatch.setattr(feeds, "SHARE", 1e9)
    reasons, answers = feeds.JobReasons(lambda: None), []

    class Busy:
        is_gone = False

        async def rpc(self, topic: str, payload: Any) -> Any:
            return {"jobs": answers.pop(0)}

    answers += [[[1, "7 ahead of it", 2e9, True], [2, "8 ahead of it", None, False]], []]
    first = await reasons.lookup(Busy(), [1, 2])
    assert await reasons.lookup(Busy(), [2, 3]) == {2: first[2]}, "job 1 is not shown any more"


async def test_reasons_are_asked_for_as_many_at_a_time_as_one_request_may_name() -> None:
    reasons, asked = feeds.JobReasons(lambda: None), []

    class Scheduler:
        is_gone = False

        async def rpc(self, topic: str, payload: Any) -> Any:
            asked.append(len(payload["ids"]))
            return {"jobs": [[jobid, "waits", None, False] for jobid in payload["ids"]]}

    known = await reasons.lookup(Scheduler(), range(2 * feeds.REASONS_MAX + 1))
    assert (len(known), asked) == (2 * feeds.REASONS_MAX + 1, [feeds.REASONS_MAX, feeds.REASONS_MAX, 1])
