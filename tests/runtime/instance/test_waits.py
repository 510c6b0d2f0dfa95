"""Many jobs in one request: `job-manager.select` and `job-manager.wait-all`."""

from __future__ import annotations

import errno

from fluxsched.runtime.services.jobs.waits import NAMED_MAX

SPEC = {
    "version": 1,
    "resources": [{"type": "slot", "count": 1, "label": "task", "with": [{"type": "core", "count": 1}]}],
    "tasks": [{"command": ["true"], "slot": "task", "count": {"per_slot": 1}}],
    "attributes": {"system": {"duration": 10, "exec": {"test": {"run_duration": "1ms"}}}},
}


async def held(peer, count: int) -> list[int]:
    return [(await peer.ok("job-manager.submit", {"jobspec": SPEC, "urgency": 0}))["id"] for _ in range(count)]


async def ends(peer, tag: int) -> list[tuple[int, str | None]]:
    found = []
    while (answer := await peer.next(tag)).errnum == 0:
        found.append((answer.payload["id"], answer.payload["exception_type"]))
    assert answer.errnum == errno.ENODATA
    return found


async def test_one_stream_tells_of_the_end_of_each_job_once_and_ends_with_the_last(world):
    site = await world.instance()
    peer = world.second(site)
    first, *others = ids = await held(peer, 100)
    await peer.ok("job-manager.cancel", {"id": first})
    waiting = peer.open("job-manager.wait-all", {"ids": [*ids, *ids]})
    early = peer.open("job-manager.wait-all", {"ids": [first]})
    assert await ends(peer, early) == [(first, "cancel")]
    for jobid in others:
        peer.send("job-manager.cancel", {"id": jobid})
    assert sorted(await ends(peer, waiting)) == [(jobid, "cancel") for jobid in ids]
    assert await ends(peer, peer.open("job-manager.wait-all", {"ids": []})) == []
    assert site.waits._left == {}


async def test_unknown_jobs_are_all_named_and_nothing_is_waited_for(world):
    site = await world.instance()
    peer = world.second(site)
    [known] = await held(peer, 1)
    tag = peer.open("job-manager.wait-all", {"ids": [known, 1, 2]})
    answer = await peer.next(tag)
    assert (answer.errnum, answer.payload) == (errno.ENOENT, "no such job: ƒ2, ƒ3")
    answer = await peer.next(peer.open("job-manager.wait-all", {"ids": list(range(1, NAMED_MAX + 6))}))
    assert answer.payload.endswith(" and 5 more")
    assert site.waits._left == {}


async def test_who_cancels_a_wait_or_leaves_is_forgotten(world, eventually):
    site = await world.instance()
    peer, gone = world.second(site), world.second(site)
    ids = await held(peer, 3)
    tag = peer.open("job-manager.wait-all", {"ids": ids})
    gone.open("job-manager.wait-all", {"ids": ids})
    await eventually(lambda: len(site.waits._left) == 2)
    peer.cancel("job-manager.wait-all", tag)
    await peer.ok("instance.info")
    gone.send("instance.goodbye", flags=0x04)
    await eventually(lambda: site.waits._left == {})


async def test_a_selection_is_streamed_and_lists_are_narrowed_by_it(world):
    site = await world.instance()
    peer = world.second(site)
    ids = await held(peer, 5)
    await peer.ok("job-manager.cancel", {"id": ids[1]})
    constraint = {"and": [{"id": [f"{ids[1]}..{ids[3]}"]}, {"states": ["active"]}]}
    tag = peer.open("job-manager.select", {"constraint": constraint})
    assert (await peer.next(tag)).payload == {"ids": [ids[3], ids[2]]}
    assert (await peer.next(tag)).errnum == errno.ENODATA
    found = await peer.ok("job-manager.list", {"constraint": constraint, "max_entries": 1})
    assert [job["id"] for job in found["jobs"]] == [ids[3]]
    wrong = await peer.next(peer.open("job-manager.select", {"constraint": {"nope": []}}))
    assert (wrong.errnum, "'nope' is unknown" in wrong.payload) == (errno.EINVAL, True)
