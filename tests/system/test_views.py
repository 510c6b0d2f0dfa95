"""Viewers of a real instance: every topic answers, and one that is killed comes back under them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fluxsched.views.feeds import after
from fluxsched.views.follower import TOPICS, Follower, Subscription

WAIT_S = 60.0


async def reached(viewer: Subscription, condition: Any) -> Any:
    """The whole, kept by changes, once it is so."""
    whole: Any = {}
    async with asyncio.timeout(WAIT_S):
        async for kind, body in viewer:
            if kind != "instance":
                whole = body if kind == "whole" else after(whole, body)
                if condition(whole):
                    return whole
    raise AssertionError("the viewer's loop has ended")


async def test_an_instance_that_is_killed_and_started_again(
    daemon: Any, user: Any, kill_hard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the address that its state directory keeps: what was followed goes on."""
    state = ("--statedir", user.directory / "state")
    first = daemon("--fake", "4x2", *state)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(first.directory))
    monkeypatch.setenv("XDG_STATE_HOME", first.environment["XDG_STATE_HOME"])
    async with Follower(first.uri) as follower, follower.subscribe("machine") as viewer:
        whole = await reached(viewer, lambda whole: whole["counts"] == {"free": 4})
        await follower.ask("resource.drain", {"targets": "1", "reason": "fan"})
        whole = await reached(viewer, lambda whole: "drained" in whole["states"])
        assert whole["states"]["drained"] == "1"
        jobid = first.submit("printf", "a\\033[31mb")
        async with follower.subscribe("job", {"id": jobid}) as job:
            whole = await reached(job, lambda whole: whole["output"] and whole["job"]["status"] == "COMPLETED")
        assert whole["output"] == [["stdout", "a\\x1b[31mb"]]
        await asyncio.to_thread(kill_hard, first.pid())
        async with asyncio.timeout(WAIT_S):
            while (message := await anext(viewer)).body.get("instance") != "lost":
                pass
        assert message.body["why"]
        second = await asyncio.to_thread(daemon, "--fake", "4x2", *state)
        assert second.uri == first.uri
        whole = await reached(viewer, lambda whole: whole["counts"] == {"free": 3, "drained": 1})
        for topic in TOPICS:
            params = {"job": {"id": jobid}, "target": {"rank": "0"}}.get(topic, {})
            async with follower.subscribe(topic, params) as any_viewer:
                whole = await reached(any_viewer, bool)
            assert "refused" not in whole, f"{topic}: {whole}"
        second("stop")
