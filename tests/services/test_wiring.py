"""Each RPC that changes what is stored: decoded, one call, stored before it is answered; an error with its number."""

from __future__ import annotations

import errno

import pytest

from fluxsched.core.jobspec import Jobspec
from fluxsched.protocol.topics import TOPICS
from fluxsched.store.store import ThreadedWriter

SPEC = Jobspec.from_command(["true"]).to_json()
R = {"version": 1, "execution": {"R_lite": [{"rank": "0-4", "children": {"core": "0-5"}}], "nodelist": ["fake[0-4]"]}}
UNKNOWN = {"targets": "9"}
NO_JOB = {"id": 1}
LONGER = {"attributes.system.duration": 9}

# What changes something, what does not, and how it is refused; JOB stands for the id of a job that waits
JOB = "the job"
ARRAY = {"jobspec": SPEC, "paths": [["tasks", 0, "command", 0]], "texts": [["a"], ["b"]]}
CHANGES = {
    "resource.drain": ({"targets": "0", "mode": "update"}, UNKNOWN, errno.EINVAL),
    "resource.undrain": ({"targets": "1"}, {"targets": "0"}, errno.EEXIST),
    "resource.assign": ({"targets": "0", "group": "b"}, {"targets": "0", "group": "no name"}, errno.EINVAL),
    "resource.include": ({"targets": "3"}, UNKNOWN, errno.EINVAL),
    "resource.outage-add": (
        {"targets": "0", "from": 4e9, "for": 60.0, "name": "b"},
        {"targets": "0", "from": 1.0, "for": 60.0},
        errno.EINVAL,
    ),
    "resource.outage-update": ({"name": "a", "for": 5.0}, {"name": "none", "for": 5.0}, errno.ENOENT),
    "resource.outage-remove": ({"name": "a"}, {"name": "none"}, errno.ENOENT),
    "resource.property-add": ({"properties": {"ssd": "0"}}, {"properties": {"a|b": "0"}}, errno.EINVAL),
    "resource.property-remove": ({"properties": {"big": "2"}}, {"properties": {"nope": "0"}}, errno.EINVAL),
    "resource.expiration-update": ({"expiration": 4e9}, {"expiration": -1.0}, errno.EPROTO),
    "resource.reload": ({"R": R}, {"path": "/nowhere/R"}, errno.ENOENT),
    "instance.notice-add": ({"text": "slow"}, {"text": ""}, errno.EINVAL),
    "instance.notice-remove": ({"ids": [1]}, {"ids": [1, 2]}, errno.ENOENT),
    "job-manager.submit": ({"jobspec": SPEC}, {"jobspec": SPEC, "urgency": 99}, errno.EINVAL),
    "job-manager.submit-array": (ARRAY, ARRAY | {"urgency": 99}, errno.EINVAL),
    "job-manager.raise": ({"id": JOB, "type": "x", "severity": 1}, NO_JOB | {"type": "x", "severity": 1}, errno.ENOENT),
    "job-manager.cancel": ({"id": JOB}, NO_JOB, errno.ENOENT),
    "job-manager.memo": ({"id": JOB, "memo": {"a": 1}}, {"id": JOB, "memo": {}}, errno.EINVAL),
    "job-manager.urgency": ({"id": JOB, "urgency": 20}, NO_JOB | {"urgency": 20}, errno.ENOENT),
    "job-manager.update": ({"id": JOB, "updates": LONGER}, NO_JOB | {"updates": LONGER}, errno.ENOENT),
    "job-manager.queue-enable": ({"enable": False, "reason": "x"}, {"name": "nope", "enable": False}, errno.ENOENT),
    "job-manager.queue-start": ({"start": False}, {"name": "nope", "start": False}, errno.ENOENT),
}  # fmt: skip


ELSEWHERE = {
    "resource.release", "job-manager.released", "job-manager.sched-save", "job-manager.sched-grow",
    "job-manager.sched-shrink", "lease.submit", "lease.withdraw", "lease.settle", "cluster.forget", "config.reload",
}  # fmt: skip
"""Topics of acquirers, schedulers, instances and configuration files, which are tested with those."""


def test_every_change_of_the_table_of_topics_is_tested():
    assert {name for name, topic in TOPICS.items() if topic.stored} == CHANGES.keys() | ELSEWHERE


@pytest.fixture
async def peer(world):
    """A client of an instance with one job that waits, 1 drained, 2 with a property, 3 excluded, and a notice."""
    peer = world.second(await world.bare(fake="5x4"))
    await peer.ok("resource.drain", {"targets": "1"})
    await peer.ok("resource.property-add", {"properties": {"big": "2"}})
    await peer.ok("resource.assign", {"targets": "3", "group": "exclude"})
    await peer.ok("resource.outage-add", {"targets": "4", "from": 4e9, "for": 60.0, "name": "a"})
    await peer.ok("instance.notice-add", {"text": "a notice"})
    peer.job = (await peer.ok("job-manager.submit", {"jobspec": SPEC, "urgency": 5}))["id"]
    return peer


def filled(peer, payload):
    return {key: peer.job if value == JOB else value for key, value in payload.items()}


@pytest.mark.parametrize("topic", CHANGES)
async def test_a_change_is_answered_once_it_is_on_disk_and_a_refusal_has_its_number(peer, topic, monkeypatch):
    changes, wrong, errnum = CHANGES[topic]
    found, text = await peer.refused(topic, filled(peer, wrong))
    assert found == errnum, text
    held, run = [], ThreadedWriter.run
    monkeypatch.setattr(ThreadedWriter, "run", lambda *transaction: held.append(transaction))
    tag = peer.send(topic, filled(peer, changes))
    await peer.settle()
    while not held:
        assert peer.waiting(tag) == []
        await peer.settle()
    assert peer.waiting(tag) == []
    monkeypatch.undo()
    run(*held.pop())
    assert (await peer.next(tag)).errnum == 0
