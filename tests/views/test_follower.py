"""The follower: who is told what, once, and what an instance that goes away does to viewers."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from fluxsched.client import find
from fluxsched.errors import InvalidValue, LimitExceeded, RPCError
from fluxsched.views import follower
from fluxsched.views.follower import Follower, Subscription

TARGETS = [{"rank": "0-3", "children": {"core": "0-1"}}]
WHOLE = {
    "R": {"version": 1, "execution": {"R_lite": TARGETS, "nodelist": ["n[0-3]"]}},
    "states": {"free": "0-3"}, "busy": {}, "busy_gpus": {}, "drains": {}, "groups": [], "made_up": "",
}  # fmt: skip


@pytest.fixture
def following(spoken: Any, monkeypatch: pytest.MonkeyPatch) -> Follower:
    monkeypatch.setattr(follower, "LINGERED_S", 0.0)
    spoken.first["resource.watch"] = (WHOLE,)
    return Follower(connect=spoken.connect)


async def kinds(viewer: Subscription, count: int) -> list[str]:
    return [(await anext(viewer)).kind for _ in range(count)]


async def test_a_viewer_gets_the_whole_and_then_differences(following: Follower, spoken: Any) -> None:
    async with following, following.subscribe("machine") as viewer:
        kind, body = await anext(viewer)
        assert (kind, body["instance"]) == ("instance", "there")
        kind, whole = await anext(viewer)
        assert (kind, whole["counts"]) == ("whole", {"free": 4})
        spoken.streams["resource.watch"][0].say({"states": {"drained": "1"}})
        message = await anext(viewer)
        assert list(message) == ["change", {"states": {"drained": "1"}, "counts": {"free": 3, "drained": 1}}]
        assert message.json == b'{"states":{"drained":"1"},"counts":{"free":3,"drained":1}}'


async def test_viewers_of_the_same_share_one_request_and_the_messages(following: Follower, spoken: Any) -> None:
    async with following, following.subscribe("machine") as one, following.subscribe("machine") as other:
        assert await kinds(one, 2) == await kinds(other, 2) == ["instance", "whole"]
        spoken.streams["resource.watch"][0].say({"states": {"drained": "1"}})
        assert await anext(one) is await anext(other)
        async with following.subscribe("machine") as late:
            await anext(late)
            assert (await anext(late)).body["counts"] == {"free": 3, "drained": 1}
        assert spoken.count("resource.watch") == 1


async def test_what_has_no_viewer_is_not_asked_for(following: Follower, spoken: Any, settle: Any) -> None:
    async with following:
        async with following.subscribe("machine") as viewer:
            await kinds(viewer, 2)
        await asyncio.sleep(0.001)
        await settle()
        assert spoken.streams["resource.watch"][0].is_cancelled
        async with following.subscribe("machine") as viewer:
            assert await kinds(viewer, 2) == ["instance", "whole"]
        assert spoken.count("resource.watch") == 2


async def test_a_feed_is_kept_a_moment_for_the_next_viewer(
    following: Follower, spoken: Any, settle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "LINGERED_S", 60.0)
    async with following:
        for _ in range(2):
            async with following.subscribe("machine") as viewer:
                await kinds(viewer, 2)
            await settle()
        assert spoken.count("resource.watch") == 1


async def test_feeds_are_limited_and_those_without_a_viewer_make_room(
    following: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "FEEDS_MAX", 2)
    async with following, following.subscribe("machine"), following.subscribe("machine"):
        following.subscribe("jobs", {"text": "a"}).close()
        async with following.subscribe("jobs", {"text": "b"}):
            with pytest.raises(LimitExceeded, match="2 different views"):
                following.subscribe("jobs", {"text": "c"})


async def test_a_viewer_that_reads_nothing_has_one_merged_message(
    following: Follower, spoken: Any, settle: Any
) -> None:
    async with following, following.subscribe("machine") as viewer:
        await kinds(viewer, 2)
        for rank in range(4):
            spoken.streams["resource.watch"][0].say({"states": {"drained": str(rank)}})
        spoken.streams["resource.watch"][0].say({"states": {"free": "2"}})
        await settle()
        kind, body = await anext(viewer)
        assert kind == "change"
        assert body["states"] == {"drained": "0-1,3", "free": "2"}
        assert body["counts"] == {"drained": 3, "free": 1}


async def test_an_instance_that_goes_away_is_a_state_and_all_is_whole_again_when_it_is_back(
    following: Follower, spoken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "RETRY_S", 0.001)
    monkeypatch.setattr(find, "RETRY_MAX_S", 0.004)
    async with following, following.subscribe("machine") as viewer:
        await kinds(viewer, 2)
        spoken.die()
        kind, body = await anext(viewer)
        assert (kind, body["instance"], body["why"]) == ("instance", "lost", "gone")
        retries = [(await anext(viewer)).body for _ in range(4)]
        assert [retry["retry_s"] for retry in retries] == [0.002, 0.004, 0.004, 0.004]
        assert retries[0]["why"] == "nothing listens"
        with pytest.raises(RPCError, match="nothing listens"):
            await following.ask("instance.metrics")
        spoken.is_away = False
        while (message := await anext(viewer)).body["instance"] == "lost":
            pass
        assert (await anext(viewer)).kind == "whole"
        assert message.body == {"instance": "there", "uri": "fake"}


async def test_what_the_instance_refuses_is_told_and_asked_again(
    following: Follower, spoken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "REFUSED_RETRY_S", 0.001)
    spoken.first["resource.watch"] = (RPCError("not for guests", errno.EPERM),)
    async with following, following.subscribe("machine") as viewer:
        await anext(viewer)
        assert (await anext(viewer)).body == {"refused": "not for guests", "errnum": errno.EPERM}
        spoken.first["resource.watch"] = (WHOLE,)
        while "refused" in (message := await anext(viewer)).body:
            pass
        assert message.kind == "whole"


async def test_a_fault_of_ours_ends_the_viewer_and_the_next_one_begins_anew(following: Follower, spoken: Any) -> None:
    spoken.first["resource.watch"] = ({"R": 7},)
    async with following:
        async with following.subscribe("machine") as viewer:
            with pytest.raises(InvalidValue):
                await kinds(viewer, 3)
        spoken.first["resource.watch"] = (WHOLE,)
        async with following.subscribe("machine") as viewer:
            assert await kinds(viewer, 2) == ["instance", "whole"]


async def test_close_ends_every_viewer(following: Follower, spoken: Any) -> None:
    viewer = following.subscribe("machine")
    reader = asyncio.ensure_future(kinds(viewer, 99))
    await asyncio.sleep(0.01)
    await following.close()
    with pytest.raises(StopAsyncIteration):
        await anext(viewer)
    assert isinstance((await asyncio.gather(reader, return_exceptions=True))[0], RuntimeError | StopAsyncIteration)
    assert not spoken.handles
    with pytest.raises(InvalidValue, match="closed"):
        following.subscribe("machine")


async def test_unknown_topics_and_parameters_are_refused_at_once(following: Follower) -> None:
    with pytest.raises(InvalidValue, match="there is no view 'weather_map'"):
        following.subscribe("weather_map")
    with pytest.raises(InvalidValue, match="machine: colour: no such parameter"):
        following.subscribe("machine", {"colour": 1})
