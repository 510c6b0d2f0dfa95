"""The conversation with Flux as lines of JSON: for a look at what was said, and to be played again without Flux.

Law: what is written is enough to run the same bridge again to the same words: every input, every answer of a clock or a
debug bit that it asked for, every output, in order. A line is an array that begins with its kind.

    ["rpc", 1, "resource.acquire", null, true]      we ask, as call 1        ["reply", 1, {...}, 0, ""]    its answer
    ["request", 3, "sched.alloc", {...}]            Flux asks, as request 3  ["respond", 3, {...}]         our answer
    ["commit", 4, {"job....R": {...}}]  ["lookup", 5, KEY]  ["fail", 3, ERRNUM, TEXT]  ["after"]  ["turn"]
    ["wall", SECONDS]  ["debug", BIT, BOOLEAN]  ["log", LEVEL, TEXT]  ["stop"]  ["leave"]
    ["config", {...}]                               what Flux's configuration says, first, where accounts are kept
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

import msgspec

from fluxsched.flux.handle import BrokerHandle, BrokerReply, BrokerRequest, OnReply
from fluxsched.system.clock import Clock


class Listener(Protocol):
    """Listener to a handle: the bridge, or a recorder before it."""

    def start(self) -> None:
        """Begin the conversation with Flux."""
        ...

    def receive(self, request: BrokerRequest) -> None:
        """Take one request of Flux."""
        ...

    def turn(self) -> None:
        """The time asked for with `after` has come."""
        ...

    def leave(self) -> None:
        """End the conversation: the module is unloaded."""
        ...


@dataclass
class Recorder:
    """Stands between a handle and the bridge, as the handle of the one and the listener of the other."""

    handle: BrokerHandle
    clock: Clock
    stream: TextIO
    bridge: Listener | None = None
    _last: int = 0

    @property
    def name(self) -> str:
        """Return the name of the module."""
        return self.handle.name

    @property
    def ascii(self) -> bool:
        """The handle's; only words for people have it, so it leaves no line."""
        return self.handle.ascii

    def _write(self, *line: object) -> None:
        self.stream.write(msgspec.json.encode(line).decode() + "\n")

    def _number(self) -> int:
        self._last += 1
        return self._last

    # ---- inputs

    def start(self) -> None:
        """Begin; what went before left no line."""
        assert self.bridge is not None
        self.bridge.start()

    def receive(self, request: BrokerRequest) -> None:
        """Record a request of Flux, and pass it on."""
        assert self.bridge is not None
        number = self._number()
        self._write("request", number, request.topic, plain(request.payload))
        self.bridge.receive(request._replace(token=(number, request)))

    def turn(self) -> None:
        """Record a turn, and pass it on."""
        assert self.bridge is not None
        self._write("turn")
        self.bridge.turn()
        self.stream.flush()

    def leave(self) -> None:
        """The module is unloaded; this ends the recording."""
        assert self.bridge is not None
        self._write("leave")
        self.bridge.leave()
        self.stream.flush()

    def wall_s(self) -> float:
        """The wall time that the bridge asked for."""
        now_s = self.clock.wall_s()
        self._write("wall", now_s)
        return now_s

    def monotonic_s(self) -> float:
        """Decides only when the next turn is, so it leaves no line."""
        return self.clock.monotonic_s()

    def debug(self, bit: int) -> bool:
        """A debug bit that the bridge asked for."""
        value = self.handle.debug(bit)
        self._write("debug", bit, value)
        return value

    # ---- outputs

    def _answered(self, number: int, done: OnReply) -> OnReply:
        def answered(reply: BrokerReply) -> None:
            self._write("reply", number, plain(reply.payload), reply.errnum, reply.text)
            done(reply)

        return answered

    def rpc(self, topic: str, payload: bytes | None, done: OnReply, *, streaming: bool = False) -> None:
        """Record an RPC of ours, and send it."""
        number = self._number()
        self._write("rpc", number, topic, plain(payload), streaming)
        self.handle.rpc(topic, payload, self._answered(number, done), streaming=streaming)

    def commit(self, values: Mapping[str, bytes], done: OnReply) -> None:
        """Record a commit of ours, and make it."""
        number = self._number()
        self._write("commit", number, {key: plain(value) for key, value in values.items()})
        self.handle.commit(values, self._answered(number, done))

    def lookup(self, key: str, done: OnReply) -> None:
        """We read what was stored."""
        number = self._number()
        self._write("lookup", number, key)
        self.handle.lookup(key, self._answered(number, done))

    def respond(self, request: BrokerRequest, payload: bytes | None) -> None:
        """Record a response of ours, and send it."""
        number, original = _token(request)
        self._write("respond", number, plain(payload))
        self.handle.respond(original, payload)

    def fail(self, request: BrokerRequest, errnum: int, text: str) -> None:
        """We answer with an error."""
        number, original = _token(request)
        self._write("fail", number, errnum, text)
        self.handle.fail(original, errnum, text)

    def after(self, delay_s: float) -> None:
        """A turn is asked for."""
        self._write("after")
        self.handle.after(delay_s)

    def log(self, level: int, text: str) -> None:
        """Record a line of the log, and write it."""
        self._write("log", level, text)
        self.handle.log(level, text)

    def stop(self) -> None:
        """Record that we stop, and stop the handle."""
        self._write("stop")
        self.stream.flush()
        self.handle.stop()


def plain(payload: bytes | None) -> Any:
    """A payload as the JSON value that it is, or as text (an eventlog is none, but one a line); None for none."""
    try:
        return None if payload is None else msgspec.json.decode(payload)
    except msgspec.DecodeError:
        return (payload or b"").decode(errors="replace")


def _token(request: BrokerRequest) -> tuple[int, BrokerRequest]:
    assert isinstance(request.token, tuple)
    number, original = request.token
    return number, original
