"""What a scheduler has kept: returned to the next one of its groups, across restarts, as it was. Jobspecs in hello."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from fluxsched.runtime.services.jobs import scheduler_states, scheduling
from fluxsched.runtime.services.jobs.scheduler_states import STATE_BYTES_MAX

GROUPS = '[resource.groups]\nb = "fake3"\n'


async def kept(peer: Any, *groups: str) -> Any:
    """What this peer finds when it becomes the scheduler of groups."""
    for group in groups:
        await peer.next(peer.open("resource.acquire", {"group": group}))
    hello = peer.open("job-manager.sched-hello", {"partial-ok": True, "groups": list(groups)})
    while (await peer.next(hello)).errnum == 0:
        pass
    answer = await peer.ok("job-manager.sched-ready", {"mode": "unlimited"})
    return answer.get("state")


async def gone(world: Any, site: Any, peer: Any) -> None:
    peer.close()
    other = world.second(site)
    while any(view.get("acquirer") for view in (await other.ok("resource.groups"))["groups"]):
        pass


@pytest.mark.parametrize("state", ["a text", {"version": 1, "a": [1.5, None, True]}, [], 0])
async def test_a_state_is_returned_to_the_next_scheduler_of_the_groups(world: Any, state: object) -> None:
    site = await world.bare(config=GROUPS, fake="4x2")
    first, second, third = (world.second(site) for _ in range(3))
    assert await kept(first, "b", "default") is None
    assert await first.ok("job-manager.sched-save", {"state": "older"}) is None
    await first.ok("job-manager.sched-save", {"state": state})
    await gone(world, site, first)
    assert await kept(second, "default", "b") == state, "the order of groups says nothing"
    await gone(world, site, second)
    assert await kept(third, "b") is None, "other groups have other accounts"


async def test_a_state_is_there_after_a_restart_and_one_set_aside_once_more(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(scheduling.log, "warning", lambda text, *values: said.append(text % values))
    statedir = world.directory / "state"
    for life in range(4):
        site = await world.bare(fake="4x2", statedir=statedir)
        peer = world.second(site)
        assert await kept(peer, "default") == (f"life {life - 1}" if life else None)
        await peer.ok("job-manager.sched-save", {"state": f"life {life}", "set-aside": life > 0})
        await world.stop(site)
    assert said == ["what was saved for groups default is set aside: the scheduler's log says why"] * 3
    assert rows(statedir) == {"scheduler": b'"life 3"', "scheduler-set-aside": b'"life 2"'}


def rows(statedir: Path) -> dict[str, bytes]:
    connection = sqlite3.connect(statedir / "state.sqlite")
    found = connection.execute("SELECT kind, value FROM saved WHERE key = 'default' AND kind GLOB 'sched*'").fetchall()
    connection.close()
    return dict(found)


@pytest.mark.parametrize("value", [b"\xff\xfe{", b"", b'{"a": ', b"[" * 100_000, "text", 7])
async def test_a_value_that_is_damaged_on_disk_is_the_schedulers_to_judge(world: Any, value: object) -> None:
    statedir = world.directory / "state"
    site = await world.bare(fake="4x2", statedir=statedir)
    await world.stop(site)
    connection = sqlite3.connect(statedir / "state.sqlite")
    connection.execute("INSERT INTO saved VALUES ('scheduler', 'default', ?)", (value,))
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


async def test_only_a_scheduler_may_have_something_kept_and_not_for_groups_of_another(world: Any) -> None:
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


async def test_a_state_has_a_limit(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert STATE_BYTES_MAX == 1 << 25
    monkeypatch.setattr(scheduler_states, "STATE_BYTES_MAX", 1000)
    site = await world.bare(fake="4x2")
    peer = world.second(site)
    await kept(peer, "default")
    await peer.ok("job-manager.sched-save", {"state": "x" * 998})
    found, text = await peer.refused("job-manager.sched-save", {"state": "x" * 999})
    assert found == errno.EINVAL
    assert "1001 bytes, the limit is 1000" in text


async def test_hello_has_the_jobspec_without_its_environment(world: Any, timed: Any) -> None:
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
