"""The live picture of an instance for many viewers: one connection, one request however many viewers ask the same.

    async with Follower(uri) as follower:
        async with follower.subscribe("machine") as messages:
            async for kind, body in messages:
                ...

`kind` is `instance` (first: `{"instance": "there", ...}` with what `instance.info` says, or `{"instance": "lost",
"why": TEXT, "retry_s": S}`; later whenever that changes), `whole` (a snapshot: next, after each loss, and whenever a
delta does not do) or `change` (a delta: what is new; `feed.joined(snapshot, delta)` is the snapshot after it). A body
is JSON-ready and must not be changed: viewers share it. `message.json` is its text, made once. What an instance refuses
is a snapshot `{"refused": TEXT, "errnum": N}`; it is asked again.

Topics, their parameters (values, or texts of a query) and snapshots; a delta has the keys that are new:
- `machine`: `{"R", "states": {STATE: idset}, "busy": {CORES: idset}, "busy_gpus", "drained": [ROW...], "outages":
  [ROW...], "groups", "made_up", "counts": {STATE: n}, "cores": {"total", "in_use"}, "gpus": {"total", "in_use"},
  "sections": {"group" | "property" | "host" | "switch": [[TITLE, idset]...]}}`; rows have `hosts`, see `machine.py`;
  delta: `{"states": {"drained": "7"}, "counts": {...}}`.
- `jobs` (`states user queue name text targets ids array since constraint order start max_entries`): `{"jobs": [ROW...],
  "order": [JOBID...], "left_out": n}`, ROW as job-manager.list has it with `jobid` (F58), `user`, `status`, `word`,
  `reason`, `estimate`, `promised`?; delta: `{"jobs": [rows that differ], "gone": [JOBID...], "order": [...]}`.
- `job` (`id terminal`; with `terminal=1` output has colours, SGR, and carriage returns, and STREAM is `stdout 3` for
  task 3 of several): `{"job": ROW, "why", "usage": {"lines", "advice"} | null, "events": [...], "output":
  [[STREAM, TEXT]...], "output_left_out": n}`, events and output null where they are not for this viewer; delta:
  `{"events": [new ones], "output": [...]}`.
- `timeline` (`since until targets bars_max`; times below 10^8 are from now): `{"now", "begin", "end", "expires",
  "ranks", "cores_per_target", "states", "spans": [[idset, STATE, from, to | null, note]...], "bars", "rows",
  "left_out", "starts"}`, see `timeline.py`; delta: `{"now", "bars": [bars that differ], "gone": [JOBID...]}`.
- `past` (`at`, a time as above): `{"at", "states", "busy", "observed", "left_out"}`, the machine at that time: its
  states but `free`, targets by cores that jobs held, whether an instance ran, and how many jobs are not in it.
- `groups`: `{"groups": as resource.groups, each with "states": {STATE: n}, "queues": [...], "holders": {GROUP: [[JOBID,
  idset, end, user, name]...]}}`.
- `queues`: `{"queues": [{"name", "groups", "policy", "has_accounts", "state", "reason", "targets": {"total", "online",
  "free"}, "running", "waiting" (null: not known), "limits": [TEXT...], "reasons": [[KIND, n]...], "looked_at": n,
  "head": {"jobid", "start", "promised", "reason"} | null}...]}`.
- `messages` (`topics`): `{"messages": [...], "dropped": n in all}`; delta: `{"messages": [new ones], "dropped"}`.
- `shares` (`group`): sched.accounts in one, `group`, `groups` that have some; or `{"accounts": null, "why": TEXT}`.
- `history` (`since until points by days`): `{"now", "since", "until", "samples", "intervals", "observed", "report"}`,
  with `days=1` a report that has what each day used.
- `notices`: instance.notice-list.
- `figures`: instance.metrics; for guests `targets`, `cores` and `queues` of it, of all queues together.

Law: a topic without a viewer is not asked for. Nothing is queued: messages for a viewer that reads nothing are merged
into one, by the rule in `feed.py`, at most about as large as a snapshot. An instance that is gone is a state, not an
error; it is looked for at its address until the viewer ends, with the pauses that all clients have.
"""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Literal, Protocol

import msgspec

from fluxsched.client.aio import AsyncHandle
from fluxsched.client.find import delays
from fluxsched.core.text import some_of
from fluxsched.errors import FluxschedError, InvalidValue, LimitExceeded, RPCError
from fluxsched.views.feeds import (
    FILTERS,
    GROUPS_EVERY_S,
    HISTORY_EVERY_S,
    NOTICES_EVERY_S,
    SHARES_EVERY_S,
    Body,
    Feed,
    Figures,
    FiguresFeed,
    GroupsQuestion,
    HistoryQuestion,
    JobFeed,
    JobsFeed,
    MachineFeed,
    MachinePolledFeed,
    MessagesFeed,
    Params,
    PolledFeed,
    QueuesFeed,
    SharesQuestion,
    TargetFeed,
    after,
    ask_notices,
    joined,
    streaming,
)
from fluxsched.views.timeline import PAST_EVERY_S, PastQuestion, TimelineFeed

ANSWERED_WITHIN_S = 20.0
"""An instance that answers nothing for so long is as good as gone."""

Connect = Callable[[], AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def guest_handle(uri: str | None) -> AsyncIterator[AsyncHandle]:
    """Connect, and give up all rights but those of a guest without an account; an instance without that is refused."""
    async with AsyncHandle(uri) as handle:
        await handle.rpc("instance.renounce", timeout_s=ANSWERED_WITHIN_S)
        yield handle


class ConnectionListener(Protocol):
    """Listener to changes of the connection."""

    def connected(self, handle: Any, info: Mapping[str, Any]) -> None:
        """Record that the instance is there; `info` is what `instance.info` says."""

    def lost(self, why: str, retry_s: float) -> Awaitable[None]:
        """Take note that the connection is lost, and will be made again."""


class KeptConnection:
    """Keeps a handle open from `open` to `close`."""

    def __init__(self, connect: Connect, listener: ConnectionListener) -> None:
        self._connect = connect
        self._listener = listener
        self._task: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        self.handle: Any | None = None
        self.why = ""
        """Reason for which the connection is lost."""

    def open(self) -> None:
        """Begin to keep a connection, if that is not done yet."""
        if self._task is None:
            self._task = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """End the connection and its task."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def connected_handle(self) -> Any:
        """Return the handle, after the first attempt. Raises RPCError while there is none."""
        self.open()
        await self._settled.wait()
        if self.handle is None:
            raise RPCError(self.why, errno.ECONNRESET)
        return self.handle

    async def _keep(self) -> None:
        pauses = delays()
        while True:
            try:
                async with self._connect() as handle:
                    info = await handle.rpc("instance.info", timeout_s=ANSWERED_WITHIN_S)
                    pauses, self.handle, self.why = delays(), handle, ""
                    self._settled.set()
                    self._listener.connected(handle, info)
                    try:
                        self.why = str(await handle.gone())
                    finally:
                        self.handle = None
            except (FluxschedError, OSError) as fault:
                self.why = str(fault)
            self._settled.set()
            delay_s = next(pauses)
            await self._listener.lost(self.why, delay_s)
            await asyncio.sleep(delay_s)


# ---- subscriptions of viewers

MessageKind = Literal["whole", "change", "instance"]
_ENCODER = msgspec.json.Encoder()


class ViewMessage:
    """`kind, body = message`. `json` is the body's text, made once for all viewers that get this message."""

    __slots__ = ("_json", "body", "kind")

    def __init__(self, kind: MessageKind, body: Body) -> None:
        self.kind = kind
        self.body = body
        self._json: bytes | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.kind, self.body))

    def __repr__(self) -> str:
        return f"<ViewMessage {self.kind} {dict(self.body)!r}>"

    @property
    def json(self) -> bytes:
        """Return the body as JSON text."""
        if self._json is None:
            self._json = _ENCODER.encode(self.body)
        return self._json


class Subscription:
    """`async with` it, or `close` it; `async for` gives messages until it is closed, and raises what its feed did."""

    def __init__(self, closed: Callable[[Subscription], None]) -> None:
        self._closed = closed
        self._instance: ViewMessage | None = None
        self._data: ViewMessage | None = None
        self._fault: BaseException | None = None
        self._is_over = False
        self._arrived = asyncio.Event()

    def put(self, message: ViewMessage) -> None:
        """Put the next message for the viewer."""
        if message.kind == "instance":
            self._instance = message
        elif message.kind == "whole" or self._data is None:
            self._data = message
        else:
            merge = after if self._data.kind == "whole" else joined
            self._data = ViewMessage(self._data.kind, merge(self._data.body, message.body))
        self._arrived.set()

    def fail(self, fault: BaseException) -> None:
        """Our own fault: the viewer's loop raises it."""
        self._fault = fault
        self._arrived.set()

    def close(self) -> None:
        """End the viewer's loop; what is asked for it alone is not asked any more."""
        if not self._is_over:
            self._is_over = True
            self._arrived.set()
            self._closed(self)

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> ViewMessage:
        while True:
            if self._is_over:
                raise StopAsyncIteration
            if self._fault is not None:
                raise self._fault
            if self._instance is not None:
                message, self._instance = self._instance, None
                return message
            if self._data is not None:
                message, self._data = self._data, None
                return message
            self._arrived.clear()
            await self._arrived.wait()

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# ---- topics and their feeds

MakeFeed = Callable[[Params, Figures], Feed]


def feed_of(topic: str, given: Mapping[str, Any], figures: Figures) -> Feed:
    """Return the feed of a topic, which must be one of TOPICS. Raises InvalidValue for wrong parameters."""
    known, make = TOPICS[topic]
    return make(Params(topic, given, *known), figures)


TOPICS: Mapping[str, tuple[tuple[str, ...], MakeFeed]] = {
    "machine": ((), lambda params, figures: MachineFeed()),
    "jobs": (FILTERS, JobsFeed),
    "job": (("id", "terminal"), lambda params, figures: JobFeed(params)),
    "target": (("rank",), lambda params, figures: TargetFeed(params)),
    "timeline": (("since", "until", "targets", "bars_max"), lambda params, figures: TimelineFeed(params)),
    "past": (("at",), lambda params, figures: PolledFeed(PastQuestion(params).ask, PAST_EVERY_S)),
    "groups": ((), lambda params, figures: MachinePolledFeed(GroupsQuestion(figures).ask, GROUPS_EVERY_S)),
    "queues": ((), lambda params, figures: QueuesFeed(figures)),
    "messages": (("topics",), lambda params, figures: MessagesFeed(params)),
    "shares": (("group",), lambda params, figures: PolledFeed(SharesQuestion(params).ask, SHARES_EVERY_S)),
    "history": (
        ("since", "until", "points", "by", "days"),
        lambda params, figures: PolledFeed(HistoryQuestion(params).ask, HISTORY_EVERY_S),
    ),
    "notices": ((), lambda params, figures: PolledFeed(ask_notices, NOTICES_EVERY_S)),
    "figures": ((), lambda params, figures: FiguresFeed(figures)),
}
"""Its parameters and how it is made, by name."""


# ---- the follower

FEEDS_MAX = 500
"""Feeds at once: each asks the instance about once a second, or has a stream there."""
REFUSED_RETRY_S = 5.0
"""After how long what was refused is asked again (seconds)."""
ENDED_S = 0.5
"""An instance that ends a stream is usually gone a moment later, and that is what is told (seconds)."""

LINGERED_S = 2.0
"""Time that a feed runs on without a viewer: a page's script asks again what its server has just asked (seconds)."""


class TooManyFeeds(LimitExceeded):
    """Refusal of a feed where FEEDS_MAX are followed."""


class Channel:
    """One feed and its viewers; the `FeedListener` of the feed."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.viewers: set[Subscription] = set()
        self.task: asyncio.Task[None] | None = None
        self._latest: ViewMessage | None = None
        """Snapshot as it is now, once for all viewers that come before it changes."""

    def snapshot(self, body: Body) -> None:
        self._tell("whole", body)

    def delta(self, body: Body) -> None:
        self._tell("change", body)

    def _tell(self, kind: MessageKind, body: Body) -> None:
        message = ViewMessage(kind, body)
        self._latest = message if kind == "whole" else None
        for viewer in self.viewers:
            viewer.put(message)

    def greet(self, viewer: Subscription) -> None:
        """Send a new viewer the snapshot, if there is one."""
        if self._latest is None and (body := self.feed.current()) is not None:
            self._latest = ViewMessage("whole", body)
        if self._latest is not None:
            viewer.put(self._latest)

    async def follow(self, handle: Any) -> None:
        """Run the feed until the connection is lost; what is refused is asked again."""
        while True:
            try:
                await self.feed.run(handle, self)
                why, errnum = "the instance has ended the stream", errno.ENODATA
                await asyncio.sleep(ENDED_S)
            except RPCError as fault:
                if handle.is_gone:
                    return
                why, errnum = str(fault), fault.errnum
            self.snapshot({"refused": why, "errnum": errnum})
            await asyncio.sleep(REFUSED_RETRY_S)


class Follower:
    """A connection to an instance, shared by many viewers; the `ConnectionListener` of its client.

    It is made and used within one running event loop.
    """

    def __init__(self, uri: str | None = None, *, connect: Connect | None = None, as_guest: bool = False) -> None:
        make = guest_handle if as_guest else AsyncHandle
        self._connection = KeptConnection(connect or (lambda: make(uri)), self)
        self._figures = Figures()
        self._channels: dict[str, Channel] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._instance: ViewMessage | None = None
        self._is_closed = False

    def subscribe(self, topic: str, params: Mapping[str, Any] | None = None) -> Subscription:
        """Follow a topic. Raises InvalidValue for an unknown topic or parameter, TooManyFeeds."""
        if topic not in TOPICS:
            raise InvalidValue(f"there is no view {topic!r}; there are {some_of(list(TOPICS))}")
        if self._is_closed:
            raise InvalidValue(f"view {topic}: this follower is closed")
        given = {param: value for param, value in (params or {}).items() if value is not None}
        name = json.dumps([topic, given], sort_keys=True, default=str)
        channel = self._channels.get(name) or self._new_channel(topic, given)
        viewer = Subscription(lambda viewer: self._leave(name, viewer))
        self._channels[name] = channel
        channel.viewers.add(viewer)
        if self._instance is not None:
            viewer.put(self._instance)
        channel.greet(viewer)
        self._connection.open()
        self._start(name, channel)
        return viewer

    def _new_channel(self, topic: str, given: Mapping[str, Any]) -> Channel:
        feed = feed_of(topic, given, self._figures)
        if len(self._channels) >= FEEDS_MAX:
            for name, unused in [*self._channels.items()]:
                self._drop(name, unused)
        if len(self._channels) >= FEEDS_MAX:
            raise TooManyFeeds(f"{FEEDS_MAX} different views are followed, the limit: close one, or use fewer filters")
        return Channel(feed)

    async def ask(self, topic: str, payload: dict[str, Any] | None = None) -> dict[str, Any]:
        """One request over the same connection. Raises RPCError: the instance's, or that it is lost."""
        handle = await self._connection.connected_handle()
        answer: dict[str, Any] = await handle.rpc(topic, payload)
        return answer

    async def stream(self, topic: str, payload: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the answers of one streaming request. Raises RPCError."""
        with streaming(await self._connection.connected_handle(), topic, payload) as answers:
            async for answer in answers:
                yield answer

    async def close(self) -> None:
        """End all subscriptions and the connection."""
        self._is_closed = True
        for name, channel in [*self._channels.items()]:
            for viewer in [*channel.viewers]:
                viewer.close()
            self._drop(name, channel)
        await asyncio.gather(*self._ending, return_exceptions=True)
        await self._connection.close()

    async def __aenter__(self) -> Follower:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- what becomes of the connection

    def connected(self, handle: Any, info: Mapping[str, Any]) -> None:
        self._tell_all(ViewMessage("instance", {"instance": "there", **info}))
        for name, channel in self._channels.items():
            self._start(name, channel)

    async def lost(self, why: str, retry_s: float) -> None:
        self._tell_all(ViewMessage("instance", {"instance": "lost", "why": why, "retry_s": retry_s}))
        tasks = [self._stopped(channel) for channel in self._channels.values()]
        await asyncio.gather(*[task for task in tasks if task is not None], return_exceptions=True)

    def _tell_all(self, message: ViewMessage) -> None:
        self._instance = message
        for channel in self._channels.values():
            for viewer in channel.viewers:
                viewer.put(message)

    # -- feeds

    def _start(self, name: str, channel: Channel) -> None:
        handle = self._connection.handle
        if channel.task is None and handle is not None:
            channel.task = asyncio.create_task(channel.follow(handle))
            channel.task.add_done_callback(lambda task: self._note_fault(task, name, channel))

    def _note_fault(self, task: asyncio.Task[None], name: str, channel: Channel) -> None:
        """Raise a fault of ours in a feed in its viewers' loops; those who come later begin with another feed."""
        if task.cancelled() or (fault := task.exception()) is None:
            return
        if self._channels.get(name) is channel:
            del self._channels[name]
        for viewer in channel.viewers:
            viewer.fail(fault)

    def _stopped(self, channel: Channel) -> asyncio.Task[None] | None:
        task, channel.task = channel.task, None
        if task is not None:
            task.cancel()
        return task

    def _leave(self, name: str, viewer: Subscription) -> None:
        channel = self._channels.get(name)
        if channel is None or viewer not in channel.viewers:
            return
        channel.viewers.discard(viewer)
        if self._is_closed:
            self._drop(name, channel)
        elif not channel.viewers:
            asyncio.get_running_loop().call_later(LINGERED_S, self._drop, name, channel)

    def _drop(self, name: str, channel: Channel) -> None:
        """End a feed that still has no viewer."""
        if channel.viewers or self._channels.get(name) is not channel:
            return
        del self._channels[name]
        task = self._stopped(channel)
        if task is not None:
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
