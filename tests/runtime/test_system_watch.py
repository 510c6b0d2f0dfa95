"""Streams of job events: whoever joins in the middle hears of each event once, from history or as news."""

from __future__ import annotations

from collections import Counter

JOBS = 150
JOINS_EVERY = 10
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
