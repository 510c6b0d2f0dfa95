"""Jobs of one instance that run in another, both real: what users see of them, and what is passed on."""

from __future__ import annotations

import asyncio
import errno
import signal
import subprocess
import sys
from pathlib import Path

from fluxsched.core.parts import PartAsked
from fluxsched.runtime.clusters import offered

from .conftest import job

FLUXSCHED = Path(sys.executable).with_name("fluxsched")


async def events(peer, jobid):
    answer = await peer.ok("job-manager.lookup", {"id": jobid, "keys": ["eventlog"]})
    return [event["name"] for event in answer["eventlog"]]


async def output(peer, jobid):
    stream, found = peer.open("job-manager.output", {"id": jobid, "follow": True}), b""
    while (answer := await peer.next(stream)).errnum == 0:
        found += answer.payload["data"]
    return found


async def test_a_job_runs_in_the_other_instance_once_and_ends_as_it_does(pair):
    await pair.begin()
    jobid = await pair.submit(job("sh", "-c", "echo hello; exit 3"))
    assert await pair.wait(jobid) == {"id": jobid, "success": False, "status": 3 << 8, "errstr": "exit code 3"}
    (there,) = await pair.jobs(pair.far)
    assert (there["name"], there["result"], there["status"]) == ("sh", "FAILED", 3 << 8)
    assert "queue" not in there, "the queue is one of here"
    (here,) = await pair.jobs(pair.near)
    assert here["nodelist"] == "east:fake0"
    assert here["annotations"]["lease"] == {"cluster": "east", "id": there["id"], "nodelist": "fake0"}
    assert await output(pair.near, jobid) == b"hello\n"
    names = [name for name in await events(pair.near, jobid) if name in ("alloc", "start", "finish", "release")]
    assert names == ["alloc", "start", "finish", "release"]
    await pair.until(lambda: settled(pair))
    assert pair.here.store.read("SELECT * FROM lease") == []


async def command(pair, *words):
    """What `fluxsched cluster` prints."""
    program = [FLUXSCHED, "cluster", *words, "--uri", pair.here.uri]
    return await asyncio.to_thread(subprocess.check_output, program, text=True)


async def settled(pair):
    """Whether nothing is remembered of leases any more there."""
    await pair.far.settle()
    return pair.there.store.read("SELECT * FROM leased") == []


async def test_the_group_follows_the_targets_of_the_other_instance(pair, monkeypatch):
    monkeypatch.setattr(offered, "OCCUPIED_S", 0.02)
    await pair.begin()
    status = await pair.near.ok("resource.status")
    assert status["R"]["execution"]["nodelist"] == ["fake[0-1],east:fake[0-3]"]
    assert (status["groups"]["east"], status["online"]) == ("2-5", "0-5")

    async def online(text):
        await pair.until(lambda: is_online(text))

    async def is_online(text):
        return (await pair.near.ok("resource.status"))["online"] == text

    await pair.far.ok("resource.drain", {"targets": "1"})
    await online("0-2,4-5")
    await pair.far.ok("resource.undrain", {"targets": "1"})
    await online("0-5")
    await pair.far.ok("resource.assign", {"targets": "3", "group": "exclude"})
    await online("0-4")
    assert (await pair.near.ok("resource.status"))["groups"]["east"] == "2-4"
    await pair.far.ok("resource.include", {"targets": "3"})
    await online("0-5")
    assert (await pair.near.ok("resource.status"))["groups"]["east"] == "2-5"
    # what jobs of others use there is not granted here
    held = (await pair.far.ok("job-manager.submit", {"jobspec": job("sleep", "60", nodes=3, exclusive=True)}))["id"]

    async def is_seen():
        return (await pair.cluster())["online"] == 1

    await pair.until(is_seen)
    await pair.submit(job("sleep", "60", nodes=1, exclusive=True))
    waiting = await pair.submit(job("true", nodes=2, exclusive=True))
    await pair.running(pair.far, 2)
    assert (await pair.near.ok("job-manager.why", {"id": waiting}))["state"] == "SCHED"
    await pair.far.ok("job-manager.cancel", {"id": held})
    assert (await pair.wait(waiting))["success"]


async def test_an_elastic_job_of_parts_has_there_what_was_granted_here(pair):
    await pair.begin()
    before = await pair.submit(job("sleep", "60", nodes=1, exclusive=True))
    await pair.running(pair.far)
    asked = [PartAsked("lead", 1, ["sleep", "60"]), PartAsked("work", "1-8", ["sleep", "60"])]
    jobid = await pair.submit(job(parts=asked, elastic=True))
    await pair.running(pair.far, 2)
    await pair.near.ok("job-manager.cancel", {"id": before})
    await pair.wait(before)
    await pair.near.settle()
    (there,) = await pair.running(pair.far)
    here = await pair.info(jobid)
    assert (here["nnodes"], there["nnodes"]) == (3, 3)


async def test_signals_limits_and_refusals_are_passed_on(pair):
    await pair.begin()
    script = "trap 'echo got it; exit 0' USR1; echo ready; while :; do sleep 0.01; done"
    jobid = await pair.submit(job("sh", "-c", script, duration_s=100.0), urgency=20)
    (there,) = await pair.running(pair.far)
    assert (there["urgency"], there["duration"]) == (20, 100.0)
    stream = pair.near.open("job-manager.output", {"id": jobid, "follow": True})
    assert (await pair.near.next(stream)).payload["data"] == b"ready\n"  # while it runs
    await pair.near.ok("job-manager.update", {"id": jobid, "updates": {"attributes.system.duration": 200.0}})

    async def has_the_limit():
        (there,) = await pair.jobs(pair.far)
        return abs(there["duration"] - 200.0) < 1.0

    await pair.until(has_the_limit)
    errnum, text = await pair.near.refused("job-manager.input", {"id": jobid, "data": b"x"})
    assert "runs in cluster east" in text, errnum
    await pair.near.ok("job-manager.kill", {"id": jobid, "signum": int(signal.SIGUSR1)})
    assert (await pair.wait(jobid))["success"]
    assert (await pair.near.next(stream)).payload["data"] == b"got it\n"
    cancelled = await pair.submit(job("sleep", "60"))
    await pair.running(pair.far)
    await pair.near.ok("job-manager.cancel", {"id": cancelled})
    assert (await pair.wait(cancelled))["errstr"] == "exception cancel"
    assert all(one["state"] == "INACTIVE" for one in await pair.jobs(pair.far))
    # refusals end the job with the reason
    constraint = job("true")
    constraint["attributes"]["system"]["constraints"] = {"ranks": ["2"]}
    answer = await pair.wait(await pair.submit(constraint))
    assert "the constraint names ranks" in answer["errstr"]
    named = job("true")
    named["attributes"]["system"]["constraints"] = {"hostlist": ["east:fake[2-3]"]}
    assert (await pair.wait(await pair.submit(named)))["success"]
    assert (await pair.jobs(pair.far))[0]["nodelist"] == "fake2"


async def test_a_silent_cluster_keeps_its_leases_until_it_is_forgotten(pair):
    await pair.begin(more='return-after = "50ms"')
    running = await pair.submit(job("sleep", "60"))
    await pair.begun()
    found = await pair.cluster()
    assert (found["name"], found["kind"], found["state"]) == ("east", "fluxsched", "connected")
    assert (found["targets"], found["online"]) == (4, 4)
    assert await pair.near.refused("cluster.forget", {"name": "west"}) == (
        errno.ENOENT,
        "there is no cluster 'west'; there are: east",
    )
    errnum, text = await pair.near.refused("cluster.forget", {"name": "east"})
    assert (errnum, "answers" in text) == (errno.EBUSY, True)
    await pair.far.ok("job-manager.queue-start", {"start": False, "all": True})
    waiting = await pair.submit(job("true"))

    async def is_there():
        return len(await pair.jobs(pair.far)) == 2

    await pair.until(is_there)
    await pair.fall_silent()
    await asyncio.sleep(0.1)
    states = {one["id"]: one["state"] for one in await pair.jobs(pair.near)}
    assert states[running] == "RUN"
    assert (await pair.cluster())["online"] == 0
    listed = await command(pair, "list")
    (row,) = listed.splitlines()[1:]
    assert row.split()[:8] == ["east", "fluxsched", "silent", "4", "0", "0", "1", "1"]
    assert "nothing listens at" in listed or "connection closed" in listed
    assert await command(pair, "forget", "east") == "submitted again: 1 job; ended with an exception: 1 job\n"
    assert "how it ended is unknown" in (await pair.wait(running))["errstr"]
    first = await pair.info(waiting)
    answer = await pair.near.ok("job-manager.why", {"id": first["requeued_as"]})
    assert "exception return: not begun in cluster east, which was forgotten" in answer["attempt"]
