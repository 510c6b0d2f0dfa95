"""`lease.*`: what an instance promises to others whose jobs it runs."""

from __future__ import annotations

import errno

from fluxsched.core.jobspec import Jobspec
from fluxsched.protocol.messages.clusters import LEASE_NAME_CHARS_MAX, LEASE_NAMES_MAX
from fluxsched.runtime.loop.writer import ThreadedWriter
from fluxsched.runtime.services import leases

SPEC = Jobspec.from_command(["true"], test_run_duration_s=0.001).to_json()


def submitted(name, session=1, **options):
    return {"name": name, "session": session, "jobspec": SPEC, **options}


async def watched(peer, holder="me", session=1):
    """The stream, and what there is."""
    stream, found = peer.open("lease.watch", {"holder": holder, "session": session}), []
    while not found or not found[-1].get("whole"):
        found.append((await peer.next(stream)).payload)
    return stream, [lease for answer in found for lease in answer["leases"]]


async def test_a_name_has_one_job_through_restarts_until_it_is_settled(world):
    state = world.directory / "state"
    site = await world.bare(statedir=state)
    peer = world.second(site)
    first = await peer.ok("lease.submit", submitted("me/1"))
    assert await peer.ok("lease.submit", submitted("me/1")) == first
    assert await peer.ok("lease.submit", submitted("other/1")) != first
    await world.stop(site)
    site = await world.instance(statedir=state)
    peer = world.second(site)
    stream, found = await watched(peer)
    assert [(one["name"], one["id"]) for one in found] == [("me/1", first["id"])]
    assert await peer.ok("lease.submit", submitted("me/1")) == first
    if found[0]["state"] != "ended":
        while (answer := (await peer.next(stream)).payload)["leases"][-1]["state"] != "ended":
            assert answer["leases"][0]["state"] == "running"
        ended = {"state": "ended", "began": True, "nodelist": "fake0", "status": 0}
        assert answer["leases"][-1] == {"name": "me/1", "id": first["id"], **ended}
    await peer.ok("lease.settle", {"names": ["me/1", "me/2"]})
    assert (await peer.ok("lease.submit", submitted("me/1"))) != first
    while (await peer.next(stream)).payload["leases"][-1]["id"] == first["id"]:
        pass  # the stream tells of the new one, too


async def test_what_is_not_stored_yet_is_not_listed(world, monkeypatch):
    site = await world.bare()
    peer, watcher = world.second(site), world.second(site)
    await peer.ok("lease.submit", submitted("me/1"))
    await peer.settle()
    held = []
    run = ThreadedWriter.run
    monkeypatch.setattr(ThreadedWriter, "run", lambda *transaction: held.append(transaction))
    peer.send("lease.submit", submitted("me/2"))
    await peer.settle()
    stream, _ = watcher.open("lease.watch", {"holder": "me", "session": 1}), await watcher.settle()
    run(*held.pop(0))
    while not held:  # the next one, which the list waits for
        await peer.settle()
    peer.send("lease.withdraw", {"name": "me/1", "session": 1})
    await peer.settle()
    run(*held.pop(0))
    listed = (await watcher.next(stream)).payload["leases"]
    while not held:
        await peer.settle()
    monkeypatch.undo()
    run(*held.pop(0))
    assert [one["state"] for one in listed] == ["waiting", "waiting"]
    assert (await watcher.next(stream)).payload["whole"]
    (ended,) = (await watcher.next(stream)).payload["leases"]
    assert (ended["name"], ended["state"]) == ("me/1", "ended")


async def test_what_has_its_resources_is_not_withdrawn_and_what_has_not_never_begins(world):
    site = await world.bare()
    peer, scheduler = world.second(site), world.second(site)
    await scheduler.schedule("default")
    stream, _ = await watched(peer)
    first = await peer.ok("lease.submit", submitted("me/1"))
    await scheduler.request()
    assert (await peer.refused("lease.withdraw", {"name": "me/2", "session": 1}))[0] == errno.ENOENT
    await peer.ok("lease.withdraw", {"name": "me/1", "session": 1})
    (ended,) = (await peer.next(stream)).payload["leases"]
    assert (ended["state"], ended.get("began", False), ended["exception"]) == ("ended", False, "cancel")
    await peer.ok("lease.withdraw", {"name": "me/1", "session": 1})  # again: it is as it was
    long = Jobspec.from_command(["true"], test_run_duration_s=60.0).to_json()
    second = await peer.ok("lease.submit", submitted("me/3") | {"jobspec": long})
    assert first != second
    asked = await scheduler.request()
    while asked.topic != "sched.alloc":
        asked = await scheduler.request()
    rlite = [{"rank": "0", "children": {"core": "0"}}]
    execution = {"R_lite": rlite, "nodelist": ["fake0"], "starttime": 0.0, "expiration": 0.0}
    resources = {"version": 1, "execution": execution}
    scheduler.answer("sched.alloc", {"id": second["id"], "type": 0, "R": resources})
    await scheduler.settle()
    assert (await peer.refused("lease.withdraw", {"name": "me/3", "session": 1}))[0] == errno.EBUSY


async def test_an_earlier_session_is_over_when_a_later_one_begins(world):
    site = await world.bare()
    early, late = world.second(site), world.second(site)
    stream, _ = await watched(early, session=1)
    await watched(late, session=2)
    assert (await early.next(stream)).errnum == errno.ESTALE
    assert (await early.refused("lease.submit", submitted("me/1", 1)))[0] == errno.ESTALE
    assert (await early.refused("lease.withdraw", {"name": "me/1", "session": 1}))[0] == errno.ESTALE
    assert (await early.refused("lease.watch", {"holder": "me", "session": 1}))[0] == errno.ESTALE
    await late.ok("lease.submit", submitted("me/1", 2))


async def test_limits_and_bad_names(world, monkeypatch):
    site = await world.bare()
    peer = world.second(site)
    for name in ("me", "/1", "a b/1", "x" * LEASE_NAME_CHARS_MAX + "/1"):
        assert (await peer.refused("lease.submit", submitted(name)))[0] == errno.EPROTO
    too_many = ["me/1"] * (LEASE_NAMES_MAX + 1)
    assert (await peer.refused("lease.settle", {"names": too_many}))[0] == errno.EPROTO
    monkeypatch.setattr(leases, "GIVEN_MAX", 1)
    await peer.ok("lease.submit", submitted("me/1"))
    errnum, text = await peer.refused("lease.submit", submitted("me/2"))
    assert (errnum, "1 leases are kept" in text) == (errno.EAGAIN, True)
    await peer.ok("lease.submit", submitted("me/1"))
