"""Leases: the table of states, the jobspec that is sent, and a cluster that loses what it can lose."""

from __future__ import annotations

import errno
import random
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.clusters import clusters as offers
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue
from fluxsched.leases import STEPS, LeaseAction, LeaseEvent, LeaseState, Wish, jobspec_for
from fluxsched.protocol.messages.jobs import LEASE_NAME_CHARS_MAX, LEASE_NAMES_MAX
from fluxsched.store.store import ThreadedWriter
from tests.clusters.unreliable import RETURN_AFTER_S, Site

# The table of leases: every event in every state, and what must never follow.


CERTAIN = {LeaseEvent.ABSENT, LeaseEvent.CLOSED, LeaseEvent.REFUSED, LeaseEvent.FORGOTTEN}
"""Who learns one of these knows that nothing runs there, and nothing will."""
GIVEN_UP = {LeaseAction.RETURN, LeaseAction.DROP}


def reachable():
    """Pairs of state and wish that a lease can come to, from the first."""
    found = set()
    open_ends = [(state, Wish.RUN) for state in (LeaseState.WANTED, LeaseState.SENT, LeaseState.RUNNING)]
    while open_ends:
        pair = open_ends.pop()
        if pair not in found:
            found.add(pair)
            open_ends += [(step.state, step.wish) for step in STEPS[pair].values()]
    return found


def test_the_table_has_a_row_for_each_pair_that_can_occur_and_no_others():
    assert reachable() == STEPS.keys()


@pytest.mark.parametrize(("pair", "event"), [*product(STEPS, LeaseEvent)], ids=str)
def test_every_event_in_every_state(pair, event):
    state, _ = pair
    step = STEPS[pair][event]
    if state is LeaseState.ENDED:
        assert step == (LeaseState.ENDED, Wish.RUN, LeaseAction.NOTHING)
    if state is LeaseState.RUNNING:  # it runs once
        assert step.action not in GIVEN_UP | {LeaseAction.SUBMIT, LeaseAction.BEGIN}
    if step.action in GIVEN_UP:
        assert state is LeaseState.WANTED or event in CERTAIN
    if step.action is LeaseAction.SUBMIT:
        assert event is LeaseEvent.ABSENT
        assert step.state is LeaseState.SENT
    ends = {LeaseAction.FINISH, LeaseAction.FAIL, LeaseAction.LOSE} | GIVEN_UP
    if state is not LeaseState.ENDED:
        assert (step.state is LeaseState.ENDED) == (step.action in ends), "a lease ends with a word to its job"
    if event is LeaseEvent.FINISHED and state is not LeaseState.ENDED:
        assert step.action is LeaseAction.FINISH


# The jobspec that goes to another instance asks for what was granted here.


def part(label, count, constraints=None):
    slot = {"type": "slot", "count": 1, "label": label, "with": [{"type": "core", "count": 2}]}
    node = {"type": "node", "count": count, "exclusive": True, "with": [slot]}
    return node | ({} if constraints is None else {"constraints": constraints})


def sent(*nodes, parts=None):
    """What is sent of an elastic job that was granted ranks 2-6."""
    tasks = [{"command": ["true"], "slot": node["with"][0]["label"], "count": {"per_slot": 1}} for node in nodes]
    system = {"duration": 60.0, "queue": "far", "fluxsched": {"elastic": True, "requeue": 2, "max-hops": 4}}
    spec = {"version": 999 if parts else 1, "resources": list(nodes), "tasks": tasks}
    jobspec = Jobspec.parse(spec | {"attributes": {"system": system}})
    hosts = [f"east:n{rank}" for rank in range(2, 7)]
    execution = {"R_lite": [{"rank": "2-6", "children": {"core": "0-1"}}], "starttime": 0, "expiration": 0}
    granted = {"version": 1, "execution": execution | {"nodelist": hosts}}
    if parts:
        granted["scheduling"] = {"writer": "fluxsched", "parts": parts}
    return Jobspec.parse(jobspec_for(jobspec, 7, "east", None, 60.0, ResourceSet.parse(granted)))


def test_a_range_is_settled():
    found = sent(part("task", "1-8"))
    assert str(found.request.nodes) == "5"
    assert (found.request.elastic, found.request.max_hops, found.queue) == (False, 4, None)


def test_each_part_has_its_own_count_and_hosts_as_they_are_called_there():
    on_hosts = {"hostlist": ["east:n[2-3]"]}
    found = sent(part("lead", 1), part("work", "1-10", on_hosts), parts={"lead": "4", "work": "2-3,5-6"})
    assert [str(each.nodes) for each in found.request.parts] == ["1", "4"]
    assert found.raw["resources"][1]["constraints"] == {"hostlist": ["n[2-3]"]}


def test_a_part_that_names_ranks_is_refused():
    with pytest.raises(InvalidValue, match="the constraint names ranks, which differ in cluster east"):
        sent(part("lead", 1, {"ranks": ["2"]}), part("work", "1-4"), parts={"lead": "2", "work": "3-6"})


# Leases with a cluster that loses what it can lose: each job runs once, and each comes to an end.


FAULTS = ("crash", "cut", "die", "lose state")
KINDS = ("submit", "commit", "connect", "deliver", "hear", "begin", "end", "late", "kill", *FAULTS)
WEIGHTS = (4, 8, 4, 12, 12, 4, 3, 1, 1, 1, 2, 1, 1)


def step(site, chance, *, faults):
    """Something happens."""
    weighted = zip(KINDS, WEIGHTS, strict=True)
    kinds = [(kind, weight) for kind, weight in weighted if kind not in FAULTS or kind in faults]
    (kind,) = chance.choices(*zip(*kinds, strict=True))
    alive = [job for job in site.cluster.values() if job.state != "ended"] if site.is_up else []
    match kind:
        case "submit" | "commit" | "deliver" | "hear" | "crash":
            getattr(site, kind)()
        case "connect":
            site.is_up = True
            site.connect()
        case "begin" | "end" if alive:
            getattr(site, kind)(chance.choice(alive))
        case "late":
            site.late(chance.choice((1.0, RETURN_AFTER_S)))
        case "kill" if site.jobs:
            site.kill(chance.randint(1, site.jobs))
        case "cut":
            site.disconnect()
        case "die":
            site.die()
        case "lose state":
            site.die(is_state_lost=True)


def calm(site):
    """No more faults, and time enough."""
    site.is_up = True
    for _ in range(50 + 20 * site.jobs):
        site.commit()
        site.connect()
        site.deliver()
        site.hear()
        for job in list(site.cluster.values()):
            site.begin(job)
            site.end(job)


def run(seed, faults, *, once=True):
    """A site that has had a bad time, and then a good one."""
    site, chance = Site(once=once), random.Random(seed)
    for _ in range(150):
        step(site, chance, faults=faults)
        running = [job.name for job in site.cluster.values() if job.state == "running"]
        assert len(running) == len(set(running)) or not once, "two copies run"
    calm(site)
    return site


def judge(site):
    """What holds whatever happened: by what the outside saw."""
    assert not site.disk, "every job comes to an end"
    assert not site.cluster, "the cluster need not remember any name"
    for jobid, how in site.ended.items():
        name = f"here/{jobid}"
        if how in ("returned", "dropped") and name not in site.lost:
            assert not site.begun[name], f"{name} was {how}, and has run"


@settings(max_examples=30)
@given(st.integers(0, 1 << 32))
def test_each_lease_runs_once_through_crashes_of_both_sides(seed):
    site = run(seed, ("crash", "cut", "die"))
    judge(site)
    assert all(count == 1 for count in site.begun.values()), "a program began twice"


@settings(max_examples=30)
@given(st.integers(0, 1 << 32))
def test_a_cluster_that_loses_its_state_has_no_two_copies_at_a_time(seed):
    site = run(seed, FAULTS)
    judge(site)
    for name, count in site.begun.items():
        assert count == 1 or name in site.lost, f"{name} began {count} times"


@settings(max_examples=30)
@given(st.integers(0, 1 << 32))
def test_a_cluster_that_knows_no_names_ends_with_one_copy(seed):
    """A real Flux: a submit whose answer was lost may have been taken, which is seen by its name."""
    site = run(seed, ("crash", "cut", "die"), once=False)
    assert not site.disk
    assert not site.cluster


# `lease.*`: what an instance promises to others whose jobs it runs.


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
    monkeypatch.setattr(offers, "GIVEN_MAX", 1)
    await peer.ok("lease.submit", submitted("me/1"))
    errnum, text = await peer.refused("lease.submit", submitted("me/2"))
    assert (errnum, "1 leases are kept" in text) == (errno.EAGAIN, True)
    await peer.ok("lease.submit", submitted("me/1"))
