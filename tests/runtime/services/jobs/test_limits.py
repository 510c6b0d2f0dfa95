"""Limits of the services about jobs, each reached."""

from __future__ import annotations

import pytest

from fluxsched.protocol.framing import codec
from fluxsched.protocol.messages.jobs import ListRequest
from fluxsched.runtime.services.jobs import streams
from fluxsched.runtime.services.jobs.records import LIST_ENTRIES_MAX, list_query
from fluxsched.runtime.services.jobs.scheduling import ANNOTATIONS_BYTES_MAX

SPEC = {
    "version": 1,
    "resources": [{"type": "slot", "count": 1, "label": "task", "with": [{"type": "core", "count": 1}]}],
    "tasks": [{"command": ["true"], "slot": "task", "count": {"per_slot": 1}}],
    "attributes": {"system": {"duration": 10, "exec": {"test": {"run_duration": "1ms"}}}},
}


def test_one_list_answer_has_a_limit():
    for asked, given in ((5, 5), (0, LIST_ENTRIES_MAX), (LIST_ENTRIES_MAX + 1, LIST_ENTRIES_MAX)):
        assert list_query(ListRequest(max_entries=asked)).max_entries == given


async def test_a_watch_response_has_few_events(world, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(streams, "WATCH_EVENTS_MAX", 3)
    peer = world.second(await world.instance())
    jobid = (await peer.ok("job-manager.submit", {"jobspec": SPEC}))["id"]
    await peer.ok("job-manager.wait", {"id": jobid})
    tag = peer.open("job-manager.watch", {"ids": [jobid], "history": True})
    names = []
    while "clean" not in names:
        events = (await peer.next(tag)).payload["events"]
        assert 0 < len(events) <= 3
        names += [name for _, _, name, _ in events]
    assert names[0] == "submit"


async def test_only_short_annotations_are_shared(world):
    memo = (await world.instance()).scheduling.annotations
    for chars, shared in ((10, True), (ANNOTATIONS_BYTES_MAX, False)):
        data = codec.pack({"sched": {"reason_pending": "x" * chars}})
        assert (memo.read(data) is memo.read(data)) == shared
