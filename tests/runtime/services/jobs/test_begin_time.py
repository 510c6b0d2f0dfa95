"""A job that waits for a date follows the clock of the machine, however that is set meanwhile."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from fluxsched.runtime.system.clock import SystemClock


async def test_a_clock_that_is_set_forward_begins_what_is_due(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead_s = 0.0
    monkeypatch.setattr(SystemClock, "wall_s", staticmethod(lambda: time.time() + ahead_s))
    peer = world.second(await world.instance())
    slot = {"type": "slot", "label": "task", "count": 1, "with": [{"type": "core", "count": 1}]}
    begin = {"scheme": "begin-time", "value": str(time.time() + 3600)}
    system = {"duration": 0, "dependencies": [begin], "exec": {"test": {"run_duration": "1ms"}}}
    task = {"command": ["true"], "slot": "task", "count": {"per_slot": 1}}
    spec = {"version": 1, "resources": [slot], "tasks": [task], "attributes": {"system": system}}
    jobid = (await peer.ok("job-manager.submit", {"jobspec": spec}))["id"]
    assert (await peer.ok("job-manager.why", {"id": jobid}))["state"] == "DEPEND"
    ahead_s = 7200.0
    async with asyncio.timeout(15):
        await peer.ok("job-manager.wait", {"id": jobid})
