"""Who may serve a group: the module that was loaded for it, and nobody who is quicker."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from typing import Any

from fluxsched.runtime.instance.instance import Instance
from fluxsched.runtime.instance.launch import StartOptions, settings_of


async def test_a_client_that_is_quicker_than_the_scheduler_does_not_take_its_group(world: Any) -> None:
    """As after `instance.restart`: the scheduler's own acquire was refused, and the start ended."""
    instance = Instance(replace(settings_of(StartOptions(fake="1x2")), ready_within_s=15.0))
    entered = asyncio.ensure_future(instance.__aenter__())
    await asyncio.sleep(0)  # it listens; the process of its scheduler imports still
    peer = world.second(instance)
    for topic, payload in (
        ("resource.acquire", {}),
        ("resource.acquire", {"group": "default"}),
        ("job-manager.sched-hello", {"groups": ["default"]}),
        ("job-manager.sched-hello", {}),
    ):
        answer = await peer.next(peer.open(topic, payload))
        assert (answer.errnum, "served by module 'sched-fifo'" in answer.payload) == (errno.EBUSY, True), answer
    await entered  # its scheduler serves it: else this raises
    await instance.close()
