"""The named limits of the services, each reached."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from fluxsched.core.jobspec import Jobspec
from fluxsched.runtime.services import agents, resource_journal
from fluxsched.runtime.services.jobs import scheduling
from fluxsched.runtime.services.modules import service as modules


async def test_so_many_agents_are_connected(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "AGENTS_MAX", 1)
    site = await world.bare(config="[[resource.config]]\nhosts = 'host[0-1]'\ncores = '0-1'\n")
    first, second = world.second(site), world.second(site)
    await first.ok("agent.hello", {"host": "host0", "heartbeat_s": 1.0})
    assert await second.refused("agent.hello", {"host": "host1", "heartbeat_s": 1.0}) == (
        errno.EMFILE, "agents report for 1 hosts, which is the limit",
    )  # fmt: skip


async def test_so_many_modules_are_loaded(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "MODULES_MAX", 0)
    peer = world.second(await world.bare())
    assert (await peer.refused("module.load", {"spec": "fifo"}))[0] == errno.EMFILE


async def test_the_store_keeps_so_many_events(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_journal, "STORED_EVENTS_MAX", 3)
    monkeypatch.setattr(resource_journal, "PRUNE_EVENTS", 1)
    site = await world.bare()
    peer = world.second(site)
    for _ in range(4):
        await peer.ok("resource.drain", {"targets": "0", "reason": "fan"})
        await peer.ok("resource.undrain", {"targets": "0"})
    kept = [row[0] for row in site.store.read("SELECT event FROM journal ORDER BY seq")]
    assert len(kept) in (3, 4)
    assert b'"undrain"' in bytes(kept[-1])


async def test_a_scheduler_that_leaves_a_feasibility_check_unanswered_is_not_asked_again(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each submit would wait as long; once the answer has come it is asked again."""
    monkeypatch.setattr(scheduling, "FEASIBILITY_S", 0.05)
    site = await world.bare(fake="1x1")
    scheduler, user = world.second(site), world.second(site)
    await scheduler.schedule("default")
    jobspec = Jobspec.from_command(["true"]).to_json()
    errnum, text = await user.refused("feasibility.check", {"jobspec": jobspec})
    assert (errnum, "no answer of the scheduler in 0.05 s" in text) == (errno.ETIMEDOUT, True)
    errnum, text = await user.refused("feasibility.check", {"jobspec": jobspec})
    assert (errnum, "is not asked again" in text) == (errno.ENOSYS, True)
    asked = await scheduler.request()
    assert (asked.topic, len(scheduler.requests)) == ("feasibility.check", 0)
    scheduler.answer("feasibility.check", tag=asked.tag)
    await scheduler.settle()
    tag = user.send("feasibility.check", {"jobspec": jobspec})
    scheduler.answer("feasibility.check", tag=(await scheduler.request()).tag)
    assert (await user.next(tag)).errnum == 0
