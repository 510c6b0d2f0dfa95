"""Base of all feeds: the rule by which changes are merged, the feed of one topic, and a subscription's parameters.

A feed asks an instance for a topic on behalf of all viewers that subscribed to it with the same parameters.

A delta has the keys that are new, with their values. The value replaces the old one, except
- `states`, `busy`, `busy_gpus`: values to idsets, each target in one. The delta lists the targets that changed: they
  leave the idset they were in;
- `jobs`, `bars`: those that are new or differ, by their `jobid` (of bars the first entry); those in `gone` are gone.
  Where there is an `order` of ids, the list is in it. The `jobs` of figures are counts, and replaced;
- `events`, `output`, `messages`: what is to be appended; KEPT_MAX of it are kept, of output OUTPUT_CHARS_MAX.
A reader that follows these rules has, after any deltas, what it would get if it asked for a snapshot.

Law: a feed keeps no viewer. It has the snapshot at any time, and sends deltas to its listener; an instance that is gone
ends `run` with an RPCError, and the next `run` begins anew with a snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from fluxsched.core.text import some_of, there_are
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.views.machine import TargetParts

Body = Mapping[str, Any]
PARTITIONS = ("states", "busy", "busy_gpus")
KEYED = {"jobs": "jobid", "bars": 0}
KEPT_MAX = 1000
"""Number of events, or messages, that are kept."""
OUTPUT_CHARS_MAX = 64 * 1024
"""Number of characters of a job's output that are kept, its end."""


def joined(older: Body, newer: Body) -> dict[str, Any]:
    """Return a snapshot with a delta, or two deltas as one; in a snapshot `gone` means nothing (see `after`)."""
    found = dict(older)
    keyed = [key for key in KEYED if not isinstance(older.get(key, newer.get(key, {})), Mapping)]
    for key, value in newer.items():
        before = found.get(key)
        if key in keyed or key == "gone":
            continue
        if before is None:
            found[key] = value
        elif key in PARTITIONS:
            found[key] = _moved(before, value)
        elif key in ("events", "messages"):
            found[key] = [*before, *value][-KEPT_MAX:]
        elif key == "output":
            found[key] = tail([*before, *value])
        else:
            found[key] = value
    for key in keyed:
        _join_keyed(found, older, newer, key)
    if "gone" in newer and not keyed:
        found["gone"] = [*dict.fromkeys([*older.get("gone", ()), *newer["gone"]])]
    return found


def after(snapshot: Body, delta: Body) -> dict[str, Any]:
    """Return the snapshot after a delta."""
    found = joined(snapshot, delta)
    found.pop("gone", None)
    return found


def _join_keyed(found: dict[str, Any], older: Body, newer: Body, key: str) -> None:
    name = KEYED[key]
    gone = set(newer.get("gone", ()))
    rows = {row[name]: row for row in older.get(key, ()) if row[name] not in gone}
    rows |= {row[name]: row for row in newer.get(key, ())}
    left = [jobid for jobid in dict.fromkeys([*older.get("gone", ()), *newer.get("gone", ())]) if jobid not in rows]
    if left or "gone" in found:
        found["gone"] = left
    order = found.get("order") if key == "jobs" else None
    found[key] = [*rows.values()] if order is None else [rows[jobid] for jobid in order if jobid in rows]


def tail(pieces: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the last OUTPUT_CHARS_MAX characters of `[stream, text]`, neighbours of one stream as one."""
    found: list[list[str]] = []
    for stream, text in pieces:
        if found and found[-1][0] == stream:
            found[-1] = [stream, found[-1][1] + text]
        else:
            found.append([stream, text])
    excess = sum([len(text) for _, text in found]) - OUTPUT_CHARS_MAX
    while excess > 0:
        stream, text = found[0]
        if len(text) > excess:
            found[0] = [stream, text[excess:]]
        else:
            del found[0]
        excess -= len(text)
    return found


def _moved(before: Mapping[str, str], moved: Mapping[str, str]) -> dict[str, str]:
    """Return the partition `before` once these targets are where `moved` has them."""
    found = TargetParts()
    found.move_targets(before)
    found.move_targets(moved)
    return found.texts()


def differences(before: Body, now: Body) -> dict[str, Any]:
    """Return the keys of `now` whose values are new: the delta of what is replaced as a whole."""
    return {key: value for key, value in now.items() if key not in before or before[key] != value}


# ---- the base of feeds

SHARE = 0.25
"""The most of the time that an answer of one topic is waited for."""


WAIT_S = 0.1
"""Time that an answer of a feed waits for a slow one (seconds); it is then given without it."""


class Asking(Protocol):
    """Methods of an `AsyncHandle` that feeds use."""

    @property
    def is_gone(self) -> bool: ...

    def rpc(self, topic: str, payload: Any = None, *, timeout_s: float | None = ...) -> Any: ...

    def stream(self, topic: str, payload: Any = None) -> Any: ...


class FeedListener(Protocol):
    """Receiver of snapshots and deltas of a feed."""

    def snapshot(self, body: Body) -> None:
        """Receive the state as it is now, in place of all that was received before."""

    def delta(self, body: Body) -> None:
        """Receive the parts that have changed."""


class Feed(Protocol):
    """One topic with its parameters."""

    def current(self) -> Body | None:
        """Return the snapshot for a viewer that comes now; None before the first answer."""

    async def run(self, handle: Asking, listener: FeedListener) -> None:
        """Ask until the connection is lost. Raises RPCError for that, and for what the instance refuses."""


@contextmanager
def streaming(handle: Asking, topic: str, payload: Any = None) -> Iterator[Any]:
    """Open a stream that ends at the instance, too, when its reader ends."""
    stream = handle.stream(topic, payload)
    try:
        yield stream
    finally:
        if not handle.is_gone:
            stream.cancel()


async def together(*parts: Coroutine[Any, Any, None]) -> None:
    """Run all; the first fault ends the others and is raised, else it ends when all have."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class SlowQuestion:
    """Request that a scheduler may answer after seconds: with 100,000 jobs that wait it plans as long.

    It is asked beside a feed, whose answers do without; `late` is called once there is more to say than there was for
    the last one.
    """

    def __init__(self, late: Callable[[], None] = lambda: None) -> None:
        self._late = late
        self._task: asyncio.Task[None] | None = None

    async def ask(self, question: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        """Ask, unless that is under way or there is nothing to ask, and wait a moment for the answer."""
        if self._task is None and question is not None:
            self._task = asyncio.create_task(question())
        if self._task is None:
            return
        await asyncio.wait([self._task], timeout=WAIT_S)
        if self._task.done():
            task, self._task = self._task, None
            task.result()
        else:
            self._task.add_done_callback(lambda _: self._late())

    async def close(self) -> None:
        """Wait for it no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


AskWhole = Callable[[Asking], Awaitable[dict[str, Any]]]


class PolledFeed:
    """Feed by polling: a snapshot is requested each time, and viewers get the differences.

    `ask` gives the snapshot; `every_s` is the shortest time between two (seconds).
    """

    def __init__(self, ask: AskWhole, every_s: float, differing: Callable[[Body, Body], Body] = differences) -> None:
        self._ask = ask
        self._every_s = every_s
        self._differing = differing
        self._snapshot: Body | None = None

    def current(self) -> Body | None:
        return self._snapshot

    async def run(self, handle: Asking, listener: FeedListener) -> None:
        loop, is_first = asyncio.get_running_loop(), True
        while True:
            begun_s = loop.time()
            snapshot = await self._ask(handle)
            took_s, before, self._snapshot = loop.time() - begun_s, self._snapshot, snapshot
            if is_first or before is None:
                listener.snapshot(snapshot)
            elif delta := self._differing(before, snapshot):
                listener.delta(delta)
            is_first = False
            await asyncio.sleep(max(self._every_s, took_s / SHARE))


# ---- parameters of topics

SHOWN_CHARS = 40
RELATIVE_BELOW_S = 1e8
"""Times nearer to zero than this are seconds from now: -3600 is an hour ago."""


class Params:
    """Parameters of one topic; what is None or empty is absent. Raises InvalidValue naming all that are unknown."""

    def __init__(self, topic: str, given: Mapping[str, Any], *known: str) -> None:
        self._topic = topic
        self._values = {name: value for name, value in given.items() if value is not None and value != ""}
        if unknown := [name for name in self._values if name not in known]:
            raise InvalidValue(f"view {topic}: {some_of(unknown)}: no such parameter; {there_are(known)}")

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str) -> Any:
        """As it was given, or None."""
        return self._values.get(name)

    def text(self, name: str) -> str:
        """Return a text, empty if absent."""
        value = self._values.get(name, "")
        if not isinstance(value, str):
            raise self._wrong(name, "a text")
        return value

    def words(self, name: str) -> tuple[str, ...]:
        """Return a comma separated list as words."""
        return tuple([word.strip() for word in self.text(name).split(",") if word.strip()])

    def number(self, name: str) -> float | None:
        """Return a number, None if absent."""
        value = self._values.get(name)
        if value is None:
            return None
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise self._wrong(name, "a number") from None
        if not -1e15 < number < 1e15:
            raise self._wrong(name, "a number of sensible size")
        return number

    def count(self, name: str, default: int, limit: int, least: int = 1) -> int:
        """Return a whole number from `least` on. Raises LimitExceeded above the limit."""
        number = self.number(name)
        if number is None:
            return default
        if number < least or number != int(number):
            raise self._wrong(name, f"a whole number, at least {least}")
        if number > limit:
            raise LimitExceeded(f"view {self._topic}: {name} {int(number)} is above the limit of {limit}")
        return int(number)

    def _wrong(self, name: str, wanted: str) -> InvalidValue:
        return InvalidValue(f"view {self._topic}: {name} {str(self._values[name])[:SHOWN_CHARS]!r} is not {wanted}")


class Period:
    """`since` and `until`, as wall times or in seconds from now; the defaults are seconds from now."""

    def __init__(self, params: Params, since_s: float, until_s: float) -> None:
        self._since_s, self._until_s = params.number("since"), params.number("until")
        self._default_s = since_s, until_s

    def bounds_s(self, now_s: float) -> tuple[float, float]:
        """Both as wall times, in order."""
        since_s = _wall(self._since_s, self._default_s[0], now_s)
        return since_s, max(since_s, _wall(self._until_s, self._default_s[1], now_s))


def _wall(value: float | None, default_s: float, now_s: float) -> float:
    time_s = default_s if value is None else value
    return now_s + time_s if abs(time_s) < RELATIVE_BELOW_S else time_s
