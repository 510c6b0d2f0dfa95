"""What 0.1.0 wrote is read: its state directory, its site file, the messages of its client.

Made once with 0.1.0, in `from_0_1_0/`:

`site.toml` is its `examples/site.toml`.

`state.sql` is the state of `start --config site.toml --fake 8x16+1 --statedir D`, killed with SIGKILL; rows are text,
the boot id is zeroed. Before: `submit` of two jobs that ended (`true`, `false`), three that ran (`runs` on two nodes,
`dbg` in queue debug, `gpu` with memory), three that did not (`waits`, `held`, `depends`); `drain fake5 "disk is
failing"`, `drain fake7`, `assign fake6 reserved`, `assign --graceful 4 reserved`, `property add ssd 3-4`, `queue stop
long maintenance`, `queue disable debug training`.

`conversation.json` has the frames that its asyncio client sent to a bare instance of four targets, in hexadecimal,
and what it received, decoded.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

OLD = Path(__file__).with_name("from_0_1_0")
SITE = '[resource.groups]\nb = "fake3"\n[[resource.config]]\nhosts = "fake[0-3]"\ncores = "0-1"\n'
VARYING = ("id", "acquirer")


@pytest.fixture
async def site(world):
    """An instance on the state and with the site file of 0.1.0; its schedulers run."""
    statedir = world.directory / "state"
    statedir.mkdir(mode=0o700)
    connection = sqlite3.connect(statedir / "state.sqlite")
    connection.executescript((OLD / "state.sql").read_text())
    connection.close()
    instance = await world.instance(config=(OLD / "site.toml").read_text(), fake="8x16+1", statedir=statedir)
    peer = world.second(instance)
    for job in (await peer.ok("job-manager.list", {}))["jobs"]:
        if job["name"] not in ("waits", "held"):
            await peer.ok("job-manager.wait", {"id": job["id"]})
    await peer.settle()
    return instance


async def test_resources_are_as_they_were_left(world, site):
    peer = world.second(site)
    status = await peer.ok("resource.status")
    assert {ranks: (line["reason"], line["user"], line["timestamp"]) for ranks, line in status["drain"].items()} == {
        "5": ("disk is failing", "root", 1795337312.8302364),
        "7": ("", "root", 1795337313.4510393),
    }
    # fake4 was to move once no job held it: its job is gone
    assert status["groups"] == {"default": "3,5,7", "exclude": "0", "interactive": "1-2", "reserved": "4,6"}
    properties = status["R"]["execution"]["properties"]
    assert (properties["ssd"], properties["gpu"]) == ("3-4", "4-7")
    assert status["R"]["execution"]["shared"] == {"matlab": 5}
    views = {view["name"]: view.get("acquirer") for view in (await peer.ok("resource.groups"))["groups"]}
    assert (views["default"], views["interactive"]) == ("sched-easy", "sched-interactive")
    stream = peer.open("resource.journal")
    await peer.next(stream)  # the first has the restart of 0.1.0
    await peer.settle()
    events = [event["name"] for payload in peer.waiting(stream) for event in payload["events"]]
    assert events[:3] == ["resource-define", "online", "drain"]
    assert events.count("restart") == 1


async def test_jobs_and_queues_go_on(world, site):
    peer = world.second(site)
    listed = (await peer.ok("job-manager.list", {}))["jobs"]
    jobs = {job["name"]: job for job in listed}
    assert {name: job["state"] for name, job in jobs.items() if job["state"] != "INACTIVE"} == {
        "waits": "SCHED",
        "held": "SCHED",
    }
    assert (jobs["true"]["result"], jobs["false"]["returncode"]) == ("COMPLETED", 1)
    for name in ("runs", "dbg", "gpu"):
        assert jobs[name]["exception"]["note"].startswith("resource allocation expired"), "their time passed long ago"
        assert jobs[name]["nodelist"] == {"runs": "fake[3-4]", "dbg": "fake1", "gpu": "fake4"}[name]
    assert jobs["depends"]["exception"]["type"] == "depend"
    debug, long = [await peer.ok("job-manager.queue-status", {"name": name}) for name in ("debug", "long")]
    assert (debug["enable"], debug["enable_reason"]) == (False, "training")
    assert (long["start"], long["start_reason"]) == (False, "maintenance")
    newest = max(job["id"] for job in listed)
    jobspec = json.loads(jobspec_of(jobs["true"]["id"]))
    assert (await peer.ok("job-manager.submit", {"jobspec": jobspec}))["id"] > newest


def jobspec_of(jobid: int) -> str:
    """As 0.1.0 stored it."""
    connection = sqlite3.connect(":memory:")
    connection.executescript((OLD / "state.sql").read_text())
    found = connection.execute("SELECT jobspec FROM job_log WHERE jobid = ? AND jobspec NOT NULL", (jobid,)).fetchone()
    connection.close()
    return found[0].decode()


async def test_its_client_is_answered_as_before(world):
    """Each frame as it was sent; each response has at least what was in it, and the same value."""
    bare = await world.bare(config=SITE, fake="4x2")
    peer = world.second(bare)
    steps = json.loads((OLD / "conversation.json").read_text())
    bundled: list[Any] = []
    assert len(steps) > 30
    for step in steps:
        if "sent" in step:
            peer.socket.send_multipart([bytes.fromhex(frame) for frame in step["sent"]])
        else:
            was = step["received"]
            if was["topic"] == "job-manager.submit" and not bundled:  # it had sent a bundle, so it is sent one
                bundled = (await peer.request()).payload
            if bundled:
                _, topic, _, errnum, tag, payload = bundled.pop(0)
            else:
                errnum, payload, topic, tag, _ = await peer.next(was["tag"])
            assert (topic, tag, errnum) == (was["topic"], was["tag"], was["errnum"])
            contains(payload, was["payload"], topic)


def contains(now: object, was: object, where: str) -> None:
    """Fail unless everything that was there is there."""
    assert type(now) is type(was), where
    if isinstance(was, dict):
        for key, value in was.items():
            if key not in VARYING:
                contains(now[key], value, f"{where}.{key}")
    elif isinstance(was, list):
        assert len(now) == len(was), where
        for index, value in enumerate(was):
            contains(now[index], value, f"{where}[{index}]")
    else:
        assert now == was, where
