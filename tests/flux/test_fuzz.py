"""Every topic survives payloads that chance made."""

from __future__ import annotations

import base64
import json
import os
import random
import socket
import struct
from typing import get_args

import msgspec
import pytest

from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import wrap
from fluxsched.protocol.topics import LOCAL_TOPICS, TOPICS

CALLS = int(os.environ.get("FUZZ_CALLS", "1500"))
SEED = int(os.environ.get("FUZZ_SEED", "8"))
LIFE, BATCH = 2_500, 50
"""Calls that one instance hears, and that one peer makes."""
ENDS_IT = {"instance.restart", "instance.stop"}
"""Does what it says."""
SLOW = {"module.load", "module.reload"}
"""Starts a process each time: one in SLOW_EACH."""
SLOW_EACH = 20
TEXTS = (
    "", "0", "0-3", "1", "3,1", "fake[0-3]", "fake9", "all", "default", "exclude", "x\0y", "\0", "é" * 3, "\u202e",
    "a" * 300, "9" * 5000, "0-" + "9" * 30, "[", "{}", "-1", "1e999", "../..", "/dev/null", "/nonexistent", "\n",
    "sched-fifo", "fifo", "cancel", "lab", "base64", "UTF-8", "QUJD", "\u20ac\u20ac", "default-0", "none", "update",
    "true", "jobspec", "R", "eventlog", "first", "attributes.system.duration", "guest.output", "rundir", "urgency",
    "%s{}", "unlimited", "overwrite",
)  # fmt: skip
NUMBERS = (0, 0, 1, 1, 1, 2, 3, 9, 15, 16, 31, 32, 64, -1, 2**31, 2**32, 2**53, 2**63 - 1, -(2**63), 2**64 - 1)
FLOATS = (0.0, -0.0, 1.0, 1.0, 2.0, -1.0, 0.5, 1e-300, 1e18, 1e300, 2e9, 4e9)
KEYS = ("x", "", "attributes.system.duration", "attributes.system.queue", "jobspec", "version", "and", "or", "a" * 99)

TARGETS = ("0", "0-3", "1,3", "fake[0-1]", "fake2", "")
FIT = {
    "target": TARGETS, "rank": TARGETS, "properties": TARGETS, "tasks": ("0", "all"),
    "group": ("default", "lab", "exclude"), "mode": ("update", "overwrite", "force-overwrite"),
    "name": ("sched-fifo", "debug", "batch", "size"), "type": ("cancel", "x"),
    "key": ("jobspec", "R", "eventlog"), "path": ("eventlog", "guest.exec.eventlog", "guest.output", "guest.input"),
    "attrs": ("id", "all", "state", "name"), "encoding": ("base64", "UTF-8"), "host": ("fake0", "fake1"),
}  # fmt: skip
COMMON = ("ping", "stats-get", "disconnect", "-cancel")
"""Every service has these: asked rarely."""


class Maker:
    """Makes payloads: mostly of the class that a topic takes, sometimes of no class at all."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.jobids = [0, 1, 2**63 - 1]

    def payload(self, kind):
        """One for a topic whose request is `kind`."""
        draw = self.chance.random()
        if draw < 0.02:
            return None
        if draw < 0.04:
            return {self.text(): self.anything() for _ in range(3)}
        return self.of(msgspec.inspect.type_info(kind))

    def of(self, info, name=""):
        chance = self.chance
        if chance.random() < 0.02:
            return self.anything()
        if isinstance(info, msgspec.inspect.UnionType):
            return self.of(chance.choice(info.types), name)
        if isinstance(info, msgspec.inspect.StructType):
            return {
                field.encode_name: self.of(field.type, field.encode_name)
                for field in info.fields
                if field.required or chance.random() < 0.5
            }
        if isinstance(info, msgspec.inspect.ListType | msgspec.inspect.VarTupleType):
            return [self.of(info.item_type, name) for _ in range(chance.choice((0, 1, 1, 2, 5)))]
        if isinstance(info, msgspec.inspect.TupleType):
            return [self.of(one, name) for one in info.item_types]
        if isinstance(info, msgspec.inspect.DictType):
            return {chance.choice(KEYS): self.of(info.value_type, name) for _ in range(chance.choice((0, 1, 1, 2)))}
        return self.scalar(info, name)

    def scalar(self, info, name):
        chance = self.chance
        kinds = msgspec.inspect
        match info:
            case kinds.IntType():
                return chance.choice(self.jobids) if "id" in name and chance.random() < 0.8 else self.number()
            case kinds.FloatType():
                return chance.choice(FLOATS)
            case kinds.BoolType():
                return chance.random() < 0.5
            case kinds.StrType():
                return self.signed() if name == "J" else self.named(name)
            case kinds.LiteralType():
                return chance.choice(info.values)
            case kinds.EnumType():
                return chance.choice(list(info.cls)).value
            case kinds.NoneType():
                return None
            case kinds.BytesType():
                return chance.randbytes(chance.choice((0, 1, 100)))
            case _:
                return self.open(name)

    def open(self, name):
        """What a class leaves open: a jobspec or an R, nearly right, or anything."""
        if name == "jobspec":
            return self.broken(JOBSPEC)
        if name == "R":
            return self.broken(R)
        return self.anything()

    def signed(self):
        made = wrap(json.dumps(self.broken(JOBSPEC)).encode(), os.getuid())
        return made if self.chance.random() < 0.8 else self.text()

    def broken(self, tree):
        """The same, or with one part gone or replaced."""
        made = json.loads(json.dumps(tree))
        if self.chance.random() < 0.6:
            return made
        at = made
        while True:
            key = self.chance.choice(list(at) if isinstance(at, dict) else range(len(at)))
            if not isinstance(at[key], dict | list) or not at[key] or self.chance.random() < 0.15:
                break
            at = at[key]
        if self.chance.random() < 0.2:
            del at[key]
        else:
            at[key] = self.anything(2)
        return made

    def named(self, name):
        """A text that is mostly fit for a field of this name."""
        known = next((words for part, words in FIT.items() if part in name), None)
        return self.chance.choice(known) if known is not None and self.chance.random() < 0.8 else self.text()

    def anything(self, depth=0):
        draw = self.chance.randrange(8 if depth < 4 else 6)
        if draw == 6:
            return [self.anything(depth + 1) for _ in range(self.chance.randrange(4))]
        if draw == 7:
            return {self.chance.choice(KEYS): self.anything(depth + 1) for _ in range(self.chance.randrange(4))}
        makers = (lambda: None, lambda: True, self.number, lambda: self.chance.choice(FLOATS), self.text, self.text)
        return makers[draw]()

    def text(self):
        if self.chance.random() < 0.1:
            return "".join(map(chr, self.chance.choices(range(0xD7FF), k=self.chance.randrange(12))))
        if self.chance.random() < 0.1:
            return base64.b64encode(self.chance.randbytes(9)).decode()
        return self.chance.choice(TEXTS)

    def number(self):
        return self.chance.choice(NUMBERS)


JOBSPEC = {
    "version": 1,
    "resources": [{"type": "node", "count": 1, "with": [
        {"type": "slot", "label": "task", "count": 1, "with": [{"type": "core", "count": 1}]}]}],
    "tasks": [{"command": ["true"], "slot": "task", "count": {"per_slot": 1}}],
    "attributes": {"system": {
        "duration": 0.01, "cwd": "/", "environment": {"A": "b"}, "queue": "debug", "dependencies": [],
        "constraints": {"ranks": ["0-3"]}, "job": {"name": "x"}, "shell": {"options": {"output": {"stdout": {
            "type": "file", "path": "/dev/null"}}}, "input": {"stdin": {"type": "file", "path": "/dev/null"}}},
        "exec": {"test": {"run_duration": "1ms"}}}},
}  # fmt: skip
R = {
    "version": 1,
    "execution": {"R_lite": [{"rank": "0-3", "children": {"core": "0-3"}}], "nodelist": ["fake[0-3]"],
                  "starttime": 0.0, "expiration": 0.0, "properties": {"x": "0"}},
}  # fmt: skip


def unfit(value):
    """What JSON can say of it: bytes as text."""
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


class LocalEndpoint:
    """Says things at the local socket and never listens."""

    def __init__(self, instance):
        self._path = instance.local_uri.removeprefix("local://")
        self.open()

    def open(self):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(self._path)

    def send(self, kind, topic, payload, flags, tag):
        flags |= 0x01 | (0x02 if payload is not None else 0)
        header = struct.pack(">BBBBIIII", 0x8E, 1, kind, flags, 0xFFFFFFFF, 0, 0xFFFFFFFF if kind == 1 else 0, tag)
        parts = [topic.encode()]
        if payload is not None:
            parts.append(json.dumps(payload, default=unfit).encode() + b"\0")
        body = b"".join(sized(part) for part in [*parts, header])
        try:
            self.socket.sendall(struct.pack("<I", 0xFFEE0012) + struct.pack(">I", len(body)) + body)
        except OSError:  # it was cut off for what it had said
            self.close()
            self.open()

    def close(self):
        self.socket.close()


def sized(part):
    return (bytes([len(part)]) if len(part) < 255 else b"\xff" + struct.pack(">I", len(part))) + part


class ZmqEndpoint:
    """Says things at the ZeroMQ socket and never listens."""

    def __init__(self, world, instance):
        self._peer = world.second(instance)

    def send(self, kind, topic, payload, flags, tag):
        self._peer._put(kind, topic, payload, flags, 0xFFFFFFFF if kind == 1 else 0, tag)

    def close(self):
        self._peer.close()


@pytest.mark.slow
@pytest.mark.parametrize("endpoint", ["zmq", "local"])
async def test_every_topic_survives_payloads_that_chance_made(world, monkeypatch, endpoint):
    monkeypatch.chdir(world.directory)
    maker = Maker(SEED)
    config = '[queues.debug]\n[queues.batch]\n[policy.jobspec.defaults.system]\nqueue = "debug"\n'
    for _ in range(max(1, CALLS // 2 // LIFE)):
        site = await world.instance(fake="4x4", config=world.write("site.toml", config))
        friend = world.second(site)
        cat = {**JOBSPEC, "tasks": [{"command": ["cat"], "slot": "task", "count": {"per_slot": 1}}]}
        cat["attributes"] = {"system": {"duration": 0, "queue": "debug"}}
        maker.jobids = [0, 2**63 - 1, (await friend.ok("job-manager.submit", {"jobspec": cat}))["id"]]
        for _ in range(min(LIFE, CALLS // 2) // BATCH):
            if maker.chance.random() < 0.2:
                jobs = (await friend.ok("job-manager.list"))["jobs"]
                maker.jobids[3:] = [job["id"] for job in jobs][-4:]
            await say(ZmqEndpoint(world, site) if endpoint == "zmq" else LocalEndpoint(site), maker)
            await friend.settle()
            assert not site.ended.done(), site.ended.result()
            site.check()
        assert site.faults.count == 0
        friend.close()
        await world.stop(site)


async def say(endpoint, maker):
    """Some calls and answers that chance makes, from one peer."""
    chance = maker.chance
    topics = sorted((TOPICS if isinstance(endpoint, ZmqEndpoint) else {**TOPICS, **LOCAL_TOPICS}).items())
    for tag in range(BATCH):
        name, topic = chance.choice(topics)
        while (
            name in ENDS_IT
            or (name.endswith(COMMON) and chance.random() < 0.8)
            or (name in SLOW and chance.random() * SLOW_EACH > 1)
        ):
            name, topic = chance.choice(topics)
        is_answer = chance.random() < 0.03
        kind = topic.response if is_answer and topic.response is not None else topic.request
        kind = chance.choice(get_args(kind) or (kind,))
        name = name.replace("*", format_f58(chance.choice(maker.jobids), ascii=True))
        flags = 0x40 if topic.streaming or chance.random() < 0.1 else 0
        endpoint.send(2 if is_answer else 1, name, maker.payload(kind), flags, tag * chance.choice((0, 1)))
    endpoint.close()
