"""Schedulers as modules: loaded, supervised, succeeded, and the states that they save."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from dataclasses import replace

import pytest

from fluxsched.instance.instance import Instance
from fluxsched.instance.launch import StartOptions, settings_of
from fluxsched.services import scheduling
from fluxsched.services.module_processes import STATUS_EXITED
from fluxsched.services.scheduling import STATE_BYTES_MAX
from fluxsched.store.integrity import checksummed
from fluxsched.transport.zeromq import Roster

# What a scheduler has kept: returned to the next one of its groups, across restarts, as it was. Jobspecs in hello.


GROUPS = '[resource.groups]\nb = "fake3"\n'


async def kept(peer, *groups):
    """What this peer finds when it becomes the scheduler of groups."""
    for group in groups:
        await peer.next(peer.open("resource.acquire", {"group": group}))
    hello = peer.open("job-manager.sched-hello", {"partial-ok": True, "groups": list(groups)})
    while (await peer.next(hello)).errnum == 0:
        pass
    answer = await peer.ok("job-manager.sched-ready", {"mode": "unlimited"})
    return answer.get("state")


async def gone(world, site, peer):
    peer.close()
    other = world.second(site)
    while any(view.get("acquirer") for view in (await other.ok("resource.groups"))["groups"]):
        pass


@pytest.mark.parametrize("state", ["a text", {"version": 1, "a": [1.5, None, True]}, [], 0])
async def test_a_state_is_returned_to_the_next_scheduler_of_the_groups(world, state):
    site = await world.bare(config=GROUPS, fake="4x2")
    first, second, third = (world.second(site) for _ in range(3))
    assert await kept(first, "b", "default") is None
    assert await first.ok("job-manager.sched-save", {"state": "older"}) is None
    await first.ok("job-manager.sched-save", {"state": state})
    await gone(world, site, first)
    assert await kept(second, "default", "b") == state, "the order of groups says nothing"
    await gone(world, site, second)
    assert await kept(third, "b") is None, "other groups have other accounts"


async def test_a_state_is_there_after_a_restart_and_one_set_aside_once_more(world, monkeypatch):
    said = []
    monkeypatch.setattr(scheduling.log, "warning", lambda text, *values: said.append(text % values))
    statedir = world.directory / "state"
    for life in range(4):
        site = await world.bare(fake="4x2", statedir=statedir)
        peer = world.second(site)
        assert await kept(peer, "default") == (f"life {life - 1}" if life else None)
        await peer.ok("job-manager.sched-save", {"state": f"life {life}", "set-aside": life > 0})
        await world.stop(site)
    assert said == ["the state saved for groups default is set aside: the scheduler's log says why"] * 3
    assert rows(statedir) == {"scheduler": b'"life 3"', "scheduler-set-aside": b'"life 2"'}


def rows(statedir):
    connection = sqlite3.connect(statedir / "state.sqlite")
    found = connection.execute("SELECT kind, value FROM saved WHERE key = 'default' AND kind GLOB 'sched*'").fetchall()
    connection.close()
    return dict(found)


@pytest.mark.parametrize("value", [b"\xff\xfe{", b"", b'{"a": ', b"[" * 100_000, "text", 7])
async def test_a_value_that_is_no_json_is_the_schedulers_to_judge(world, value):
    statedir = world.directory / "state"
    site = await world.bare(fake="4x2", statedir=statedir)
    await world.stop(site)
    connection = sqlite3.connect(statedir / "state.sqlite")
    row = checksummed("saved", [("scheduler", "default", value)])
    connection.execute("INSERT INTO saved VALUES (?, ?, ?, ?)", row)
    connection.commit()
    connection.close()
    site = await world.bare(fake="4x2", statedir=statedir)
    peer = world.second(site)
    assert isinstance(await kept(peer, "default"), str | int)
    await peer.ok("job-manager.sched-save", {"state": "anew", "set-aside": True})
    await world.stop(site)
    assert rows(statedir) == {
        "scheduler": b'"anew"',
        "scheduler-set-aside": value if isinstance(value, bytes) else str(value).encode(),
    }


async def test_a_value_that_changed_on_disk_is_the_schedulers_to_judge_and_said(world):
    statedir = world.directory / "state"
    site = await world.bare(fake="4x2", statedir=statedir)
    peer = world.second(site)
    await kept(peer, "default")
    await peer.ok("job-manager.sched-save", {"state": "written"})
    await world.stop(site)
    connection = sqlite3.connect(statedir / "state.sqlite")
    connection.execute("UPDATE saved SET value = ? WHERE kind = 'scheduler'", (b'"wrItten"',))
    connection.commit()
    connection.close()
    site = await world.bare(fake="4x2", statedir=statedir)
    peer = world.second(site)
    assert await kept(peer, "default") == 'damaged: "wrItten"'
    notice = (await peer.ok("instance.info"))["state_notice"]
    assert notice == "1 row is damaged and left out: what scheduler default saved"


async def test_only_a_scheduler_may_have_something_kept_and_not_for_groups_of_another(world):
    site = await world.bare(fake="4x2")
    peer, other = world.second(site), world.second(site)
    assert (await peer.refused("job-manager.sched-save", {"state": ""}))[0] == errno.EPROTO
    await kept(peer, "default")
    site.scheduling.suspend()
    await peer.ok("job-manager.sched-save", {"state": "the last"})
    hello = other.open("job-manager.sched-hello", {})
    assert (await other.next(hello)).errnum == errno.ENODATA
    found, text = await peer.refused("job-manager.sched-save", {"state": "later still"})
    assert found == errno.EBUSY
    assert "'default'" in text


async def test_a_state_has_a_limit(world, monkeypatch):
    assert STATE_BYTES_MAX == 1 << 25
    monkeypatch.setattr(scheduling, "STATE_BYTES_MAX", 1000)
    site = await world.bare(fake="4x2")
    peer = world.second(site)
    await kept(peer, "default")
    await peer.ok("job-manager.sched-save", {"state": "x" * 998})
    found, text = await peer.refused("job-manager.sched-save", {"state": "x" * 999})
    assert found == errno.EINVAL
    assert "1001 bytes, the limit is 1000" in text


async def test_hello_has_the_jobspec_without_its_environment(world, timed):
    site = await world.bare(fake="4x2")
    first, second = world.second(site), world.second(site)
    await first.schedule("default")
    jobspec = timed("60s").to_json()
    system = {**jobspec["attributes"]["system"], "bank": "physics", "preemptible-after": 30, "environment": {"A": "b"}}
    jobid = (await second.ok("job-manager.submit", {"jobspec": {**jobspec, "attributes": {"system": system}}}))["id"]
    assert await first.grant("0", "fake0") == jobid
    await first.settle()
    await gone(world, site, first)
    await second.next(second.open("resource.acquire", {"group": "default"}))
    answer = (await second.next(second.open("job-manager.sched-hello", {}))).payload
    assert answer["id"] == jobid
    assert answer["R"]["execution"]["R_lite"] == [{"rank": "0", "children": {"core": "0"}}]
    told = answer["jobspec"]["attributes"]["system"]
    assert (told["bank"], told["preemptible-after"]) == ("physics", 30)
    assert "environment" not in told


# A module that takes the place of another finds its groups free, however late the loss of the other is known.


@pytest.mark.plain_only("replaces a method of a Roster")
async def test_a_module_is_removed_when_its_groups_are_free(world, monkeypatch):
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


# Who may serve a group: the module that was loaded for it, and nobody who is quicker.


async def test_a_client_that_is_quicker_than_the_scheduler_does_not_take_its_group(world):
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
