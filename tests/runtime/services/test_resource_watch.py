"""`resource.watch` over real sockets: whole, then exactly what is new, to every reader at its pace."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from fluxsched.core.idset import Idset
from fluxsched.runtime.services import resource_watch
from fluxsched.runtime.services.metrics import target_states

HOSTS = """
[resource]
exclude = "fake7"
[resource.groups]
lab = "fake6"
"""
SITE = {"fake": "8x4+1", "config": HOSTS}


def spec(cores: int, run: str = "100s", gpus: int = 0) -> dict[str, Any]:
    """A job of some cores of one node that lets time pass."""
    within = [{"type": "core", "count": cores}] + ([{"type": "gpu", "count": gpus}] if gpus else [])
    slot = {"type": "slot", "count": 1, "label": "task", "with": within}
    return {
        "version": 1,
        "resources": [slot],
        "tasks": [{"command": ["true"], "slot": "task", "count": {"per_slot": 1}}],
        "attributes": {"system": {"duration": 1000, "exec": {"test": {"run_duration": run}}}},
    }


class Picture:
    """What a reader knows, by what it was told."""

    def __init__(self) -> None:
        self.states: dict[int, str] = {}
        self.busy: dict[int, int] = {}
        self.gpus: dict[int, int] = {}
        self.others: dict[str, Any] = {}
        self.answers = 0

    def apply(self, answer: dict[str, Any]) -> None:
        self.answers += 1
        assert answer, "an answer that says nothing"
        for state, ranks in answer.pop("states", {}).items():
            for rank in Idset.parse(ranks):
                assert self.states.get(rank) != state, "told twice"
                self.states[rank] = state
        for key, known in (("busy", self.busy), ("busy_gpus", self.gpus)):
            for count, ranks in answer.pop(key, {}).items():
                known.update(dict.fromkeys(Idset.parse(ranks), int(count)))
        self.others |= answer


async def follow(peer, tag, picture, holds) -> None:
    while not holds(picture):
        answer = await peer.next(tag)
        assert answer.errnum == 0, answer
        picture.apply(answer.payload)


def true_states(site) -> dict[int, str]:
    found = site.resource.module.states()
    return {rank: state for state, ranks in found.items() for rank in ranks}


def true_counts(site, kind) -> dict[int, int]:
    return {rank: mask.bit_count() for rank, mask in site.effects.manager.holdings.busy(kind).items()}


async def test_the_first_answer_is_whole(world):
    site = await world.bare(**SITE)
    peer = world.second(site)
    await peer.ok("resource.drain", {"targets": "1", "reason": "<b>"})
    whole = (await peer.next(peer.open("resource.watch"))).payload
    status = await peer.ok("resource.status")
    groups = (await peer.ok("resource.groups"))["groups"]
    assert (whole["R"], whole["drains"], whole["made_up"]) == (status["R"], status["drain"], status["made_up"])
    assert whole["groups"] == groups
    assert whole["states"] == {"excluded": "7", "drained": "1", "free": "0,2-6"}
    assert (whole["busy"], whole["busy_gpus"]) == ({}, {})


async def test_every_change_is_told_and_nothing_else(world, eventually):
    site = await world.instance(**SITE)
    peer = world.second(site)
    tag, picture = peer.open("resource.watch"), Picture()
    await follow(peer, tag, picture, lambda known: known.states)
    job = (await peer.ok("job-manager.submit", {"jobspec": spec(3, gpus=1)}))["id"]
    await follow(peer, tag, picture, lambda known: 3 in known.busy.values() and "allocated" in known.states.values())
    (rank,) = true_counts(site, "core")
    assert (picture.busy, picture.gpus, picture.states[rank]) == ({rank: 3}, {rank: 1}, "allocated")
    await peer.ok("resource.drain", {"targets": str(rank), "reason": "bad"})
    await follow(peer, tag, picture, lambda known: known.states[rank] == "draining")
    assert picture.others["drains"][str(rank)]["state"] == "draining"
    await peer.ok("job-manager.cancel", {"id": job})
    await follow(peer, tag, picture, lambda known: known.states[rank] == "drained")
    assert picture.others["drains"][str(rank)]["state"] == "drained"
    assert (picture.busy, picture.gpus) == ({rank: 0}, {rank: 0})
    await peer.ok("resource.assign", {"targets": "5", "group": "lab"})
    await follow(peer, tag, picture, lambda known: known.others["groups"][2]["targets"] == "5-6")
    assert picture.states == true_states(site)
    told = picture.answers
    await peer.ok("resource.property-add", {"properties": {"big": "0-3"}})
    await follow(peer, tag, picture, lambda known: "properties" in known.others["R"]["execution"])
    assert picture.answers == told + 1
    peer.cancel("resource.watch", tag)
    assert (await peer.next(tag)).errnum == errno.ENODATA
    assert (await peer.ok("resource.stats-get"))["watch_streams"] == 0


async def test_leaving_targets_are_seen_and_count_for_metrics_as_what_they_are(world):
    site = await world.bare(**SITE)
    scheduler, peer = world.second(site), world.second(site)
    streams = await scheduler.schedule("default")
    tag, picture = peer.open("resource.watch"), Picture()
    await follow(peer, tag, picture, lambda known: known.states)
    await peer.ok("resource.assign", {"targets": "0", "group": "lab"})
    await follow(peer, tag, picture, lambda known: known.states[0] == "leaving")
    found, usable = target_states(site.resource.module)
    assert (0 in found["free"], 0 in usable, "leaving" in found) == (True, True, False)
    await scheduler.ok("resource.release", {"group": "default", "targets": "0"})
    await follow(peer, tag, picture, lambda known: known.states[0] == "free")
    assert streams


async def test_two_readers_that_come_at_different_times_end_up_with_the_same(world):
    site = await world.instance(**SITE)
    peer, late = world.second(site), world.second(site)
    first, picture = peer.open("resource.watch"), Picture()
    jobs = [peer.send("job-manager.submit", {"jobspec": spec(1, "1ms")}) for _ in range(60)]
    ids = [(await peer.next(tag)).payload["id"] for tag in jobs[:30]]
    second, other = late.open("resource.watch"), Picture()
    ids += [(await peer.next(tag)).payload["id"] for tag in jobs[30:]]
    last = (await peer.ok("job-manager.submit", {"jobspec": spec(4)}))["id"]
    for jobid in ids:
        await peer.ok("job-manager.wait", {"id": jobid})

    def is_done(known: Picture) -> bool:
        busy = {rank: count for rank, count in known.busy.items() if count}
        return known.states == true_states(site) and busy == true_counts(site, "core") and 4 in busy.values()

    await follow(peer, first, picture, is_done)
    await follow(late, second, other, is_done)
    assert last


@pytest.mark.parametrize(("name", "value"), [("WATCH_EVERY_S", 1e6), ("SHARE", 1e-9)])
async def test_a_drain_waits_neither_as_long_as_changes_by_jobs_nor_longer(world, monkeypatch, name, value):
    monkeypatch.setattr(resource_watch, name, value)
    site = await world.instance(**SITE)
    peer = world.second(site)
    tag, picture = peer.open("resource.watch"), Picture()
    await follow(peer, tag, picture, lambda known: known.states)
    await peer.ok("job-manager.submit", {"jobspec": spec(1)})
    for rank in (3, 4):
        await peer.ok("resource.drain", {"targets": str(rank)})
        await follow(peer, tag, picture, lambda known, rank=rank: known.states[rank] == "drained")


@pytest.mark.plain_only("replaces a method of a Router")
async def test_the_changes_of_a_slow_reader_merge(world, monkeypatch):
    site = await world.bare(**SITE)
    peer, slow = world.second(site), world.second(site)
    tag, picture = slow.open("resource.watch"), Picture()
    await follow(slow, tag, picture, lambda known: known.states)
    with monkeypatch.context() as pager:
        pager.setattr(site.router, "unsent_bytes", lambda peer: 1)
        quick = peer.open("resource.watch")
        for rank in range(4):
            await peer.ok("resource.drain", {"targets": str(rank)})
        await peer.ok("resource.undrain", {"targets": "0"})
        assert (slow.waiting(tag), peer.waiting(quick)) == ([], [])
    told = picture.answers
    await follow(slow, tag, picture, lambda known: known.states == true_states(site))
    assert (picture.answers, set(picture.others["drains"])) == (told + 1, {"1", "2", "3"})
    assert (await peer.next(quick)).payload["states"]["drained"] == "1-3"


async def test_without_readers_nothing_is_gathered(world):
    site = await world.instance(**SITE)
    peer, watch = world.second(site), site._parts.watch
    tag = peer.open("resource.watch")
    await peer.next(tag)
    assert watch._last is not None
    peer.close()
    other = world.second(site)
    while len(watch):
        await other.settle()
    job = (await other.ok("job-manager.submit", {"jobspec": spec(1, "1ms")}))["id"]
    await other.ok("job-manager.wait", {"id": job})
    assert (watch._last, watch._touched, watch._counts) == (None, [], {})


async def test_an_offline_target_that_is_drained_is_drained_when_its_job_ends(world):
    """Its state stays, its line does not."""
    site = await world.instance(**SITE)
    peer = world.second(site)
    job = (await peer.ok("job-manager.submit", {"jobspec": spec(1)}))["id"]
    tag, picture = peer.open("resource.watch"), Picture()
    await follow(peer, tag, picture, lambda known: known.busy)
    ((rank, _),) = true_counts(site, "core").items()
    await peer.ok("resource.drain", {"targets": str(rank)})
    site.resource.perform(site.resource.module.set_offline(Idset.of([rank]), site.turns.wall_s))
    await follow(peer, tag, picture, lambda known: known.states[rank] == "offline")
    assert picture.others["drains"][str(rank)]["state"] == "draining"
    await peer.ok("job-manager.cancel", {"id": job})
    await follow(peer, tag, picture, lambda known: known.others["drains"][str(rank)]["state"] == "drained")
    assert picture.states[rank] == "offline"


async def test_a_reload_tells_of_the_new_targets(world):
    site = await world.bare(**SITE)
    peer = world.second(site)
    tag, picture = peer.open("resource.watch"), Picture()
    await follow(peer, tag, picture, lambda known: known.states)
    resources = (await peer.ok("resource.status"))["R"]
    resources["execution"] |= {"R_lite": [{"rank": "0-9", "children": {"core": "0-3"}}], "nodelist": ["fake[0-9]"]}
    await peer.ok("resource.reload", {"R": resources})
    await follow(peer, tag, picture, lambda known: known.states.keys() == set(range(10)))
    assert picture.states == true_states(site)
    assert picture.others["R"]["execution"]["nodelist"] == ["fake[0-9]"]


async def test_the_request_needs_the_streaming_flag(world):
    site = await world.bare(**SITE)
    peer = world.second(site)
    assert (await peer.refused("resource.watch"))[0] == errno.EPROTO
