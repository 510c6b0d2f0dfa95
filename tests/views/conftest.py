"""An instance that a test speaks for: it answers what it is told to, can be lost, and notes what it was asked."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from fluxsched.errors import RPCError
from fluxsched.views import feeds
from fluxsched.views import feeds as feed
from fluxsched.views.feeds import after
from fluxsched.views.follower import Follower, Subscription

TARGETS = [{"rank": "0-3", "children": {"core": "0-1"}}]
WHOLE = {
    "R": {"version": 1, "execution": {"R_lite": TARGETS, "nodelist": ["n[0-3]"]}},
    "states": {"free": "0-3"}, "busy": {}, "busy_gpus": {}, "made_up": "",
    "drains": {"3": {"timestamp": 5.0, "reason": "fan", "state": "drained"}},
    "groups": [{"name": "default", "targets": "0-3", "leaving": "", "incoming": "", "acquired": True}],
}  # fmt: skip


class SpokenStream:
    """Answers of one streaming request, as the test gives them; None ends it."""

    def __init__(self, payload: Any) -> None:
        self.payload = payload
        self.is_cancelled = False
        self.answers: asyncio.Queue[Any] = asyncio.Queue()

    def say(self, *answers: Any) -> None:
        for answer in answers:
            self.answers.put_nowait(answer)

    def __aiter__(self) -> SpokenStream:
        return self

    async def __anext__(self) -> Any:
        answer = await self.answers.get()
        if answer is None:
            raise StopAsyncIteration
        if isinstance(answer, Exception):
            raise answer
        return answer

    def cancel(self) -> None:
        self.is_cancelled = True


class SpokenHandle:
    """A connection to it."""

    def __init__(self, instance: SpokenInstance) -> None:
        self.instance = instance
        self.lost: asyncio.Future[RPCError] = asyncio.get_running_loop().create_future()
        self.streams: list[SpokenStream] = []

    async def __aenter__(self) -> SpokenHandle:
        if self.instance.is_away:
            raise RPCError("nothing listens", errno.ECONNREFUSED)
        self.instance.handles.append(self)
        return self

    async def __aexit__(self, *fault: object) -> None:
        self.instance.handles.remove(self)

    async def gone(self) -> RPCError:
        return await asyncio.shield(self.lost)

    @property
    def is_gone(self) -> bool:
        return self.lost.done()

    async def rpc(self, topic: str, payload: Any = None, *, timeout_s: float | None = None) -> Any:
        self.instance.asked.append((topic, payload))
        answer = self.instance.answers[topic]
        found = answer(payload) if callable(answer) else answer
        if isinstance(found, Exception):
            raise found
        return await found if isinstance(found, Awaitable) else found

    def stream(self, topic: str, payload: Any = None) -> SpokenStream:
        self.instance.asked.append((topic, payload))
        stream = SpokenStream(payload)
        self.streams.append(stream)
        self.instance.streams.setdefault(topic, []).append(stream)
        stream.say(*self.instance.first.get(topic, ()))
        return stream


class SpokenInstance:
    """`answers`: what it says to requests; `first`: with what its streams begin."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {"instance.info": {"uri": "fake"}}
        self.first: dict[str, tuple[Mapping[str, Any], ...]] = {}
        self.streams: dict[str, list[SpokenStream]] = {}
        self.handles: list[SpokenHandle] = []
        self.asked: list[tuple[str, Any]] = []
        self.is_away = False

    def connect(self) -> SpokenHandle:
        return SpokenHandle(self)

    def die(self) -> None:
        """All connections are lost, and none is to be had."""
        self.is_away = True
        for handle in self.handles:
            fault = RPCError("gone", errno.ECONNRESET)
            handle.lost.set_result(fault)
            for stream in handle.streams:
                stream.say(fault)

    def count(self, topic: str) -> int:
        return sum(asked == topic for asked, _ in self.asked)


@pytest.fixture
def spoken() -> SpokenInstance:
    return SpokenInstance()


@pytest.fixture
def settle() -> Callable[[], Any]:
    """Lets everything run that needs no time."""

    async def settled() -> None:
        for _ in range(30):
            await asyncio.sleep(0)

    return settled


def job_info(jobid: int, **more: Any) -> dict[str, Any]:
    return {"id": jobid, "state": "SCHED", "name": "solve", "userid": 0, "urgency": 16, "t_submit": 1.0, "ntasks": 1,
            "duration": 0.0, "annotations": {}, "dependencies": [], **more}  # fmt: skip


def counts(submitted: int) -> dict[str, Any]:
    return {
        "jobs": {"submitted": submitted, "started": 0, "ended": {}},
        "queues": [{"name": "", "pending": 2, "running": 1}],
    }


@pytest.fixture
def following(spoken: Any, monkeypatch: pytest.MonkeyPatch) -> Follower:
    for module in (feeds, feeds):
        monkeypatch.setattr(module, "ASKED_EVERY_S", 0.001)
    monkeypatch.setattr(feed, "SHARE", 1000.0)
    monkeypatch.setattr(feed, "LIST_SHARE", 1e9)
    spoken.first["resource.watch"] = (WHOLE,)
    spoken.answers |= {
        "instance.metrics": lambda _: counts(len(spoken.jobs)),
        "job-manager.list": lambda asked: {
            "jobs": spoken.jobs[: asked["max_entries"]],
            "count": len(spoken.jobs),
        },
        "job-manager.queue-status": {"enable": True, "start": False, "start_reason": "power", "group": "default"},
        "job-manager.queue-list": {"queues": []},
        "job-manager.reasons": RPCError("unknown method", errno.ENOSYS),
    }
    spoken.jobs = [job_info(1)]
    return Follower(connect=spoken.connect)


async def whole_of(viewer: Subscription) -> Any:
    """After the word that the instance is there."""
    while (message := await anext(viewer)).kind == "instance":
        pass
    return message.body


async def until(viewer: Subscription, whole: Any, reached: Any) -> Any:
    """The whole once it is so; messages that came at once are one."""
    while not reached(whole):
        whole = after(whole, (await anext(viewer)).body)
    return whole
