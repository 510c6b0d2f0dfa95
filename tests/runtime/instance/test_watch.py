"""Streams about jobs: whoever joins in the middle hears of each event once, from history or as news, and whoever reads
slowly ends nothing but his own patience.
"""

from __future__ import annotations

import errno
from collections import Counter

import pytest

JOBS = 150
JOINS_EVERY = 10
OUTPUT_BYTES = 3_000_000
SPEC = {
    "version": 1,
    "resources": [{"type": "slot", "count": 1, "label": "task", "with": [{"type": "core", "count": 1}]}],
    "tasks": [{"command": ["true"], "slot": "task", "count": {"per_slot": 1}}],
    "attributes": {"system": {"duration": 10, "exec": {"test": {"run_duration": "1ms"}}}},
}


async def test_history_and_news_meet_without_gap_or_overlap(world):
    site = await world.instance()
    peer = world.second(site)
    submits, streams, logs = [], [], []
    for number in range(JOBS):
        submits.append(peer.send("job-manager.submit", {"jobspec": SPEC}))
        if number % JOINS_EVERY == 0:
            streams.append(peer.open("job-manager.watch", {"history": True}))
            peer.send("instance.info")
    ids = [(await peer.next(tag)).payload["id"] for tag in submits]
    logs = [peer.open("job-manager.eventlog", {"id": jobid, "follow": True}) for jobid in ids]
    for jobid in ids:
        await peer.ok("job-manager.wait", {"id": jobid})
    await peer.settle()

    for tag in streams:
        heard = [tuple(event[:3]) for answer in peer.waiting(tag) for event in answer["events"]]
        assert [count for count in Counter(heard).values() if count > 1] == []
        for jobid in ids:
            names = [name for owner, _, name in heard if owner == jobid]
            assert names[-1:] == ["clean"], names
    for tag in logs:
        answers = peer.waiting(tag)
        names = [event["name"] for answer in answers if isinstance(answer, dict) for event in answer["events"]]
        assert names[0] == "submit"
        assert names.count("clean") == 1
        assert len(names) == len(set(names))


@pytest.mark.plain_only("replaces a method of a Router")
async def test_who_reads_output_more_slowly_than_its_job_is_forgotten_has_it_all(world, monkeypatch):
    site = await world.instance()
    site.effects.manager.jobs.inactive_kept_max = 2
    peer, slow = world.second(site), world.second(site)
    tasks = [{**SPEC["tasks"][0], "command": ["head", "-c", str(OUTPUT_BYTES), "/dev/zero"]}]
    noisy = {**SPEC, "tasks": tasks, "attributes": {"system": {"duration": 10, "cwd": "/"}}}
    with monkeypatch.context() as pager:
        pager.setattr(site.router, "unsent_bytes", lambda peer: 1)
        jobid = (await peer.ok("job-manager.submit", {"jobspec": noisy}))["id"]
        reading = slow.open("job-manager.output", {"id": jobid, "follow": True})
        await peer.ok("job-manager.wait", {"id": jobid})
        for _ in range(3):
            other = (await peer.ok("job-manager.submit", {"jobspec": SPEC}))["id"]
            await peer.ok("job-manager.wait", {"id": other})
        assert jobid not in site.effects.manager.jobs.inactive
    size = 0
    while (answer := await slow.next(reading)).errnum == 0:
        size += len(answer.payload["data"])
    assert (answer.errnum, size) == (errno.ENODATA, OUTPUT_BYTES)


async def test_the_ends_of_more_jobs_than_are_kept_are_told(world):
    site = await world.instance()
    site.effects.manager.jobs.inactive_kept_max = 5
    peer = world.second(site)
    ids = [(await peer.ok("job-manager.submit", {"jobspec": SPEC, "urgency": 0}))["id"] for _ in range(50)]
    watching = peer.open("job-manager.watch", {"names": ["clean"]})
    waits = [peer.send("job-manager.wait", {"id": jobid}) for jobid in ids]
    for jobid in ids:
        peer.send("job-manager.raise", {"id": jobid, "type": "cancel", "severity": 0})
    results = [(await peer.next(tag)).payload for tag in waits]
    assert [(one["id"], one["exception_type"]) for one in results] == [(jobid, "cancel") for jobid in ids]
    await peer.settle()
    heard = [event for answer in peer.waiting(watching) for event in answer["events"]]
    assert [(jobid, context["result"]) for jobid, _, _, context in heard] == [(jobid, "CANCELED") for jobid in ids]
