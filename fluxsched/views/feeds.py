"""Feeds of single topics: figures, machine and target, jobs, job, groups, queues, shares, history and messages.

Base of all feeds: the rule by which changes are merged, the feed of one topic, and a subscription's parameters.

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

Each class asks an instance for its topic while it is subscribed to: streams are passed on as they come (machine,
messages), questions are asked again when figures or events show that the answer may differ (jobs, job), or at times
(groups, queues, shares, history). The timeline has a file of its own.

Law: events of every job are not followed; figures say whether any came or went, and rare events are listened for.
Output is text: control characters that a terminal would obey are shown as `\\x1b` and the like, and only its end is
kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
from codecs import getincrementaldecoder
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple, Protocol, get_args

from fluxsched.core.idset import EMPTY, ID_MAX, Idset
from fluxsched.core.jobid import format_f58, parse_jobid, parse_jobids
from fluxsched.core.text import UNPRINTABLE, not_among, printable, some_of, there_are
from fluxsched.errors import InvalidValue, LimitExceeded, RPCError
from fluxsched.protocol.messages.instance import REASONS_MAX, ReportBy
from fluxsched.protocol.messages.jobs import LIST_START_MAX as LIST_START_MAX
from fluxsched.protocol.messages.jobs import ListOrder
from fluxsched.system.clock import SystemClock
from fluxsched.views.jobs import (
    ANY_USER,
    JOB_STATES,
    PENDING,
    RESULTS,
    RUNNING,
    JobRow,
    Jobs,
    efficiency,
    finish_usage,
    gpus_held,
    list_request,
    memory_asked,
    memory_held,
    on_targets,
    queue_limits,
    queue_reason,
    queue_state,
    terms_of,
    user_id,
)
from fluxsched.views.machine import STATES, LiveMachine, TargetParts
from fluxsched.views.words import user_name

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
        """Cancel the request that is under way."""
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
        self._is_due = asyncio.Event()

    def current(self) -> Body | None:
        return self._snapshot

    def hurry(self) -> None:
        """Ask without waiting for the time: there is more to say."""
        self._is_due.set()

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
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_due.wait(), max(self._every_s, took_s / SHARE))
            self._is_due.clear()


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

    def __init__(self, params: Params, since_s: float, until_s: float, first: str = "since") -> None:
        self._since_s, self._until_s = params.number(first), params.number("until")
        self._default_s = since_s, until_s

    def bounds_s(self, now_s: float) -> tuple[float, float]:
        """Both as wall times, in order."""
        since_s = _wall(self._since_s, self._default_s[0], now_s)
        return since_s, max(since_s, _wall(self._until_s, self._default_s[1], now_s))


def _wall(value: float | None, default_s: float, now_s: float) -> float:
    time_s = default_s if value is None else value
    return now_s + time_s if abs(time_s) < RELATIVE_BELOW_S else time_s


# ---- feeds

FIGURES_EVERY_S = 1.0
_FRESH_S = 0.5


class Figures:
    """Cache of the last answer, for all feeds that need it at about the same time."""

    def __init__(self) -> None:
        self._asked_s = -1.0
        self._handle: Asking | None = None
        self._answer: asyncio.Future[dict[str, Any]] | None = None

    async def ask(self, handle: Asking) -> dict[str, Any]:
        """Return the figures, at most half a second old. Raises RPCError."""
        now_s = asyncio.get_running_loop().time()
        if self._answer is None or self._handle is not handle or now_s >= self._asked_s + _FRESH_S:
            self._handle, self._asked_s = handle, now_s
            self._answer = asyncio.ensure_future(handle.rpc("instance.metrics"))
        return await asyncio.shield(self._answer)

    async def happened(self, handle: Asking) -> object:
        """Return a value that differs once jobs were submitted, started or ended; None where figures are refused."""
        try:
            jobs = (await self.ask(handle))["jobs"]
        except RPCError:
            if handle.is_gone:
                raise
            return None
        return jobs["submitted"], jobs["started"], jobs["ended"]


GUEST_FIGURES_EVERY_S = 5.0
"""Interval for guests, for whom jobs are counted (seconds)."""


class FiguresFeed:
    """Feed of the figures; guests, to whom they are refused, get those that the machine and lists of jobs give."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self._polled = PolledFeed(figures.ask, FIGURES_EVERY_S)
        self._machine = LiveMachine()
        self._is_seen = asyncio.Event()

    def current(self) -> Body | None:
        return self._polled.current()

    async def run(self, handle: Asking, listener: FeedListener) -> None:
        self._polled = PolledFeed(self._figures.ask, FIGURES_EVERY_S)
        try:
            await self._polled.run(handle, listener)
        except RPCError as fault:
            if handle.is_gone or fault.errnum != errno.EPERM:
                raise
            if (await handle.rpc("config.get")).get("access", {}).get("private-jobs"):
                raise
        self._machine, self._polled = LiveMachine(), PolledFeed(self._count, GUEST_FIGURES_EVERY_S)
        self._is_seen.clear()
        await together(watch_machine(handle, self._machine, self._is_seen), self._polled.run(handle, listener))

    async def _count(self, handle: Asking) -> dict[str, Any]:
        await self._is_seen.wait()
        machine = self._machine.snapshot()
        running, pending = await asyncio.gather(*[_number_of(handle, states) for states in (RUNNING, PENDING)])
        total, in_use = machine["cores"]["total"], machine["cores"]["in_use"]
        return {
            "targets": machine["counts"], "cores": {"allocated": in_use, "free": total - in_use},
            "queues": [{"running": running, "pending": pending}],
        }  # fmt: skip


async def _number_of(handle: Asking, states: Sequence[str]) -> int:
    request = {"constraint": {"states": list(states)}, "order": "active", "max_entries": 1}
    return int((await handle.rpc("job-manager.list", request))["count"])


# ---- feed `machine`


async def watch_machine(handle: Asking, machine: LiveMachine, is_seen: asyncio.Event) -> None:
    """Keep the machine up to date; `is_seen` is set once it is known."""
    with streaming(handle, "resource.watch") as answers:
        async for answer in answers:
            machine.apply(answer)
            is_seen.set()


class MachinePolledFeed(PolledFeed):
    """Feed by polling whose question is asked with the states of all targets, which are followed meanwhile."""

    def __init__(self, ask: Callable[[Asking, LiveMachine], Awaitable[dict[str, Any]]], every_s: float) -> None:
        super().__init__(self._ask_with_machine, every_s)
        self._ask_about = ask
        self._machine = LiveMachine()
        self._is_seen = asyncio.Event()
        """Set once the targets are known."""

    async def run(self, handle: Asking, listener: FeedListener) -> None:
        self._machine = LiveMachine()
        self._is_seen.clear()
        await together(watch_machine(handle, self._machine, self._is_seen), super().run(handle, listener))

    async def _ask_with_machine(self, handle: Asking) -> dict[str, Any]:
        await self._is_seen.wait()
        return await self._ask_about(handle, self._machine)


class MachineFeed:
    """Keeps the picture for viewers that come later."""

    def __init__(self) -> None:
        self.machine: LiveMachine | None = None
        self._snapshot: dict[str, Any] | None = None

    def current(self) -> Body | None:
        """See `Feed`; made again only after a delta."""
        if self._snapshot is None and self.machine is not None:
            self._snapshot = self.machine.snapshot()
        return self._snapshot

    async def run(self, handle: Asking, listener: FeedListener) -> None:
        machine = LiveMachine()
        with streaming(handle, "resource.watch") as answers:
            async for answer in answers:
                delta = machine.apply(answer)
                self.machine, self._snapshot = machine, None
                if delta is None:
                    listener.snapshot(self.current() or {})
                elif delta:
                    listener.delta(delta)


EVENTS_MAX = 20
"""Events of one target, the last ones."""


class TargetFeed:
    """The events of the journal that name one target, by its rank."""

    def __init__(self, params: Params) -> None:
        self._rank = params.count("rank", 0, ID_MAX, least=0)
        self._events: deque[Mapping[str, Any]] = deque(maxlen=EVENTS_MAX)
        self._is_live = False

    def current(self) -> Body | None:
        return {"rank": self._rank, "events": [*self._events]} if self._is_live else None

    async def run(self, handle: Asking, listener: FeedListener) -> None:
        """See `Feed`; the history comes first and ends with an answer without events."""
        self._events.clear()
        self._is_live = False
        with streaming(handle, "resource.journal") as answers:
            async for answer in answers:
                events = [event for event in answer["events"] if self._names(event.get("context") or {})]
                self._events += events
                if self._is_live and events:
                    listener.delta({"events": events})
                elif not self._is_live and not answer["events"]:
                    self._is_live = True
                    listener.snapshot(self.current() or {})

    def _names(self, context: Mapping[str, Any]) -> bool:
        of_properties = context.get("properties") or {}
        return any(self._rank in Idset.parse(text) for text in (context.get("idset") or "", *of_properties.values()))


# ---- feed `jobs`

ASKED_EVERY_S, REFRESHED_EVERY_S = 1.0, 5.0
"""Minimum interval between requests for a list, and the interval while nothing happens: reasons change all the same."""
REASONS_EVERY_S, REASONS_REFUSED_S = 2.0, 60.0
"""Minimum interval between requests for the reasons why jobs wait, and the one after a scheduler has refused them
(seconds).
"""
LIST_SHARE = 0.02
"""The most of the time in which the instance looks through all of its jobs for one page; in between its rows are asked
for by their ids.
"""
ROWS_USUAL, ROWS_MAX = 200, 1000
"""Number of jobs of one page, and its maximum."""
RARE_EVENTS = (
    "urgency", "exception", "memo", "dependency-add", "dependency-remove", "jobspec-update", "grow", "shrink",
)  # fmt: skip
"""Events that change rows and are not in the figures."""
JOB_ORDERS: tuple[str, ...] = get_args(ListOrder)[1:]
"""Orders of jobs; `-` before one reverses it. `newest` would have no count."""
FILTERS = (
    "states", "user", "queue", "name", "text", "targets", "ids", "array", "since", "constraint", "order", "start",
    "max_entries",
)  # fmt: skip
_IDS = ("array", "requeue_of", "requeued_as")


def job_request(params: Params) -> dict[str, Any]:
    """Return the job-manager.list request of a page: the filters of `fluxsched jobs`, as words, its order and its first
    job. Raises InvalidValue.
    """
    jobs = _named(params.words("ids"))
    words = tuple(word.lower() for word in params.words("states"))
    if unknown := [word for word in words if word not in JOB_STATES and word not in RESULTS]:
        raise InvalidValue(not_among(unknown, [*JOB_STATES, *RESULTS]))
    names = params.words("name")
    if text := params.text("text"):
        names = (*names, f"*{text}*")
    terms = terms_of(
        jobs,
        user=user_id(params.text("user") or ANY_USER),
        names=names,
        queues=params.words("queue"),
        words=words or None,
        array=_named(params.words("array")).ids,
        sets=None,
        targets=on_targets(params.text("targets")) if "targets" in params else None,
    )
    constraint, ids = params.get("constraint"), jobs.ids if not jobs.ranges else ()
    if constraint is not None and not isinstance(constraint, Mapping):
        raise InvalidValue("view jobs: constraint is not an object")
    more = [dict(constraint)] if constraint is not None else []
    wants_all = bool(words or jobs.ids or more)
    since_s = params.number("since")
    if since_s is not None and since_s < 0:
        since_s += SystemClock.wall_s()
    size = params.count("max_entries", ROWS_USUAL, ROWS_MAX)
    return list_request([*terms.values(), *more], ids, wants_all, since_s, size) | _place(params)


def _place(params: Params) -> dict[str, Any]:
    """Return the order and the first job of a page."""
    order, start = params.text("order") or "active", params.count("start", 0, LIST_START_MAX, least=0)
    name = order.removeprefix("-")
    if name not in JOB_ORDERS or order == "-active":
        raise InvalidValue(f"view jobs: order {not_among([order[:SHOWN_CHARS]], JOB_ORDERS)}")
    return {"order": name, **({"descending": True} if name != order else {}), **({"start": start} if start else {})}


def _named(words: tuple[str, ...]) -> Jobs:
    pairs = [(parse_jobids(word), ".." in word) for word in words]
    ranges = tuple([f"{low}..{high}" for (low, high), is_range in pairs if is_range])
    return Jobs(tuple([low for (low, _), is_range in pairs if not is_range]), ranges)


def job_body(info: Mapping[str, Any], now_s: float) -> dict[str, Any]:
    """Return a job's row: what the instance says, with ids as texts (scripts have no exact numbers of that size)."""
    row = JobRow(info, now_s)
    texts = {name: format_f58(info[name]) for name in _IDS if info.get(name)}
    return {
        **{key: value for key, value in info.items() if key not in ("id", "sizes")},
        **texts,
        "jobid": format_f58(info["id"]),
        "user": user_name(info["userid"]),
        "status": row.status(),
        "word": row.word(),
        "reason": row.reason(),
        "estimate": row.estimate_s(),
    }


def row_differences(before: Body, now: Body) -> dict[str, Any]:
    """Return the delta from one list to another: rows new or different, ids that are gone, the order if it differs."""
    known = {row["jobid"]: row for row in before["jobs"]}
    delta = differences(before, {key: value for key, value in now.items() if key != "jobs"})
    if rows := [row for row in now["jobs"] if known.get(row["jobid"]) != row]:
        delta["jobs"] = rows
    if gone := [jobid for jobid in before["order"] if jobid not in set(now["order"])]:
        delta["gone"] = gone
    return delta


class JobsFeed:
    """Feed of the jobs that pass one filter."""

    def __init__(self, params: Params, figures: Figures) -> None:
        self._params = params
        job_request(params)  # refused now rather than in the feed
        self._figures = figures
        self._snapshot: dict[str, Any] | None = None
        self._is_due = asyncio.Event()
        self._listed_again_s = 0.0
        """When all jobs may be looked through again (time of the loop)."""

    def current(self) -> Body | None:
        return self._snapshot

    async def run(self, handle: Asking, listener: FeedListener) -> None:
        self._snapshot = None
        reasons = JobReasons(self._is_due.set)
        try:
            await together(self._list(handle, listener, reasons), self._listen(handle))
        finally:
            await reasons.close()

    async def _listen(self, handle: Asking) -> None:
        """Follow rare events; a guest may not, and sees what they change with the next list."""
        with streaming(handle, "job-manager.watch", {"names": list(RARE_EVENTS)}) as answers:
            try:
                async for _ in answers:
                    self._is_due.set()
            except RPCError as fault:
                if handle.is_gone or fault.errnum != errno.EPERM:
                    raise

    async def _list(self, handle: Asking, listener: FeedListener, reasons: JobReasons) -> None:
        loop = asyncio.get_running_loop()
        while True:
            happened, begun_s = await self._figures.happened(handle), loop.time()
            self._is_due.clear()
            snapshot = await self._page(handle, reasons)
            took_s, before, self._snapshot = loop.time() - begun_s, self._snapshot, snapshot
            if before is None and not snapshot["jobs"]:
                await self._check_targets(handle)
            if before is None:
                listener.snapshot(snapshot)
            elif delta := row_differences(before, snapshot):
                listener.delta(delta)
            await asyncio.sleep(max(ASKED_EVERY_S, took_s / SHARE))
            await self._until_due(handle, happened, loop.time() + REFRESHED_EVERY_S - ASKED_EVERY_S)

    async def _page(self, handle: Asking, reasons: JobReasons) -> dict[str, Any]:
        """Return the page; if all jobs were looked through a moment ago, its rows as they are now, unless half of them
        are gone.
        """
        request, before, loop = job_request(self._params), self._snapshot, asyncio.get_running_loop()
        begun_s = loop.time()
        if before is not None and begun_s < self._listed_again_s:
            ids = [parse_jobid(jobid) for jobid in before["order"]]
            answer = await handle.rpc("job-manager.list", {**request, "ids": ids, "start": 0})
            if 2 * len(answer["jobs"]) > len(ids):
                return await with_reasons(handle, answer["jobs"], reasons) | {"left_out": before["left_out"]}
        answer = await handle.rpc("job-manager.list", request)
        self._listed_again_s = begun_s + (loop.time() - begun_s) / LIST_SHARE
        left_out = max(0, answer["count"] - len(answer["jobs"]))
        return await with_reasons(handle, answer["jobs"], reasons) | {"left_out": left_out}

    async def _check_targets(self, handle: Asking) -> None:
        """Check that the targets of the filter exist; ended jobs may have been on others. Raises RPCError."""
        if targets := self._params.text("targets"):
            await handle.rpc("job-manager.running", {"targets": targets, "max_entries": 1})

    async def _until_due(self, handle: Asking, happened: object, end_s: float) -> None:
        """Wait until something has happened, at the longest until `end_s`."""
        loop = asyncio.get_running_loop()
        while not self._is_due.is_set() and loop.time() < end_s:
            if await self._figures.happened(handle) != happened:
                return
            try:
                await asyncio.wait_for(self._is_due.wait(), ASKED_EVERY_S)
            except TimeoutError:
                continue


class KnownReason(NamedTuple):
    """Reason of a job that waits, its estimated start (wall time), whether that is promised, and the reason's kind."""

    text: str = ""
    start_s: float | None = None
    is_promised: bool = False
    kind: str = ""


class JobReasons:
    """Reasons of waiting jobs that have none in the list: schedulers report reasons only of the first jobs of a queue.

    `late`: see `SlowQuestion`.
    """

    def __init__(self, late: Callable[[], None]) -> None:
        self._question = SlowQuestion(late)
        self._known: dict[int, KnownReason] = {}
        self._next_s = 0.0

    async def lookup(self, handle: Asking, ids: Sequence[int]) -> dict[int, KnownReason]:
        """Return what is known of those that wait; asked now and then."""
        is_due = ids and asyncio.get_running_loop().time() >= self._next_s
        await self._question.ask((lambda: self._ask(handle, list(ids))) if is_due else None)
        return self._known

    async def _ask(self, handle: Asking, ids: list[int]) -> None:
        loop = asyncio.get_running_loop()
        begun_s, pause_s = loop.time(), REASONS_EVERY_S
        try:
            parts = [ids[at : at + REASONS_MAX] for at in range(0, len(ids), REASONS_MAX)]
            answers = [await handle.rpc("job-manager.reasons", {"ids": part}) for part in parts]
            found = dict(chain.from_iterable(map(known_reasons, answers)))
            before = {jobid: self._known[jobid] for jobid in ids if jobid in self._known}
            self._known = before | found
        except RPCError:
            if handle.is_gone:
                raise
            self._known, pause_s = {}, REASONS_REFUSED_S  # an older instance, or not for us
        self._next_s = begun_s + max(pause_s, (loop.time() - begun_s) / SHARE)

    async def close(self) -> None:
        """Stop asking the scheduler for reasons."""
        await self._question.close()


def known_reasons(answer: Mapping[str, Any]) -> Iterator[tuple[int, KnownReason]]:
    """Yield each job of an answer of job-manager.reasons, in which an older instance has no kinds."""
    kinds = answer.get("kinds") or [""] * len(answer["jobs"])
    for (jobid, text, start_s, is_promised), kind in zip(answer["jobs"], kinds, strict=True):
        yield jobid, KnownReason(text, start_s, is_promised, kind)


async def with_reasons(
    handle: Asking, found: Sequence[Mapping[str, Any]], reasons: JobReasons, *, with_kinds: bool = False
) -> dict[str, Any]:
    """Return listed jobs with the reasons of those that have none of their own: their queue's, or their scheduler's.

    `with_kinds`: each that waits has the `kind` of its reason, too, as far as that is known.
    """
    now_s = SystemClock.wall_s()
    rows = {info["id"]: job_body(info, now_s) for info in found}
    silent = [
        info
        for info in found
        if info["state"] in ("PRIORITY", "SCHED") and not (rows[info["id"]]["reason"] and rows[info["id"]]["estimate"])
    ]
    asked = [info["id"] for info in silent if info["urgency"] and info.get("priority") != 0]
    if with_kinds:
        asked = [info["id"] for info in found if info["state"] in PENDING]
    known = await reasons.lookup(handle, asked)
    for jobid in asked if with_kinds else ():
        rows[jobid]["kind"] = known.get(jobid, KnownReason()).kind
    queues = list({info.get("queue") for info in silent if not rows[info["id"]]["reason"]})
    blocked = dict(zip(queues, await asyncio.gather(*[_blocked(handle, name) for name in queues]), strict=True))
    for info in silent:
        row, reason = rows[info["id"]], known.get(info["id"], KnownReason())
        row["reason"] = row["reason"] or blocked[info.get("queue")] or reason.text
        if row["estimate"] is None and reason.start_s is not None:
            row["estimate"] = float(round(reason.start_s))  # no new row for a moment's change
            row["promised"] = reason.is_promised
    return {
        "jobs": [*rows.values()],
        "order": [row["jobid"] for row in rows.values()],
    }


async def _blocked(handle: Asking, queue: str | None) -> str:
    try:
        return queue_reason(await handle.rpc("job-manager.queue-status", {"name": queue} if queue else {}))
    except RPCError:
        if handle.is_gone:
            raise
        return ""


# ---- feed `job`

JOB_ASKED_EVERY_S, JOB_REFRESHED_EVERY_S = 0.25, 5.0
"""Minimum interval between requests for the record, and the interval while nothing happens."""


class JobFeed:
    """Feed of the job with one id; of a job of another user a guest has neither events nor output (None)."""

    def __init__(self, params: Params) -> None:
        self._id = parse_jobid(params.text("id"))
        self._is_terminal = bool(params.count("terminal", 0, 1, least=0))
        """True if the viewer reads colours, returns of the carriage and tasks."""
        self._snapshot: dict[str, Any] | None = None
        self._changed = asyncio.Event()
        self._memory: int | None = None
        """The memory that it asked for (bytes), 0 for none; None while that is not known."""
        self._ngpus = 0
        self._written = 0
        self._is_told = False
        self._printed = asyncio.Event()
        """Set when there is no more output to come."""
        self._is_own = True
        """False for a viewer who may see the job, but neither its events nor its output."""

    def current(self) -> Body | None:
        return self._snapshot if self._is_told else None

    async def run(self, handle: Asking, listener: FeedListener) -> None:
        events = await self._events(handle)
        self._is_own = events is not None
        record, self._written = await self._asked(handle, events or ()), 0
        told = {"events": events and events[-KEPT_MAX:], "output": [] if self._is_own else None, "output_left_out": 0}
        self._snapshot = {**record, **told}
        self._is_told = False
        self._printed.clear()
        if not self._is_own:
            self._printed.set()
        parts = [self._tell_first(listener), self._ask_again(handle, listener)]
        if events is not None:
            parts += [self._follow_events(handle, listener, len(events)), self._follow_output(handle, listener)]
        await together(*parts)

    async def _events(self, handle: Asking) -> list[Any] | None:
        """Return the events; None for a guest, whose job it is not."""
        try:
            found: list[Any] = (await handle.rpc("job-manager.lookup", {"id": self._id, "keys": ["eventlog"]}))[
                "eventlog"
            ]
        except RPCError as fault:
            if handle.is_gone or fault.errnum != errno.EPERM:
                raise
            return None
        return found

    async def _tell_first(self, listener: FeedListener) -> None:
        """Send the first snapshot, with what the job has printed so far: a page without script shows nothing else."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._printed.wait(), WAIT_S)
        self._is_told = True
        listener.snapshot(self._snapshot or {})

    def _tell(self, listener: FeedListener, delta: dict[str, Any]) -> None:
        self._snapshot = after(self._snapshot or {}, delta)
        if self._is_told:
            listener.delta(delta)

    async def _asked(self, handle: Asking, events: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the record, why, and what it used; a job of another user may be seen, and the reason not."""
        found = (await handle.rpc("job-manager.list", {"ids": [self._id]}))["jobs"]
        if not found:
            raise RPCError(f"no such job: {format_f58(self._id)}", errno.ENOENT)
        try:
            why = await handle.rpc("job-manager.why", {"id": self._id})
        except RPCError:
            if handle.is_gone:
                raise
            why = None
        used = finish_usage(events)
        if (
            used is None and self._is_own and found[0]["state"] not in ("RUN", *PENDING)
        ):  # it has ended since, or not all have arrived
            log = await handle.rpc("job-manager.lookup", {"id": self._id, "keys": ["eventlog"]})
            used = finish_usage(log["eventlog"])
        body, used = job_body(found[0], SystemClock.wall_s()), await self._usage(handle, found[0], used)
        return {"job": body, "why": why and {**why, "id": format_f58(self._id)}, "usage": used}

    async def _usage(
        self, handle: Asking, info: Mapping[str, Any], used: Mapping[str, Any] | None
    ) -> dict[str, Any] | None:
        """Return what it used against what it asked for. Only for viewers a running job is measured."""
        if not (info.get("t_run") and self._is_own):
            return None
        try:
            if self._memory is None:
                r = (await handle.rpc("job-manager.lookup", {"id": self._id, "keys": ["R"]})).get("R")
                self._memory, self._ngpus = memory_held(r), gpus_held(r)
                if self._memory:  # else its jobspec, which may be large, is not needed
                    record = await handle.rpc("job-manager.lookup", {"id": self._id, "keys": ["jobspec"]})
                    self._memory = memory_asked(record.get("jobspec"), r) or 0
            if used is None and info["state"] == "RUN":
                used = (await handle.rpc("job-manager.usage", {"id": self._id}))["usage"]
        except RPCError:
            if handle.is_gone:
                raise
        return efficiency(info, used, self._memory or None, self._ngpus)._asdict()

    async def _follow_events(self, handle: Asking, listener: FeedListener, known: int) -> None:
        """Send the listener the events after the `known` ones of the record."""
        with streaming(handle, "job-manager.eventlog", {"id": self._id, "follow": True}) as answers:
            async for answer in answers:
                events = answer["events"][known:]
                known = max(0, known - len(answer["events"]))
                if events:
                    self._tell(listener, {"events": events})
                    self._changed.set()

    async def _follow_output(self, handle: Asking, listener: FeedListener) -> None:
        readers: dict[tuple[str, int], OutputReader] = {}
        with streaming(handle, "job-manager.output", {"id": self._id, "follow": True}) as answers:
            async for answer in answers:
                source = answer["stream"], answer.get("task") or 0
                reader = readers.setdefault(source, OutputReader(is_terminal=self._is_terminal))
                self._tell_output(listener, source, reader.read(answer["data"]))
        for source, reader in readers.items():
            self._tell_output(listener, source, reader.end())
        self._printed.set()

    def _tell_output(self, listener: FeedListener, source: tuple[str, int], text: str) -> None:
        if not text:
            return
        self._written += len(text)
        stream, task = source
        name = f"{stream} {task}" if self._is_terminal and self._has_tasks() else stream
        left_out = max(0, self._written - OUTPUT_CHARS_MAX)
        self._tell(listener, {"output": [[name, text[-OUTPUT_CHARS_MAX:]]], "output_left_out": left_out})

    async def _ask_again(self, handle: Asking, listener: FeedListener) -> None:
        while self._is_active():
            try:
                await asyncio.wait_for(self._changed.wait(), JOB_REFRESHED_EVERY_S)
                await asyncio.sleep(JOB_ASKED_EVERY_S)
            except TimeoutError:
                pass
            self._changed.clear()
            record = await self._asked(handle, (self._snapshot or {})["events"] or ())
            before: Mapping[str, Any] = self._snapshot or {}
            if delta := {key: value for key, value in record.items() if before.get(key) != value}:
                self._tell(listener, delta)
        await asyncio.Event().wait()  # nothing more comes of it: its viewers keep what they have

    def _has_tasks(self) -> bool:
        return bool(self._snapshot and self._snapshot["job"]["ntasks"] > 1)

    def _is_active(self) -> bool:
        return bool(self._snapshot and self._snapshot["job"]["state"] != "INACTIVE")


_SEQUENCE = re.compile(
    r"(?P<sgr>\x1b\[[0-9;:]{0,64}m)"
    r"|\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]"  # moves the cursor, clears, asks
    r"|\x1b\][^\x07\x1b]{0,2048}(?:\x07|\x1b\\)"  # titles and links
    r"|\x1b[ -/]{0,8}[0-Z\\^-~]"
)
_BEGUN = re.compile(r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}|\][^\x07\x1b]{0,2048}\x1b?|[ -/]{0,8})\Z|\r\Z")
"""A sequence, or a line's end, that the next piece may complete."""


class OutputReader:
    """Reader of what one task writes to one stream: text of several lines from bytes in pieces.

    Tabs and ends of lines stay, and all else that controls a terminal is spelled out (`\x1b`). For a viewer that reads
    them (`is_terminal`) colours (SGR) and returns of the carriage stay, too, and other sequences are left out.
    """

    def __init__(self, *, is_terminal: bool) -> None:
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._is_terminal = is_terminal
        self._begun = ""

    def read(self, data: bytes) -> str:
        """Return the text of the next piece."""
        text = self._begun + self._decoder.decode(data)
        found = _BEGUN.search(text)
        self._begun = found[0] if found and self._is_terminal else ""
        text = text.removesuffix(self._begun).replace("\r\n", "\n")
        if not self._is_terminal:
            return _spelled_out(text, "\n\t")
        parts, at = [], 0
        for sequence in _SEQUENCE.finditer(text):
            parts += [_spelled_out(text[at : sequence.start()], "\n\t\r"), sequence["sgr"] or ""]
            at = sequence.end()
        return "".join([*parts, _spelled_out(text[at:], "\n\t\r")])

    def end(self) -> str:
        """Return what was begun and will not be completed."""
        return _spelled_out(self._begun, "\n\t\r")


def _spelled_out(text: str, kept: str) -> str:
    return UNPRINTABLE.sub(lambda found: found[0] if found[0] in kept else printable(found[0]), text)


# ---- feed `groups`

GROUPS_EVERY_S = 1.0
HOLDERS_MAX = 20
"""Maximum number of jobs named in a group as those that keep targets from leaving."""


class GroupsQuestion:
    """Requests for the topic of groups."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    async def ask(self, handle: Asking, machine: LiveMachine) -> dict[str, Any]:
        """Return groups as `resource.groups` has them, each with the number of its targets by state, queues with their
        jobs, and jobs on targets that leave, by group.
        """
        answer, names = await asyncio.gather(handle.rpc("resource.groups"), handle.rpc("job-manager.queue-list"))
        wanted = [{"name": name} for name in names["queues"]] or [{}]
        statuses = await asyncio.gather(*[handle.rpc("job-manager.queue-status", one) for one in wanted])
        counts = await queue_counts(handle, self._figures)
        queues = [queue_body(status, counts.get(status.get("name") or "")) for status in statuses]
        groups = [{**group, "states": _states_of(group, machine)} for group in answer["groups"]]
        return {"groups": groups, "queues": queues, "holders": await holders(handle, answer["groups"])}


def _states_of(group: Mapping[str, Any], machine: LiveMachine) -> dict[str, int]:
    """Return the number of targets of a group by state, in the order of the legend, of those that it has."""
    members = Idset.parse(group["targets"])
    found = {state.word: len(members & machine.states.parts.get(state.word, EMPTY)) for state in STATES}
    return {state: number for state, number in found.items() if number}


def queue_body(status: Mapping[str, Any], counts: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a queue as viewers get it; numbers of jobs are null where figures are refused."""
    return {
        **status,
        "name": status.get("name") or "",
        "group": status.get("group") or "default",
        "enabled": status["enable"],
        "started": status["start"],
        "waiting": counts["pending"] if counts else None,
        "running": counts["running"] if counts else None,
    }


async def holders(handle: Asking, groups: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Jobs on targets that are leaving: `[jobid, targets, end (0: none), user, name]`, by the group that they leave."""
    leaving = {group["name"]: Idset.parse(group["leaving"]) for group in groups if group["leaving"]}
    wanted = EMPTY
    for ranks in leaving.values():
        wanted |= ranks
    if not wanted:
        return {}
    answer = await handle.rpc("job-manager.running", {"targets": str(wanted), "max_entries": HOLDERS_MAX})
    return {
        name: [
            [format_f58(jobid), str(here), end_s, user_name(userid), title]
            for jobid, text, _, end_s, _, userid, _, title, _ in answer["jobs"]
            if (here := Idset.parse(text) & ranks)
        ]
        for name, ranks in leaving.items()
    }


# ---- feed `queues`

QUEUES_EVERY_S = 3.0
QUEUE_JOBS_MAX = 100
"""Waiting jobs of a queue, its first ones, whose reasons are counted: a scheduler has to explain each."""
HELD_JOBS_MAX = 1000
"""Maximum number of running jobs whose nodes and cores are summed up by queue."""
NOT_ONLINE = ("offline", "lost")
"""States of targets that are not online."""
ACCOUNT_POLICY = "fair"
"""Policy whose accounts the view of shares shows."""


class QueuesFeed:
    """Feed of the queues: their targets, jobs, limits and states, and why and how long their first jobs wait."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self._polled = MachinePolledFeed(self._ask, QUEUES_EVERY_S)
        self._reasons: dict[str, JobReasons] = {}

    def current(self) -> Body | None:
        return self._polled.current()

    async def run(self, handle: Asking, listener: FeedListener) -> None:
        self._reasons = {}
        try:
            await self._polled.run(handle, listener)
        finally:
            for reasons in self._reasons.values():
                await reasons.close()

    async def _ask(self, handle: Asking, machine: LiveMachine) -> dict[str, Any]:
        names, config = await asyncio.gather(handle.rpc("job-manager.queue-list"), handle.rpc("config.get"))
        counts = await queue_counts(handle, self._figures)
        limits = config.get("limits") or ()
        used = {name: {"running": one["running"], "waiting": one["pending"]} for name, one in counts.items()}
        if used and any("queue" in limit and limit.keys() & {"nodes", "cores"} for limit in limits):
            for name, held in (await held_by_queue(handle)).items():
                used.setdefault(name, {}).update(held)
        return {"queues": [await self._queue(handle, name, limits, used, machine) for name in names["queues"] or [""]]}

    async def _queue(
        self,
        handle: Asking,
        name: str,
        limits: Sequence[Mapping[str, Any]],
        used: Mapping[str, Mapping[str, int]],
        machine: LiveMachine,
    ) -> dict[str, Any]:
        wanted = {"name": name} if name else {}
        status = await handle.rpc("job-manager.queue-status", {**wanted, "waiting": QUEUE_JOBS_MAX})
        ids, mine = status.get("waiting") or (), used.get(name, {})
        rows = []
        if ids:
            reasons = self._reasons.setdefault(name, JobReasons(self._polled.hurry))
            wanted = list_request((), ids, True, None, len(ids))
            found = (await handle.rpc("job-manager.list", {**wanted, "order": "active"}))["jobs"]
            rows = (await with_reasons(handle, found, reasons, with_kinds=True))["jobs"]
        state, why = queue_state(status)
        groups = status.get("groups") or [status.get("group") or "default"]
        return {
            "name": name, "groups": groups, "policy": status.get("policy"), "state": state, "reason": why,
            "has_accounts": str(status.get("policy")).partition(":")[0] == ACCOUNT_POLICY,
            "targets": await self._targets(handle, name, groups, machine),
            "running": mine.get("running"), "waiting": mine.get("waiting"),
            "limits": queue_limits(status, limits, mine),
            **waits_of(rows, is_blocked=not status["start"]),
        }  # fmt: skip

    async def _targets(self, handle: Asking, name: str, groups: Sequence[str], machine: LiveMachine) -> dict[str, int]:
        """Return the numbers of targets that the queue's jobs may use."""
        parts, members = machine.states.parts, EMPTY
        if name:
            members = Idset.parse((await handle.rpc("resource.targets", {"targets": f"queue:{name}"}))["targets"])
        for group in machine.groups if not name else ():
            members |= Idset.parse(group["targets"]) if group["name"] in groups else EMPTY
        away = sum([len(members & parts.get(state, EMPTY)) for state in NOT_ONLINE])
        return {"total": len(members), "online": len(members) - away, "free": len(members & parts.get("free", EMPTY))}


async def queue_counts(handle: Asking, figures: Figures) -> Mapping[str, Mapping[str, Any]]:
    """Return the numbers of jobs of each queue by its name; none where figures are refused."""
    try:
        return {queue["name"]: queue for queue in (await figures.ask(handle))["queues"]}
    except RPCError:
        if handle.is_gone:
            raise
        return {}


async def held_by_queue(handle: Asking) -> dict[str, dict[str, int]]:
    """Return the nodes and cores that the running jobs of each queue hold; nothing if more than HELD_JOBS_MAX run."""
    answer = await handle.rpc("job-manager.running", {"max_entries": HELD_JOBS_MAX})
    found: dict[str, dict[str, int]] = defaultdict(lambda: {"nodes": 0, "cores": 0})
    for _, targets, _, _, cores, _, queue, *_ in answer["jobs"] if not answer["left_out"] else ():
        found[queue]["nodes"] += len(Idset.parse(targets))
        found[queue]["cores"] += cores
    return found


def waits_of(rows: Sequence[Mapping[str, Any]], *, is_blocked: bool) -> dict[str, Any]:
    """Return the kinds of reasons with their numbers, the most frequent first, how many jobs were looked at, and the
    first that is neither held nor depends on others; none starts while the queue is blocked.
    """
    waiting = [row for row in rows if row["state"] in PENDING]
    kinds = Counter([row["kind"] for row in waiting if row.get("kind")])
    head = None if is_blocked else next(filter(_is_ready, waiting), None)
    return {
        "reasons": [[kind, number] for kind, number in kinds.most_common()],
        "looked_at": len(waiting),
        "head": head and {
            "jobid": head["jobid"], "start": head["estimate"], "promised": bool(head.get("promised")),
            "reason": head["reason"],
        },
    }  # fmt: skip


def _is_ready(row: Mapping[str, Any]) -> bool:
    """Return whether a waiting job is neither held nor depends on others."""
    return bool(row["state"] == "SCHED" and row["urgency"] and row.get("priority") != 0)


# ---- feed `notices`

NOTICES_EVERY_S = 5.0
"""Interval between requests for notices (seconds): a person sets them, and others read them some time later."""


async def ask_notices(handle: Asking) -> dict[str, Any]:
    """Return `instance.notice-list`."""
    found: dict[str, Any] = await handle.rpc("instance.notice-list")
    return found


# ---- feed `shares`

SHARES_EVERY_S = 2.0


class SharesQuestion:
    """The accounts of one group, or of all groups that a scheduler with accounts serves."""

    def __init__(self, params: Params) -> None:
        self._group = params.text("group")

    async def ask(self, handle: Asking) -> dict[str, Any]:
        """`accounts` and the settings of one group, and the names of all `groups` that have some; `accounts` is null
        where none has, and `why` says so.
        """
        names = [group["name"] for group in (await handle.rpc("resource.groups"))["groups"] if group["acquired"]]
        found, why = dict[str, dict[str, Any]](), "no scheduler has acquired a group"
        for name in names:
            try:
                found[name] = await accounts_of(handle, name)
            except RPCError as fault:
                if handle.is_gone:
                    raise
                why = str(fault)
        group = self._group or next(iter(found), "")
        if group not in found:
            return {"accounts": None, "why": why, "group": group, "groups": list(found)}
        return {**found[group], "group": group, "groups": list(found)}


async def accounts_of(handle: Asking, group: str) -> dict[str, Any]:
    """All parts of the answer as one."""
    found: dict[str, Any] = {}
    start: int | None = 0
    while start is not None:
        part = await handle.rpc("sched.accounts", {"group": group, "start": start})
        start = part.pop("next")
        found = part | {"accounts": [*found.get("accounts", ()), *part["accounts"]]}
    return found


# ---- feed `history`

HISTORY_EVERY_S = 10.0
POINTS_DEFAULT, POINTS_MAX = 600, 4000
"""Steps of a figure: about as many as a screen has columns."""
DAY_S = 86400.0
REPORT_BY: tuple[str, ...] = get_args(ReportBy)
"""Attributes by which a report may sum."""


FIRST_RANGES_S = (900.0, 3600.0, 21600.0)
"""Periods shown without `since`: the shortest that has all samples of a young instance, else a day."""


class HistoryQuestion:
    """One period; the report is by user, bank, queue, group or property."""

    def __init__(self, params: Params) -> None:
        self._period = Period(params, -DAY_S, 0.0)
        self._is_chosen = "since" in params or "until" in params
        self._points = params.count("points", POINTS_DEFAULT, POINTS_MAX)
        self._days = bool(params.count("days", 0, 1, least=0))
        self._by = params.text("by") or REPORT_BY[0]
        if self._by not in REPORT_BY:
            raise InvalidValue(f"view history: by {not_among([self._by[:SHOWN_CHARS]], REPORT_BY)}")

    async def ask(self, handle: Asking) -> dict[str, Any]:
        """Return the three answers, with the names of users; null what is refused, where something is not."""
        now_s = SystemClock.wall_s()
        since_s, until_s = self._period.bounds_s(now_s)
        if not self._is_chosen:
            since_s = await self._first_since_s(handle, since_s, now_s)
        period = {"since": since_s, "until": until_s}
        answers = await asyncio.gather(
            handle.rpc("history.samples", {**period, "points_max": self._points}),
            handle.rpc("history.intervals", period),
            handle.rpc("history.report", {**period, "by": self._by, **({"days": True} if self._days else {})}),
            return_exceptions=True,
        )
        faults = [answer for answer in answers if isinstance(answer, BaseException)]
        for fault in faults:
            if handle.is_gone or len(faults) == len(answers) or not isinstance(fault, RPCError):
                raise fault
        samples, states, report = [None if isinstance(answer, BaseException) else answer for answer in answers]
        return {"now": now_s, **period, "samples": samples, "intervals": states and states["intervals"],
                "observed": states and states["observed"], "report": report and named(report)}  # fmt: skip

    async def _first_since_s(self, handle: Asking, since_s: float, now_s: float) -> float:
        """Return the beginning of a first look at an instance, which may be younger than a day."""
        try:
            times_s = (await handle.rpc("history.samples", {"since": since_s, "until": now_s}))["t"]
        except RPCError:
            if handle.is_gone:
                raise
            return since_s  # refused here, and again with the reason by `ask`
        age_s = now_s - times_s[0] if times_s else 0.0
        self._is_chosen = age_s > FIRST_RANGES_S[-1]  # it will not grow younger
        return next((now_s - range_s for range_s in FIRST_RANGES_S if age_s <= range_s), since_s)


def named(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report whose users have names."""
    if report.get("by") != "user":
        return report
    return report | {"rows": [row | {"name": _name(row["name"])} for row in report["rows"]]}


def _name(userid: str) -> str:
    return user_name(int(userid)) if userid.isdecimal() else userid


# ---- feed `messages`


class MessagesFeed:
    """Feed of messages whose topics have one of some beginnings; begins empty."""

    def __init__(self, params: Params) -> None:
        self._topics = list(params.words("topics"))
        self._kept: list[Any] = []
        self._dropped = 0
        self._has_begun = False

    def current(self) -> Body | None:
        return {"messages": self._kept, "dropped": self._dropped} if self._has_begun else None

    async def run(self, handle: Asking, listener: FeedListener) -> None:
        """See `Feed`; `dropped` counts since it began."""
        with streaming(handle, "instance.trace", {"topics": self._topics}) as answers:
            self._has_begun = True
            listener.snapshot({"messages": self._kept, "dropped": self._dropped})
            async for answer in answers:
                self._kept = [*self._kept, *answer["messages"]][-KEPT_MAX:]
                self._dropped += answer["dropped"]
                listener.delta({"messages": answer["messages"], "dropped": self._dropped})
