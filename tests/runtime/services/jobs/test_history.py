"""The history of accounts in an instance: through a reload, a clean end, `kill -9` of the scheduler and of all."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from fluxsched.runtime.scheduler_process.saving import SAVE_EVERY_S
from fluxsched.runtime.services.jobs.scheduler_states import KIND, SET_ASIDE

FAIR = ("--fake", "4x2", "--scheduler", "fair:half-life=600")
PATH = ("physics", "root")
LOOK_S = 0.1
"""How often the file is looked at for what comes within SAVE_EVERY_S; each look opens it."""


def row(statedir: Path, kind: str = KIND) -> Any:
    """What is kept on disk, decoded; None for nothing."""
    connection = sqlite3.connect(f"file:{statedir / 'state.sqlite'}?mode=ro", uri=True)
    found = connection.execute("SELECT value FROM saved WHERE kind = ? AND key = 'default'", (kind,)).fetchone()
    connection.close()
    return None if found is None else json.loads(found[0])


def kept(statedir: Path) -> dict[str, Any]:
    """The history on disk; of no accounts if there is none."""
    text = row(statedir)
    return {"saved": 0.0, "accounts": []} if text is None else json.loads(text)


def levels(statedir: Path) -> tuple[float, float]:
    """Of the account that the jobs of these tests are charged to."""
    user = os.environ.get("USER", "root")
    found = {tuple(path): (level, firm) for path, level, firm in kept(statedir)["accounts"]}
    return found.get(("physics", user)) or found.get(PATH) or (0.0, 0.0)


@pytest.fixture
def site(world, timed):
    """site(): an instance with accounts as a process; its peer, its process id and its state directory."""

    async def begin(*options: str) -> tuple[Any, int, Path]:
        statedir = world.directory / "state"
        uri, pid = await world.daemon(*FAIR, "--statedir", str(statedir), *options)
        return world.second(uri), pid, statedir

    return begin


async def submit(peer, timed, run="60s", cores=8):
    """A job of physics, on all cores unless said otherwise."""
    jobspec = timed(run, ntasks=cores).to_json()
    jobspec["attributes"]["system"]["bank"] = "physics"
    return (await peer.ok("job-manager.submit", {"jobspec": jobspec}))["id"]


async def running(peer, jobid, eventually):
    async def runs():
        jobs = (await peer.ok("job-manager.list", {}))["jobs"]
        return any(job["id"] == jobid and job["state"] == "RUN" for job in jobs)

    for _ in range(1000):
        if await runs():
            return
    raise AssertionError(f"job {jobid} does not run")


async def test_a_reload_and_a_clean_end_keep_history(site, timed, eventually):
    peer, pid, statedir = await site()
    jobid = await submit(peer, timed)
    await running(peer, jobid, eventually)
    assert row(statedir) is None
    await peer.ok("module.reload", {"name": "sched-fair"})
    saved, (level, firm) = kept(statedir)["saved"], levels(statedir)
    assert (level > 0, firm) == (True, 8.0)
    await peer.ok("module.reload", {"name": "sched-fair"})
    assert level < levels(statedir)[0], "8 cores are held on"
    await peer.ok("instance.stop")
    await eventually(lambda: not alive(pid))
    assert kept(statedir)["saved"] > saved
    before = levels(statedir)
    peer, _, _ = await site()
    last = await submit(peer, timed, "10ms", cores=1)
    assert (await peer.ok("job-manager.wait", {"id": last}))["success"] is True
    await peer.ok("module.reload", {"name": "sched-fair"})
    assert before[1] * 0.9 < levels(statedir)[1] < before[1], "it has fallen a little while the instance was down"


async def test_kill_9_of_all_loses_ten_seconds_of_history_at_most(site, timed, eventually):
    peer, pid, statedir = await site()
    jobid = await submit(peer, timed)
    await running(peer, jobid, eventually)
    async with asyncio.timeout(SAVE_EVERY_S + 10):
        while not kept(statedir)["accounts"]:
            await asyncio.sleep(LOOK_S)
    os.kill(pid, signal.SIGKILL)
    before = levels(statedir)
    assert before[1] == 8.0
    peer, _, _ = await site()
    await peer.ok("job-manager.cancel", {"id": jobid})
    assert (await peer.ok("job-manager.wait", {"id": jobid}))["success"] is False
    await submit(peer, timed, "10ms")
    await peer.ok("module.reload", {"name": "sched-fair"})
    assert 0.9 * before[0] < levels(statedir)[0]


async def test_kill_9_of_the_scheduler_never_loses_usage(site, timed, eventually):
    peer, _, statedir = await site()
    jobid = await submit(peer, timed)
    await running(peer, jobid, eventually)
    first = await module(peer)
    os.kill(first["pid"], signal.SIGKILL)
    while (await module(peer))["pid"] == first["pid"] or (await module(peer))["status"] != 1:
        pass
    await peer.ok("module.reload", {"name": "sched-fair"})
    assert levels(statedir)[1] == 8.0, "what the job holds, by its jobspec in hello"


async def test_damaged_history_is_said_and_set_aside_and_the_scheduler_serves(site, timed, eventually, world):
    peer, pid, statedir = await site()
    await peer.ok("instance.stop")
    await eventually(lambda: not alive(pid))
    connection = sqlite3.connect(statedir / "state.sqlite")
    connection.execute("INSERT OR REPLACE INTO saved VALUES (?, 'default', ?)", (KIND, b'"{\\"version\\": 7}"'))
    connection.commit()
    connection.close()
    peer, _, statedir = await site()
    await eventually(lambda: row(statedir, SET_ASIDE) == '{"version": 7}')
    jobid = await submit(peer, timed, "10ms")
    assert (await peer.ok("job-manager.wait", {"id": jobid}))["success"] is True
    assert json.loads(row(statedir))["version"] == 1


async def module(peer):
    (found,) = [one for one in (await peer.ok("module.list"))["mods"] if one["name"] == "sched-fair"]
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
