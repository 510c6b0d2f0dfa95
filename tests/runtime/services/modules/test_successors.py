"""A module that takes the place of another finds its groups free, however late the loss of the other is known."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fluxsched.runtime.services.modules.process import STATUS_EXITED
from fluxsched.transport.roster import Roster


@pytest.mark.plain_only("replaces a method of a Roster")
async def test_a_module_is_removed_when_its_groups_are_free(world: Any, monkeypatch: Any) -> None:
    site = await world.instance(fake="2x2")
    peer = world.second(site)
    module = site.modules.modules["sched-fifo"]
    with monkeypatch.context() as unread:
        unread.setattr(Roster, "losses", lambda *_: [])
        tag = peer.open("module.remove", {"name": "sched-fifo"})
        while module.status != STATUS_EXITED:
            await asyncio.sleep(0.005)
        await peer.ok("instance.info")
        assert peer.waiting(tag) == []
    await peer.next(tag)
    assert (await peer.ok("module.load", {"spec": "fifo"}))["name"] == "sched-fifo"
