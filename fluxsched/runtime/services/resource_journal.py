"""`resource.journal` (RFC 44): each event goes to the store and to the readers, after the history.

Law: a reader gets every event once, in order: what was sent as history is not sent again as news. None is sent before
it is on disk, so what a reader was told stays true whatever happens. A `resource-define` event travels alone, with R
beside it. The store keeps what the history keeps, and one more, which shows a restart that something was cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import msgspec

from fluxsched.resource.effects import JournalEvent
from fluxsched.resource.journal import HISTORY_EVENTS_MAX
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.messaging.peers import RpcRequest
from fluxsched.runtime.messaging.router import Router, forget

BATCH_EVENTS = 512
"""Events in one response: a history of thousands stays far below the message limit."""
STORED_EVENTS_MAX = HISTORY_EVENTS_MAX + 1
"""Events in the store after it was pruned."""
PRUNE_EVENTS = 1024
"""How many more there may be before it is pruned again."""


class JournalService:
    """The streams, the news of this turn, and the rows."""

    def __init__(
        self,
        router: Router,
        store: Store,
        history: Callable[[], Iterable[JournalEvent]],
        resources: Callable[[], dict[str, Any]],
    ) -> None:
        self._store = store
        self._history = history
        self._resources = resources
        self._streams: dict[RpcRequest, None] = {}
        self._news: list[JournalEvent] = []
        self._unstored = 0
        """Events at the end of the history that are not on disk yet."""
        self._stored = PRUNE_EVENTS
        router.serve({"resource.journal": self._open})

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, event: JournalEvent) -> None:
        """An event that the history has already."""
        self._news.append(event)
        self._unstored += 1
        self._store.add("journal", (msgspec.json.encode(event),))
        self._stored += 1
        if self._stored > PRUNE_EVENTS:
            self._stored = 0
            self._store.remove("journal", (STORED_EVENTS_MAX,))

    def publish(self) -> None:
        """Tell the readers what is new, once it is on disk."""
        news, self._news = self._news, []
        if news:
            self._store.after_commit(partial(self._tell_all, news))

    def _tell_all(self, news: list[JournalEvent]) -> None:
        self._unstored -= len(news)
        for request in self._streams:
            self._tell(request, news)

    def _open(self, request: RpcRequest) -> None:
        request.open_stream(lambda: forget(self._streams, request))
        self._store.when_settled(partial(self._begin, request))  # what was answered is in the history by then

    def _begin(self, request: RpcRequest) -> None:
        if not request.is_open:
            return
        events = list(self._history())
        self._tell(request, events[: len(events) - self._unstored])
        request.respond({"events": []})
        self._streams[request] = None

    def _tell(self, request: RpcRequest, events: Iterable[JournalEvent]) -> None:
        for batch in batches(events):
            defines = batch[0]["name"] == "resource-define"
            request.respond({"events": batch, "R": self._resources()} if defines else {"events": batch})


def batches(events: Iterable[JournalEvent]) -> Iterator[list[JournalEvent]]:
    """Events in lists of BATCH_EVENTS at most, `resource-define` in one of its own."""
    batch: list[JournalEvent] = []
    for event in events:
        alone = event["name"] == "resource-define"
        if batch and (alone or len(batch) == BATCH_EVENTS):
            yield batch
            batch = []
        batch.append(event)
        if alone:
            yield batch
            batch = []
    if batch:
        yield batch
