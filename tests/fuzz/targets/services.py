"""The services of an instance, in a simulated world: what one client sends, through router and handlers to the store.

An input is a list of messages `[topic, payload, flags, kind]`. The world is kept from one input to the next, since it
takes longer to start than to ask; after a defect, and now and then, there is a new one.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from typing import Any

import msgpack

from fluxsched.protocol.framing import (
    NODEID_ANY,
    REQUEST,
    RESPONSE,
    STREAMING,
    TOPIC_BYTES_MAX,
    Message,
    decode,
    encode,
    pack,
)
from fluxsched.protocol.topics import TOPICS
from tests.chaos.world.world import World
from tests.fuzz.target import Shape, Target, packed
from tests.fuzz.targets.objects import page_examples

INPUTS_EACH = 400
MESSAGES_MAX = 16
SIMULATED = ("start of job", "a posted call: OverflowError")
"""Failures of simulated tasks, which read their run time and their status out of the command, whatever it says."""
STEP_S = 0.1
"""Virtual time in which an instance answers."""
THE_JOB = 1
CONFIG = '[resource.groups]\nlab = "fake[2-3]"\n[queues.debug]\n[queues.batch]\n'
SUBMITTED = {
    "version": 1,
    "resources": [{"type": "node", "count": 1, "with": [
        {"type": "slot", "label": "task", "count": 1, "with": [{"type": "core", "count": 1}]}]}],
    "tasks": [{"command": ["task", "0.15", "0"], "slot": "task", "count": {"per_slot": 1}}],
    "attributes": {"system": {"duration": 60, "queue": "debug", "dependencies": [], "constraints": {"ranks": ["0-3"]}}},
}  # fmt: skip
ENDS_IT = {"instance.restart", "instance.stop", "module.load", "module.reload", "module.remove"}
"""Ends the instance, or starts programs."""


class Kept:
    """The world that the next input meets."""

    def __init__(self) -> None:
        self._world: World | None = None
        self._inputs = 0
        atexit.register(self.drop)

    def world(self) -> World:
        """One that is well."""
        self._inputs += 1
        if self._world is None or self._inputs % INPUTS_EACH == 0:
            self.drop()
            self._world = World(1, CONFIG, "4x4")
            network = self._world.network
            network.sent = network.received = lambda link, frames: None  # observers expect well-formed messages
            self._world.__enter__()
            self._world.run_until(5.0)
        return self._world

    def drop(self) -> None:
        """Have the next input meet a new one."""
        world, self._world = self._world, None
        if world is not None:
            world.__exit__(None, None, None)


KEPT = Kept()


def _messages(data: bytes) -> Iterator[tuple[str, bytes, int, int]]:
    try:
        asked = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException):
        return
    for each in asked[:MESSAGES_MAX] if isinstance(asked, list) else ():
        if isinstance(each, list) and len(each) == 4:
            topic, payload, flags, kind = each
            if (
                isinstance(topic, str)
                and isinstance(payload, bytes)
                and isinstance(flags, int)
                and topic not in ENDS_IT
            ):
                name = topic.encode("utf-8", "replace")[:TOPIC_BYTES_MAX].decode("utf-8", "replace")
                yield name, payload, flags, kind


def _frames(name: str, payload: bytes, flags: int, kind: int, jobid: int) -> list[bytes]:
    """The parts of a message; an id of THE_JOB becomes that of the job that was submitted last."""
    try:
        value = msgpack.unpackb(payload, strict_map_key=False)
        if isinstance(value, dict) and value.get("id") == THE_JOB:
            payload = msgpack.packb({**value, "id": jobid}, unicode_errors="surrogatepass")
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.exceptions.UnpackException):
        pass  # it is sent as it is
    type_, aux1 = (RESPONSE, 0) if kind == RESPONSE else (REQUEST, NODEID_ANY)
    return encode(Message(type_, name, payload, flags & 0x44, aux1=aux1, matchtag=flags >> 8 & 0xFFFF))


def _services(data: bytes) -> None:
    world, jobid = KEPT.world(), THE_JOB
    try:
        client = world.connect("ann")
        for message in _messages(data):
            client.send(_frames(*message, jobid))
            world.run_until(world.now_s + STEP_S)
            for answer in map(decode, client.receive(1000)):
                if answer.topic == "job-manager.submit" and not answer.errnum:
                    jobid = msgpack.unpackb(answer.payload)["id"]
        world.run_until(world.now_s + STEP_S)
        client.close()
        world.run_until(world.now_s + STEP_S)
        world.failures[:] = [failure for failure in world.failures if not failure.startswith(SIMULATED)]
        world.check()
    except BaseException:
        KEPT.drop()
        raise


def _seeds() -> Iterator[bytes]:
    examples: dict[str, Any] = {}
    for topics, value in page_examples():
        for topic in topics:
            examples.setdefault(topic, value)
    for value in examples.values():
        if isinstance(value, dict) and isinstance(value.get("id"), int):
            value["id"] = THE_JOB
    submit = ["job-manager.submit", pack({"jobspec": SUBMITTED, "urgency": 16}), 0x100, REQUEST]
    for name, found in TOPICS.items():
        flags = 0x200 | (STREAMING if found.streaming else 0)
        yield packed([submit, [name, pack(examples.get(name, {})), flags, REQUEST]])
    names = (
        "resource.drain",
        "resource.assign",
        "resource.acquire",
        "job-manager.sched-hello",
        "job-manager.sched-ready",
    )
    yield packed([[name, pack(examples.get(name, {})), 0x300 | STREAMING, REQUEST] for name in names])
    yield packed([["sched.alloc", pack(examples.get("sched.alloc", {})), 0, RESPONSE], submit])


TARGETS = (
    Target(
        "services",
        _services,
        _seeds,
        Shape.MSGPACK,
        words=(*TOPICS, "fake[0-1]", "0-3", "lab", "default", "debug", "sched-fifo", "attributes.system.duration"),
    ),
)
