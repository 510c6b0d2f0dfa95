"""Instances for tests: real ones on the loop of the test, with made-up targets and real sockets.

`world` starts instances, clients of ours, and `Second`: somebody else's client, made of pyzmq, msgpack and RFC 3's
twenty bytes alone, so that both ends of a mistake cannot agree with each other. Every test ends in a whole-state check.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import struct
import subprocess
import tempfile
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import pytest
import zmq

from fluxsched.client.aio import AsyncHandle
from fluxsched.client.blocking import Handle
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.quantities import parse_duration
from fluxsched.instance.instance import Instance
from fluxsched.instance.launch import StartOptions, settings_of
from fluxsched.system import processes
from fluxsched.transport.zeromq import ZmqServer
from tests.prepared.caller import PROGRAM, prepared, with_forked_children
from tests.waiting import POLL_S, WAIT_S, until

HEADER = struct.Struct(">BBBBIIII")
MAGIC, VERSION = 0x8E, 1
REQUEST, RESPONSE = 1, 2
TOPIC, PAYLOAD, NORESPONSE, ROUTE, STREAMING = 0x01, 0x02, 0x04, 0x08, 0x40
ANY = 0xFFFFFFFF
children_are_forked = pytest.fixture(autouse=True, scope="package")(with_forked_children)


class Answer(NamedTuple):
    """A response as it came over the wire; `payload` is decoded, of an error its text."""

    errnum: int
    payload: Any
    topic: str
    tag: int
    flags: int


class Second:
    """A client that shares no code with ours: `call` for one answer, `open` and `next` for streams."""

    def __init__(self, uri: str, *, identity: bytes | None = None, receive_hwm: int | None = None) -> None:
        self.uri = uri
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.linger = 0
        if identity is not None:
            self.socket.routing_id = identity
        if receive_hwm is not None:
            self.socket.rcvhwm = receive_hwm
        self.socket.connect(uri)
        self._tag = 0
        self._answers: defaultdict[int, deque[Answer]] = defaultdict(deque)
        self.requests: deque[Answer] = deque()
        """What the instance asks of us."""

    def send(
        self, topic: str, payload: Any = None, *, tag: int | None = None, flags: int = 0, nodeid: int = ANY
    ) -> int:
        """Send a request; its matchtag, a new one unless `tag` is given."""
        if tag is None:
            self._tag += 1
            tag = self._tag
        self._put(REQUEST, topic, payload, flags, nodeid, tag)
        return tag

    def answer(self, topic: str, payload: Any = None, *, tag: int = 0, errnum: int = 0) -> None:
        """Answer a request of the instance's (`sched.alloc` and its like)."""
        self._put(RESPONSE, topic, payload, 0, errnum, tag)

    def _put(self, kind: int, topic: str, payload: Any, flags: int, aux1: int, tag: int) -> None:
        flags |= TOPIC | ROUTE | (PAYLOAD if payload is not None else 0)
        data = payload if isinstance(payload, bytes) else msgpack.packb(payload)
        header = HEADER.pack(MAGIC, VERSION, kind, flags, ANY, 0, aux1, tag)
        self.socket.send_multipart([b"", topic.encode(), *([data] if payload is not None else []), header])

    def open(self, topic: str, payload: Any = None, **options: Any) -> int:
        """Begin a stream; its matchtag."""
        return self.send(topic, payload, flags=STREAMING, **options)

    def cancel(self, topic: str, tag: int) -> None:
        """Ask for the end of a stream."""
        self.send(f"{topic}-cancel", {"matchtag": tag}, tag=0, flags=NORESPONSE)

    def read(self) -> None:
        """Take in whatever has arrived."""
        while self.socket.poll(0):
            *_, topic, payload, header = [b"", *self.socket.recv_multipart()]
            _, _, kind, flags, _, _, errnum, tag = HEADER.unpack(header)
            if not flags & PAYLOAD:
                topic, payload = payload, b""
            text = kind == RESPONSE and errnum
            decoded = payload.decode() if text else msgpack.unpackb(payload) if payload else None
            found = Answer(errnum, decoded, topic.decode(), tag, flags)
            (self.requests if kind == REQUEST else self._answers[tag]).append(found)

    def waiting(self, tag: int) -> list[Any]:
        """Payloads that have come for `tag` and were not taken; they are taken here."""
        self.read()
        found, self._answers[tag] = self._answers[tag], deque()
        return [answer.payload for answer in found]

    async def next(self, tag: int, timeout_s: float = WAIT_S) -> Answer:
        """The next answer to `tag`."""
        async with asyncio.timeout(timeout_s):
            while not self._answers[tag]:
                self.read()
                if not self._answers[tag]:
                    await asyncio.sleep(POLL_S)
        return self._answers[tag].popleft()

    async def request(self, timeout_s: float = WAIT_S) -> Answer:
        """The next request of the instance."""
        async with asyncio.timeout(timeout_s):
            while not self.requests:
                self.read()
                await asyncio.sleep(POLL_S)
        return self.requests.popleft()

    async def call(self, topic: str, payload: Any = None, **options: Any) -> Answer:
        """One request, one answer."""
        return await self.next(self.send(topic, payload, **options))

    async def ok(self, topic: str, payload: Any = None) -> Any:
        """The payload of a success; anything else fails the test."""
        answer = await self.call(topic, payload)
        assert answer.errnum == 0, answer
        return answer.payload

    async def refused(self, topic: str, payload: Any = None, **options: Any) -> tuple[int, str]:
        """Errno and text of an error; a success fails the test."""
        answer = await self.call(topic, payload, **options)
        assert answer.errnum, answer
        return answer.errnum, answer.payload

    async def schedule(self, *groups: str) -> dict[str, int]:
        """Become the scheduler of groups: acquire them, say hello and ready; the stream of each group."""
        streams = {group: self.open("resource.acquire", {"group": group}) for group in groups}
        hello = self.open("job-manager.sched-hello", {"partial-ok": True, "groups": list(groups)})
        while (await self.next(hello)).errnum == 0:
            pass
        await self.ok("job-manager.sched-ready", {"mode": "unlimited"})
        return streams

    async def grant(self, ranks: str, hosts: str) -> int:
        """Give the next job that asks core 0 of some ranks; its id."""
        asked = await self.request()
        assert asked.topic == "sched.alloc"
        rlite = [{"rank": ranks, "children": {"core": "0"}}]
        execution = {"R_lite": rlite, "nodelist": [hosts], "starttime": 0.0, "expiration": 0.0}
        resources = {"version": 1, "execution": execution}
        self.answer("sched.alloc", {"id": asked.payload["id"], "type": 0, "R": resources})
        return int(asked.payload["id"])

    async def settle(self) -> None:
        """Until everything that was sent before has been handled and what it caused has been told."""
        for _ in range(2):
            await self.ok("instance.info")

    def close(self) -> None:
        """Leave without a word."""
        if not self.socket.closed:
            self.socket.close(0)
            self._context.term()


class World:
    """Starts instances and clients and takes them down in reverse order."""

    def __init__(self, stack: AsyncExitStack, directory: Path) -> None:
        self._stack = stack
        self.directory = directory
        self.instances: list[Instance] = []

    async def instance(self, *, unsent_limit_bytes: int | None = None, **options: Any) -> Instance:
        """An instance that is ready; options are those of StartOptions, `config` may be the text itself, and what
        else is set of `Settings`.
        """
        own = {name: options.pop(name) for name in ("cluster_pace", "peer_limits") if name in options}
        if isinstance(options.get("config"), str):
            options["config"] = self.write("site.toml", options["config"])
        if not {"fake", "config", "test_size", "r_path", "engine"} & options.keys():
            options["fake"] = "4x4"
        settings = replace(settings_of(StartOptions(**options)), **own)
        if unsent_limit_bytes is not None:
            server = ZmqServer(f"ipc://{self.directory}/s", unsent_limit_bytes=unsent_limit_bytes)
            settings = replace(settings, servers=(server,))
        instance = Instance(settings)
        self.instances.append(instance)
        self._stack.push_async_callback(self.stop, instance)
        await instance.__aenter__()
        return instance

    async def bare(self, **options: Any) -> Instance:
        """An instance without a scheduler: whoever wants its resources acquires them."""
        return await self.instance(schedulers=("none",), **options)

    async def stop(self, instance: Instance) -> None:
        """End an instance now, after a check; once it has ended this does nothing."""
        if instance in self.instances:
            self.instances.remove(instance)
            instance.check()
            await instance.close()

    async def client(self, instance: Instance) -> AsyncHandle:
        """A connected client of ours."""
        return await self._stack.enter_async_context(AsyncHandle(instance.uri))

    def second(self, where: Instance | str, **options: Any) -> Second:
        """Somebody else's client."""
        peer = Second(where if isinstance(where, str) else where.uri, **options)
        self._stack.callback(peer.close)
        return peer

    def write(self, name: str, text: str) -> Path:
        """A file for the instance to read."""
        path = self.directory / name
        path.write_text(text)
        return path

    def spawn(self, *arguments: str, is_real: bool = False) -> subprocess.Popen[str]:
        """A `fluxsched` command as a process, forked unless it `is_real`; killed at the end of the test if it runs."""
        words = [PROGRAM if is_real else f"{prepared().programs}/fluxsched", *arguments]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._stack.callback(end_process, process)
        return process

    async def daemon(self, *arguments: str) -> tuple[str, int]:
        """An instance as a process of its own: its uri and process id."""
        process = self.spawn("start", "--daemon", *arguments)
        uri, errors = await asyncio.to_thread(process.communicate, timeout=WAIT_S)
        assert process.returncode == 0, errors
        with Handle(uri.strip()) as handle:
            pid = int(handle.rpc("instance.info")["pid"])
        self._stack.callback(kill_quietly, pid)
        return uri.strip(), pid

    def check(self) -> None:
        """Law 5, on the whole state of every instance."""
        for instance in self.instances:
            instance.check()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Check all instances at each step until a condition holds, bounded."""

        def checked() -> bool:
            self.check()
            return condition()

        await until(checked)
        self.check()


def end_process(process: subprocess.Popen[str]) -> None:
    """Kill and reap a process of the test, and close its pipes."""
    process.kill()
    process.communicate()


def alive(pid: int) -> bool:
    """Whether this process exists, and no zombie."""
    found = processes.stat_of(pid)
    return found is not None and found.alive


def kill_quietly(pid: int) -> None:
    """Kill a process if it is still there."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    # not tmp_path: a socket's path holds 107 bytes
    directory = Path(tempfile.mkdtemp(prefix="fluxsched-test-"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    for name in ("FLUXSCHED_URI", "FLUX_JOB_ID", "FLUXSCHED_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    async with AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        world = World(stack, directory)
        yield world
        world.check()


@pytest.fixture
def eventually() -> Callable[..., Awaitable[Any]]:
    """Wait, bounded, until a condition holds."""
    return until


@pytest.fixture
def timed() -> Callable[..., Jobspec]:
    """Make a jobspec that only lets time pass: `timed("1ms", nnodes=2)`."""

    def make(duration: str = "1ms", **options: Any) -> Jobspec:
        return Jobspec.from_command(["true"], test_run_duration_s=parse_duration(duration), **options)

    return make
