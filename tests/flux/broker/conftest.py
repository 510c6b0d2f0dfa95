"""Flux without Flux: a recording that is played again, and a hand-held handle for what no recording has."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fluxsched.flux.bridge import NO_CONFIG, Bridge
from fluxsched.flux.handle import BrokerReply, BrokerRequest, parse_options

from .recording import plain

INPUTS = ("request", "reply", "turn", "leave")


def _loose(value: Any) -> Any:
    """Without text for people, which may improve without a new recording, and without how we were built."""
    if isinstance(value, dict):
        kept = {key: part for key, part in value.items() if key != "build"}
        return {key: "..." if key in ("note", "annotations") else _loose(part) for key, part in kept.items()}
    return [_loose(part) for part in value] if isinstance(value, list) else value


def _annotates(line: list[Any]) -> bool:
    return line[0] == "respond" and isinstance(line[2], dict) and line[2].get("type") == 1


class Replay:
    """A recorded conversation: its inputs go to a bridge, whose outputs must be the recorded ones."""

    name = "sched-fluxsched"
    ascii = False

    def __init__(self, path: Path) -> None:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        self.lines = [line for line in lines if not _annotates(line)]
        self.at = 0
        self.calls: dict[int, Callable[[BrokerReply], None]] = {}

    def run(self, words: list[str]) -> Bridge:
        bridge = Bridge(self, parse_options(words, self.name), self)
        bridge.start()
        while self.at < len(self.lines):
            kind, *rest = self.lines[self.at]
            assert kind in INPUTS, f"line {self.at + 1}: {self.lines[self.at]} was not said"
            self.at += 1
            if kind == "turn":
                bridge.turn()
            elif kind == "leave":
                bridge.leave()
            elif kind == "request":
                number, topic, payload = rest
                bridge.receive(BrokerRequest(topic, _bytes(payload), number))
            else:
                number, payload, errnum, text = rest
                self.calls[number](BrokerReply(_bytes(payload), errnum, text))
            bridge.scheduler.check()
        return bridge

    def _said(self, kind: str, *rest: Any) -> list[Any]:
        assert self.at < len(self.lines), f"after the end: {kind} {rest}"
        line = self.lines[self.at]
        self.at += 1
        assert line[0] == kind, f"line {self.at}: recorded {line}, not {kind} {rest}"
        assert _loose(list(rest)) == _loose(line[1 : 1 + len(rest)]), f"line {self.at}"
        return line

    def rpc(self, topic: str, payload: bytes | None, done: Any, *, streaming: bool = False) -> None:
        self._call("rpc", done, topic, _value(payload), streaming)

    def commit(self, values: Mapping[str, bytes], done: Any) -> None:
        self._call("commit", done, {key: _value(value) for key, value in values.items()})

    def lookup(self, key: str, done: Any) -> None:
        self._call("lookup", done, key)

    def _call(self, kind: str, done: Any, *rest: Any) -> None:
        number = self.lines[self.at][1]
        self.calls[number] = done
        self._said(kind, number, *rest)

    def respond(self, request: BrokerRequest, payload: bytes | None) -> None:
        if not _annotates(["respond", request.token, _value(payload)]):
            self._said("respond", request.token, _value(payload))

    def fail(self, request: BrokerRequest, errnum: int, text: str) -> None:
        self._said("fail", request.token, errnum)

    def after(self, delay_s: float) -> None:
        if not delay_s:  # later there are only words for people
            self._said("after")

    def log(self, level: int, text: str) -> None:
        self._said("log", level)

    def debug(self, bit: int) -> bool:
        return bool(self._said("debug", bit)[2])

    def wall_s(self) -> float:
        return float(self._said("wall")[1])

    def monotonic_s(self) -> float:
        return 0.0

    def stop(self) -> None:
        self._said("stop")


class Hand:
    """A handle in the test's hand: what the bridge says is kept, and the test answers when it likes."""

    name = "sched-fluxsched"
    ascii = False

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.calls: dict[str, Callable[[BrokerReply], None]] = {}
        self.commits: list[tuple[dict[str, Any], Callable[[BrokerReply], None]]] = []
        self.raw_commits: list[tuple[dict[str, bytes], Callable[[BrokerReply], None]]] = []
        self.delays: list[float] = []
        self.stopped = False
        self.bits: set[int] = set()
        self.now_s = 1000.0
        self.step_s = 0.0
        self.bridge: Any = None
        self.site = NO_CONFIG

    def begin(self, *words: str, ranks: str = "0-3", cores: str = "0-1", up: str | None = None) -> Bridge:
        """A bridge that is ready, nothing running, unless `words` are wrong."""
        self.acquire(*words, ranks=ranks, cores=cores, up=up)
        self.answer("job-manager.sched-hello", errnum=61)
        self.answer("job-manager.sched-ready", {"count": 0})
        self.turn()
        return self.bridge

    def acquire(self, *words: str, ranks: str = "0-3", cores: str = "0-1", up: str | None = None) -> Bridge:
        self.bridge = Bridge(self, parse_options(words or ["policy=fifo"], self.name), self, self.site)
        self.bridge.start()
        lite = [{"rank": ranks, "children": {"core": cores}}]
        execution = {"R_lite": lite, "starttime": 0, "expiration": 0, "nodelist": [f"n[{ranks}]"]}
        R = {"version": 1, "execution": execution}  # noqa: N806
        self.answer("resource.acquire", {"resources": R, "up": ranks if up is None else up})
        return self.bridge

    def answer(self, topic: str, payload: Any = None, errnum: int = 0, text: str = "") -> None:
        self.calls[topic](BrokerReply(_bytes(payload), errnum, text))

    def ask(self, topic: str, payload: Any = None, token: object = None) -> None:
        self.bridge.receive(BrokerRequest(topic, _bytes(payload), token))

    def alloc(self, jobid: int, slots: int = 1, priority: int = 16, jobspec: Any = None, **system: Any) -> None:
        resources = [{"type": "slot", "count": slots, "label": "task", "with": [{"type": "core", "count": 1}]}]
        task = {"command": ["true"], "slot": "task", "count": {"per_slot": 1}}
        attributes = {"system": {"duration": 0, **system}}
        spec = {"version": 1, "resources": resources, "tasks": [task], "attributes": attributes}
        request = {"id": jobid, "priority": priority, "userid": 1, "t_submit": float(jobid), "jobspec": spec}
        self.ask("sched.alloc", {**request, "jobspec": spec if jobspec is None else jobspec}, token=jobid)

    def turn(self) -> None:
        self.bridge.turn()

    def take(self, kind: str) -> list[tuple[Any, ...]]:
        """What of this kind was said since the last look."""
        found = [rest for one, *rest in self.said if one == kind]
        self.said = [one for one in self.said if one[0] != kind]
        return [tuple(rest) for rest in found]

    def rpc(self, topic: str, payload: bytes | None, done: Any, *, streaming: bool = False) -> None:
        self.calls[topic] = done
        self.said.append(("rpc", topic, _value(payload)))

    def commit(self, values: Mapping[str, bytes], done: Any) -> None:
        self.raw_commits.append((dict(values), done))
        self.commits.append(({key: plain(value) for key, value in values.items()}, done))

    def lookup(self, key: str, done: Any) -> None:
        self.calls[key] = done

    def respond(self, request: BrokerRequest, payload: bytes | None) -> None:
        self.said.append(("respond", request.token, _value(payload)))

    def fail(self, request: BrokerRequest, errnum: int, text: str) -> None:
        self.said.append(("fail", request.token, errnum, text))

    def after(self, delay_s: float) -> None:
        self.delays.append(delay_s)

    def log(self, level: int, text: str) -> None:
        self.said.append(("log", level, text))

    def debug(self, bit: int) -> bool:
        return bit in self.bits

    def stop(self) -> None:
        self.stopped = True

    def wall_s(self) -> float:
        return self.now_s

    def monotonic_s(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def _bytes(payload: Any) -> bytes | None:
    if isinstance(payload, str):  # what is no JSON is recorded as text
        return payload.encode()
    return None if payload is None else json.dumps(payload).encode()


def _value(payload: bytes | None) -> Any:
    return None if payload is None else json.loads(payload)


@pytest.fixture(scope="session")
def replay() -> Callable[[Path, list[str]], Bridge]:
    """replay(path, options): play a recording to its end."""
    return lambda path, words: Replay(path).run(words)


@pytest.fixture
def hand() -> Hand:
    """A handle in the test's hand."""
    return Hand()
