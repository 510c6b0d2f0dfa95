"""A stock Flux client made by hand, of struct and json alone, so that both ends of a mistake cannot agree."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import struct
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from fluxsched.core.jobspec import wrap
from tests.site import children_are_forked, eventually, timed, world

WAIT_S = 60.0
MAGIC = 0xFFEE0012
REQUEST, STREAMING = 0x0B, 0x4B
ANY = 0xFFFFFFFF
CANCEL_ALL = {"dry_run": False, "userid": os.getuid(), "states": 62, "severity": 0, "type": "cancel"}


class Flux:
    """A connection: `ask` for one answer, `open` and `next` for streams."""

    def __init__(self, instance: Any) -> None:
        self.instance = instance
        self._path = instance.local_uri.removeprefix("local://")
        self.userid, self.rolemask = os.getuid(), 5
        self._tag = 0
        self._answers: defaultdict[int, asyncio.Queue[tuple[int, Any]]] = defaultdict(asyncio.Queue)

    async def __aenter__(self) -> Flux:
        self._reader, self._writer = await asyncio.open_unix_connection(self._path)
        assert await self._reader.readexactly(1) == b"\0"
        self._task = asyncio.ensure_future(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        self._writer.close()

    async def _read(self) -> None:
        while True:
            magic, size = struct.unpack("<I", await self._reader.readexactly(4)), await self._reader.readexactly(4)
            assert magic == (MAGIC,)
            *parts, header = _parts(await self._reader.readexactly(struct.unpack(">I", size)[0]))
            _, _, kind, flags, userid, rolemask, errnum, tag = struct.unpack(">BBBBIIII", header)
            assert (kind, userid, rolemask) == (2, self.userid, self.rolemask)
            payload = parts[-1] if flags & 2 else b""
            text = payload.removesuffix(b"\0").decode()
            await self._answers[tag].put((errnum, text if errnum else json.loads(text or "null")))

    def open(self, topic: str, payload: Any = None, flags: int = STREAMING, nodeid: int = ANY) -> int:
        self._tag += 1
        flags = flags if payload is not None else flags & ~2
        asked_as = (ANY, 0) if self.rolemask == 5 else (self.userid, self.rolemask)
        header = struct.pack(">BBBBIIII", 0x8E, 1, 1, flags, *asked_as, nodeid, self._tag)
        parts = [b"", topic.encode()] if flags & 8 else [topic.encode()]
        if payload is not None:  # bytes go as they stand: to be wrong on purpose
            parts += [payload if isinstance(payload, bytes) else json.dumps(payload).encode() + b"\0"]
        body = b"".join(_sized(part) for part in [*parts, header])
        self._writer.write(struct.pack("<I", MAGIC) + struct.pack(">I", len(body)) + body)
        return self._tag

    async def next(self, tag: int) -> tuple[int, Any]:
        return await asyncio.wait_for(self._answers[tag].get(), WAIT_S)

    async def ask(self, topic: str, payload: Any = None, **options: Any) -> tuple[int, Any]:
        return await self.next(self.open(topic, payload, **{"flags": REQUEST, **options}))

    async def ok(self, topic: str, payload: Any = None) -> Any:
        errnum, answer = await self.ask(topic, payload)
        assert not errnum, (topic, errnum, answer)
        return answer

    async def all(self, topic: str, payload: Any) -> list[Any]:
        """What a stream says until it ends well."""
        return [answer async for answer in self.rest(self.open(topic, payload))]

    async def rest(self, tag: int) -> AsyncIterator[Any]:
        while (found := await self.next(tag))[0] == 0:
            yield found[1]
        assert found[0] == errno.ENODATA, found

    async def submit(self, *command: str, flags: int = 0, urgency: int = 16, **system: Any) -> int:
        jobspec = {
            "version": 1,
            "resources": [{"type": "slot", "label": "task", "count": system.pop("n", 1),
                           "with": [{"type": "core", "count": 1}]}],
            "tasks": [{"command": command, "slot": "task", "count": {"per_slot": 1}}],
            "attributes": {"system": {"duration": 0, "cwd": "/", "environment": {"SECRET": "x"}, **system}},
        }  # fmt: skip
        signed = wrap(json.dumps(jobspec).encode(), os.getuid())
        answer = await self.ok("job-ingest.submit", {"J": signed, "urgency": urgency, "flags": flags})
        return int(answer["id"])

    async def cancel_all(self) -> Any:
        """Cancel all jobs of ours; how many there were."""
        return await self.ok("job-manager.raiseall", CANCEL_ALL)

    async def events(self, jobid: int, path: str = "eventlog") -> list[Any]:
        """All events of a log, once it has ended."""
        found = await self.all("job-info.eventlog-watch", {"id": jobid, "path": path, "flags": 0})
        return [json.loads(one["event"]) for one in found]


def _sized(part: bytes) -> bytes:
    return (bytes([len(part)]) if len(part) < 255 else b"\xff" + struct.pack(">I", len(part))) + part


def _parts(body: bytes) -> list[bytes]:
    found = []
    while body:
        size, body = body[0], body[1:]
        if size == 255:
            size, body = struct.unpack(">I", body[:4])[0], body[4:]
        found.append(body[:size])
        body = body[size:]
    return found


FluxCommands = Callable[[str], Awaitable[tuple[str, dict[str, str]]]]


@pytest.fixture
def flux_commands(world: Any) -> FluxCommands:
    """flux_commands("2x2"): Flux's own command, and the environment in which it finds an instance of such targets."""

    async def start(fake: str) -> tuple[str, dict[str, str]]:
        path = shutil.which("flux")
        if path is None:
            pytest.skip("no flux on PATH: put flux-core 0.88 or later there")
        instance = await world.instance(fake=fake)
        return path, {**os.environ, "FLUX_URI": instance.local_uri, "TZ": "UTC", "LC_ALL": "C.UTF-8"}

    return start


@pytest.fixture
def connect() -> type[Flux]:
    """To connect to another instance than that of `flux` or `bare`."""
    return Flux


@pytest.fixture
async def flux(world: Any) -> AsyncIterator[Flux]:
    instance = await world.instance(fake="2x2")
    async with Flux(instance) as client:
        yield client


@pytest.fixture
async def bare(world: Any) -> AsyncIterator[Flux]:
    """The same at an instance without a scheduler, which starts in no time."""
    instance = await world.bare(fake="2x2")
    async with Flux(instance) as client:
        yield client
