"""The journal's readers are told of an event once it is on disk, as history or as news, never as both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fluxsched.runtime.services.resource_journal import JournalService


class SlowDisk:
    """A store that has not committed until `commit`."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def add(self, table: str, values: tuple[Any, ...]) -> None:
        pass

    def remove(self, table: str, key: tuple[Any, ...]) -> None:
        pass

    def after_commit(self, done: Callable[[], None]) -> None:
        self._waiting.append(done)

    def when_settled(self, done: Callable[[], None]) -> None:
        done()

    def commit(self) -> None:
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done()


class Reader:
    """A request for the stream."""

    is_open = True

    def __init__(self) -> None:
        self.told: list[str] = []

    def open_stream(self, on_end: Callable[[], None]) -> None:
        pass

    def respond(self, payload: dict[str, Any]) -> None:
        self.told += [event["name"] for event in payload["events"]] or ["mark"]


class Handlers(dict[str, Callable[[Any], None]]):
    """A router."""

    def serve(self, handlers: dict[str, Callable[[Any], None]]) -> None:
        self.update(handlers)


@pytest.mark.plain_only("has stand-ins for router and requests")
def test_an_event_is_told_once_it_is_on_disk() -> None:
    history: list[dict[str, Any]] = [{"timestamp": 1.0, "name": "restart"}]
    disk, router = SlowDisk(), Handlers()
    service = JournalService(router, disk, lambda: history, dict)  # type: ignore[arg-type]
    early, late = Reader(), Reader()
    router["resource.journal"](early)
    drain = {"timestamp": 2.0, "name": "drain"}
    history.append(drain)
    service.add(drain)
    service.publish()
    router["resource.journal"](late)
    assert early.told == late.told == ["restart", "mark"]
    disk.commit()
    assert early.told == late.told == ["restart", "mark", "drain"]
