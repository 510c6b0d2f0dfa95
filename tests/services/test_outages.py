"""Planned outages in real instances: what jobs do beside them, drains by the clock, restarts."""

from __future__ import annotations

import asyncio
import errno
import time
from contextlib import suppress

import pytest

from fluxsched.core.jobspec import Jobspec
from fluxsched.core.outages import USERS_MAX
from fluxsched.core.text import with_path
from fluxsched.errors import RPCError


def job(duration_s: float, nodes: int = 2) -> Jobspec:
    return Jobspec.from_command(["true"], nodes=nodes, exclusive=True, duration_s=duration_s)


async def drains(client):
    return {key: line["reason"] for key, line in (await client.rpc("resource.status"))["drain"].items()}


async def told(client, jobid, words):
    """The reason of a waiting job, once it has these words: a pass of its scheduler may have to come first."""
    async with asyncio.timeout(60):
        while words not in (reason := (await client.rpc("job-manager.why", {"id": jobid}))["reason"]):
            await asyncio.sleep(0.01)
    return reason


async def end_soon(client, name):
    """Have an outage end in a moment; one that is over when it arrives is refused, then a later end is tried."""
    for doublings in range(8):
        with suppress(RPCError):
            return await client.rpc("resource.outage-update", {"name": name, "until": time.time() + 0.2 * 2**doublings})
    raise AssertionError(f"outage {name} cannot be changed")


async def test_a_job_that_would_cross_waits_and_is_told_so(world):
    site = await world.instance(fake="2x4", schedulers=("easy",))
    client = await world.client(site)
    now_s = time.time()
    assert await client.add_outage("0-1", now_s + 1000.0, now_s + 2000.0, name="upd", reason="kernel") == "upd"
    long, short = await client.submit(job(5000.0)), await client.submit(job(60.0))
    assert (await client.wait(short))["success"]
    why = await told(client, long, "outage upd keeps fake[0-1] from ")
    assert why.startswith("outage upd")
    assert "it fits with --time-limit 1" in why
    await client.remove_outage("upd")
    assert (await client.wait(long))["success"]
    assert await client.outages() == {"outages": []}


async def test_it_drains_and_undrains_by_the_clock(world):
    site = await world.instance(fake="2x4")
    client = await world.client(site)
    now_s = time.time()
    await client.add_outage("1", now_s, now_s + 3600.0, name="upd", reason="kernel")
    assert await drains(client) == {"1": "kernel"}
    waits = await client.submit(job(1.0))
    await end_soon(client, "upd")
    assert (await client.wait(waits))["success"]  # what waits starts at its end
    assert await drains(client) == {}
    later = time.time() + 0.2
    await client.add_outage("0-1", later, later + 3600.0, name="soon")
    while not await drains(client):
        assert time.time() < later + 60.0
    assert await drains(client) == {"0-1": "outage soon"}


async def test_it_survives_a_restart(world):
    statedir = world.directory / "state"
    site = await world.bare(fake="2x4", statedir=statedir)
    peer = world.second(site)
    now_s = time.time()
    await peer.ok("resource.outage-add", {"targets": "1", "from": now_s, "for": 3600.0, "every": 86400.0})
    listed = await peer.ok("resource.outage-list")
    await world.stop(site)
    config = '[[outages]]\ntargets = "0"\nfrom = 4000000000\nfor = "2h"\nreason = "move"\n'
    peer = world.second(await world.bare(fake="2x4", statedir=statedir, config=config))
    again = await peer.ok("resource.outage-list")
    assert again["outages"][0] == listed["outages"][0]
    assert again["outages"][0]["on"]
    configured = {"name": "config1", "targets": "0", "from": 4e9, "until": 4e9 + 7200.0, "reason": "move"}
    assert again["outages"][1] == {**configured, "configured": True}
    assert list((await peer.ok("resource.status"))["drain"]) == ["1"]


async def moved(client, jobid, number):
    """The last of so many moves of a job's expiration, as its eventlog has them, once there are as many."""
    found = []
    async with asyncio.timeout(60):
        while len(found) < number:
            answers = [each async for each in client.stream("job-manager.eventlog", {"id": jobid, "follow": False})]
            events = [event for answer in answers for event in answer["events"]]
            found = [event["context"] for event in events if event["name"] == "resource-update"]
    assert len(found) == number
    return found[-1] if found else None


async def test_with_end_jobs_running_jobs_end_at_its_begin(world):
    site = await world.instance(fake="2x4")
    client = await world.client(site)
    sleeps = Jobspec.from_command(["sleep", "600"], nodes=1, exclusive=True)
    jobs = [await client.submit(sleeps), await client.submit(sleeps)]
    async with asyncio.timeout(60):
        while len(held := (await client.running())["jobs"]) < 2:
            await asyncio.sleep(0.01)
    cut, rank, *_ = held[0]
    (other,) = {*jobs} - {cut}
    begin_s = time.time() + 3000.0
    await client.add_outage(rank, begin_s, begin_s + 60.0, name="upd", end_jobs=True)
    assert await moved(client, cut, 1) == {"expiration": begin_s, "outage": "upd", "before": 0.0}
    await client.rpc("resource.outage-update", {"name": "upd", "from": begin_s + 60.0})
    assert await moved(client, cut, 2) == {"expiration": begin_s + 60.0, "outage": "upd", "before": 0.0}
    await client.rpc("resource.outage-update", {"name": "upd", "end_jobs": False})
    assert await moved(client, cut, 3) == {"expiration": 0.0}
    await client.rpc("resource.outage-update", {"name": "upd", "end_jobs": True})
    assert (await moved(client, cut, 4))["before"] == 0.0
    await client.remove_outage("upd")
    assert await moved(client, cut, 5) == {"expiration": 0.0}
    await client.add_outage(rank, time.time() + 0.5, begin_s, name="now", end_jobs=True)
    ended = await client.wait(cut)
    assert (await moved(client, cut, 6))["outage"] == "now"
    assert ended["exception_type"] == "timeout"
    assert ended["exception_note"] == "resource allocation expired: outage now begins, for which running jobs end"
    assert await moved(client, other, 0) is None
    await client.cancel(other)


async def test_with_end_jobs_running_jobs_end_while_there_is_no_scheduler(world):
    site = await world.instance(fake="1x4")
    client = await world.client(site)
    jobid = await client.submit(Jobspec.from_command(["sleep", "600"], duration_s=900.0))
    async with asyncio.timeout(60):
        while not (await client.running())["jobs"]:
            await asyncio.sleep(0.01)
    (module,) = [each["name"] for each in (await client.rpc("module.list"))["mods"] if each["name"].startswith("sched")]
    await client.rpc("module.remove", {"name": module})
    await client.add_outage("0", time.time() + 0.2, time.time() + 300.0, name="upd", end_jobs=True)
    ended = await client.wait(jobid)
    assert (await moved(client, jobid, 1))["outage"] == "upd"
    assert ended["exception_type"] == "timeout"


async def test_a_reservation_is_for_the_jobs_that_name_it(world):
    site = await world.instance(fake="3x4", schedulers=("easy",))
    client = await world.client(site)
    now_s = time.time()
    name = await client.add_outage("all", now_s + 1000.0, now_s + 2000.0, reservation=True, nodes=2, reason="talk")
    assert name == "reservation1"
    (listed,) = (await client.outages())["outages"]
    assert (listed["targets"], listed["reservation"]) == ("0-1", True)

    def inside(duration_s, name=name, nodes=1):
        options = {"nodes": nodes, "exclusive": True, "duration_s": duration_s, "reservation": name}
        return Jobspec.from_command(["true"], **options)

    for wanted, number, said in (
        (inside(1001.0), errno.EINVAL, "a limit of 1001s and would run on after reservation 'reservation1': give one"),
        (inside(0.0), errno.EINVAL, "no time limit"),
        (inside(60.0, nodes=3), errno.EINVAL, "the job needs 3 nodes, and reservation 'reservation1' has 2"),
        (inside(60.0, "course"), errno.ENOENT, "there is no reservation 'course', or it is over; there is only reserv"),
    ):
        with pytest.raises(RPCError, match=said) as refused:
            await client.submit(wanted)
        assert refused.value.errnum == number
    waits, other = await client.submit(inside(60.0, nodes=2)), await client.submit(job(5000.0))
    assert "reservation=reservation1" in await told(client, waits, "dependencies")
    await told(client, other, "reservation reservation1 keeps fake[0-1] from ")
    assert (await client.wait(await client.submit(job(60.0, nodes=1))))["success"]  # it passes the other
    await client.rpc("resource.outage-update", {"name": name, "from": time.time(), "until": now_s + 2000.0})
    assert (await client.wait(waits))["success"]
    (ran,) = (await client.rpc("job-manager.list", {"ids": [waits]}))["jobs"]
    assert ran["nodelist"] == "fake[0-1]"
    assert await drains(client) == {}
    held = await client.submit(inside(60.0), urgency=0)
    await client.remove_outage(name)
    assert (await client.wait(held))["exception_note"] == "reservation 'reservation1' is over, or was removed"
    assert (await client.wait(other))["success"]
    await client.add_outage("0", now_s, now_s + 2000.0, reservation=True, users=["12345"], name="hers")
    with pytest.raises(RPCError, match="'hers' is for other users") as refused:
        await client.submit(inside(60.0, "hers"))
    assert refused.value.errnum == errno.EPERM


async def test_commands_for_outages_and_for_reservations_leave_the_other_kind_alone(world):
    site = await world.instance(fake="2x4")
    client, peer = await world.client(site), world.second(site)
    now_s = time.time()
    await client.add_outage("0", now_s + 1000.0, now_s + 2000.0, name="upd")
    await client.add_outage("1", now_s + 1000.0, now_s + 2000.0, name="course", reservation=True)
    for topic, more in (("resource.outage-update", {"for": 60.0}), ("resource.outage-remove", {})):
        refused = await peer.refused(topic, {"name": "upd", "reservation": True, **more})
        assert refused == (errno.EINVAL, "'upd' is an outage, no reservation: use fluxsched outage")
        refused = await peer.refused(topic, {"name": "course", "reservation": False, **more})
        assert refused == (errno.EINVAL, "'course' is a reservation, no outage: use fluxsched reserve")
        refused = await peer.refused(topic, {"name": "x", "reservation": True, **more})
        assert refused == (errno.ENOENT, "there is no reservation 'x': there is only course")
    refused = await peer.refused("resource.outage-update", {"name": "upd", "users": ["0"]})
    assert refused == (errno.EINVAL, "outage 'upd' is for no users: give users to a reservation")
    many = {"name": "course", "users": [f"nobody{number}" for number in range(USERS_MAX + 1)]}
    _, said = await peer.refused("resource.outage-update", many)
    assert said == f"{USERS_MAX + 1} users of a reservation are above the limit of {USERS_MAX}: name fewer"
    await peer.ok("resource.outage-update", {"name": "course", "users": ["0"], "reservation": True})
    assert [(each["name"], each.get("users")) for each in (await client.outages())["outages"]] == [
        ("upd", None), ("course", (0,))
    ]  # fmt: skip


SITE = """
[resource.groups]
lab = "1"
[queues.batch]
[queues.debug]
group = "lab"
[policy]
jobspec.defaults.system.queue = "batch"
[[scheduler]]
policy = "fifo"
groups = ["default"]
[[scheduler]]
policy = "fifo"
name = "sched-lab"
groups = ["lab"]
"""


async def test_dedicated_time_is_for_the_jobs_of_one_queue(world):
    site = await world.instance(fake="3x4", config=SITE)
    client = await world.client(site)
    unknown = {"targets": "0", "from": 1.0, "for": 4e9, "queue": "lab"}
    refused = await world.second(site).refused("resource.outage-add", unknown)
    assert refused == (errno.ENOENT, "cannot dedicate targets to queue 'lab', which does not exist: use batch, debug")
    now_s = time.time()
    await client.add_outage("0", now_s, now_s + 3600.0, name="course", queue="debug")

    async def submit(**options):
        """A job that waits while its group has too few targets."""
        jobspec = Jobspec.from_command(["true"], nodes=2, exclusive=True, **options)
        return await client.submit(with_path(jobspec.raw, "attributes.system.unsatisfiable", "wait"))

    assert (await client.wait(await submit(duration_s=60.0, queue="debug")))["success"]
    other, endless = await submit(duration_s=60.0), await submit(queue="debug")
    await told(client, endless, "outage course keeps fake0 from ")
    await client.remove_outage("course")
    assert (await client.wait(other))["success"]
    await client.cancel(endless)
