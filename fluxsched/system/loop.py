"""The event loop: everything that happens, happens in a turn.

A turn handles what has arrived, fires the timers that are due and continues long work, for `SHARE_S` seconds each at
most; then it runs the end-of-turn hooks once, in order: publish, store, flush. So no turn takes 20 ms, however much
there is to do. Other sources of events (a socket, a child process that ends, the writer thread) only call `post` or
`wake`; nothing is handled in the middle of something else.

Law: a fault ends the call in which it occurred and no other; it is logged with its traceback and counted. A handler
decides before it changes anything, so that its state is consistent afterwards. Only where later calls depend on what
was not done (the hooks at the end of a turn) does a fault still end the instance.
"""

from __future__ import annotations

import asyncio
import errno
import heapq
import itertools
import os
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, Protocol, TypeVar

from fluxsched.errors import FluxschedError, LocalProtocolError
from fluxsched.protocol.messages.instance import HistogramValue
from fluxsched.system.clock import Clock
from fluxsched.system.log import Subject, logger

SHARE_S = 0.004
"""Time a turn spends on arrivals, on timers and on long work before it flushes (seconds): each has its share, so none
starves another; enough to bundle, and no request waits 20 ms.
"""
PIECE_ITEMS = 64
"""Items of long work that are done before others may have their turn; none should take longer than 50 us."""

T = TypeVar("T")
EventSource = Callable[[float], bool]
OnFailure = Callable[[BaseException], None]
OnBug = Callable[[str, Exception], None]
StartConnection = Callable[[asyncio.AbstractEventLoop, Callable[[], None]], None]
Work = Iterator[None]
"""Long work: it yields wherever other events may be handled first."""


class Timer:
    """A handle for one delayed call, with its arguments if it has any; `cancel()` is idempotent."""

    __slots__ = ("arguments", "call")

    def __init__(self, call: Callable[..., None], arguments: tuple[Any, ...] = ()) -> None:
        self.call: Callable[..., None] | None = call
        self.arguments = arguments

    def cancel(self) -> None:
        """Cancel the timer: nothing is called when it expires."""
        self.call = None


class Turns:
    """Runs turns on an asyncio loop; one timer heap with one loop timer."""

    def __init__(self, clock: Clock, failed: OnFailure | None = None, noted: OnBug | None = None) -> None:
        """`failed` is called with the exception that ends the turns; `noted` with one that ends one call only, and the
        name of that call: without it such a fault ends the turns, too.
        """
        self.clock = clock
        self.wall_s = clock.wall_s()
        self.count = 0
        self.handling: Subject | None = None
        """Subject of log lines that are written now: a request, or None."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._posted: deque[Callable[[], None]] = deque()
        self._works: deque[Work] = deque()
        self._first: deque[Work] = deque()
        self._sources: list[EventSource] = []
        self._hooks: list[Callable[[], None]] = []
        self._timers: list[tuple[float, int, Timer]] = []
        self._sequence = itertools.count()
        self._scheduled = False
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at_s = 0.0
        self._failed = failed
        self._noted = noted

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to run turns on `loop`."""
        self._loop = loop
        self.wake()

    def attach(self, start: StartConnection) -> None:
        """Start one end of a connection, which wakes these turns; they must have been started."""
        assert self._loop is not None, "connections are made in turns"
        start(self._loop, self.wake)

    def report_bug(self, what: str, exc: Exception) -> None:
        """Report an unexpected exception; raise it again where none is reported."""
        if self._noted is None:
            raise exc
        self._noted(what, exc)

    def run_isolated(
        self,
        call: Callable[..., object],
        what: str,
        failed: Callable[[Exception], None] | None = None,
        arguments: tuple[Any, ...] = (),
    ) -> None:
        """Run a call whose fault must end nothing else; `failed` is called with the fault."""
        try:
            call(*arguments)
        except Exception as exc:  # a bug in this call: the others continue
            self.report_bug(what, exc)
            if failed is not None:
                failed(exc)

    def isolated_work(self, work: Work, failed: Callable[[Exception], None] | None = None) -> Work:
        """Do long work; a bug in it is reported and does not affect other work."""
        try:
            yield from work
        except Exception as exc:  # a bug in this work: the others continue
            self.report_bug("long work", exc)
            if failed is not None:
                failed(exc)

    def stop(self) -> None:
        """Stop the loop: run no further turns."""
        self._loop = None
        if self._alarm is not None:
            self._alarm.cancel()

    def source(self, take: EventSource) -> None:
        """Register a source that turns drain: `take(until_s)` handles events until then and returns whether there are
        more.
        """
        self._sources.append(take)

    def at_end(self, hook: Callable[[], None]) -> None:
        """Register a hook that every turn runs once at its end, in order of registration."""
        self._hooks.append(hook)

    def post(self, call: Callable[[], None]) -> None:
        """Have `call` run in the next turn (from the loop's own thread)."""
        self._posted.append(call)
        self.wake()

    def spread(self, work: Work, failed: Callable[[Exception], None] | None = None) -> None:
        """Have long work done in pieces, a piece of each in turn (from the loop's own thread)."""
        self._works.append(self.isolated_work(work, failed))
        self.wake()

    def spread_first(self, work: Work) -> None:
        """Have work done in pieces before all that was spread: many short answers, for which long ones give way."""
        self._first.append(self.isolated_work(work))
        self.wake()

    def post_threadsafe(self, call: Callable[[], None]) -> None:
        """Post a call from another thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self.post, call)

    def wake(self) -> None:
        """Ensure that a turn is run soon."""
        if not self._scheduled and self._loop is not None:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def after(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> Timer:
        """Run `call` with these arguments in a turn, `delay_s` seconds from now at the earliest."""
        timer = Timer(call, arguments)
        due_s = self.clock.monotonic_s() + max(0.0, delay_s)
        heapq.heappush(self._timers, (due_s, next(self._sequence), timer))
        if not self._scheduled:  # a turn sets the alarm when it ends
            self._arm()
        return timer

    def _arm(self) -> None:
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        if self._loop is None or not self._timers:
            return
        due_s = self._timers[0][0]
        if self._alarm is not None:
            if self._alarm_at_s <= due_s:
                return
            self._alarm.cancel()
        self._alarm_at_s = due_s
        self._alarm = self._loop.call_later(max(0.0, due_s - self.clock.monotonic_s()), self._alarmed)

    def _alarmed(self) -> None:
        self._alarm = None
        self.wake()

    def _turn(self) -> None:
        if self._loop is None:
            self._scheduled = False
            return
        try:
            self._run()
        except Exception as exc:  # last resort of the shell: a bug ends the instance, with its traceback
            self._scheduled = False
            if self._failed is None:
                raise
            self._failed(exc)

    def _run(self) -> None:
        self.count += 1
        self.wall_s = self.clock.wall_s()
        until_s = self.clock.monotonic_s() + SHARE_S
        more = False
        for take in self._sources:
            more |= take(until_s)
        self.handling = None
        more |= self._fire(self.clock.monotonic_s())
        self._run_posted(self.clock.monotonic_s() + SHARE_S)
        # turns asked for until now were about the hooks below; without this every second turn was empty
        self._scheduled = False
        for hook in self._hooks:
            hook()
        if more or self._posted or self._first or self._works:
            self.wake()
        self._arm()

    def _fire(self, now_s: float) -> bool:
        """Call the timers that were due at `now_s`; return whether some have to wait for the next turn."""
        until_s = now_s + SHARE_S
        while self._timers and self._timers[0][0] <= now_s:
            timer = heapq.heappop(self._timers)[2]
            call, timer.call = timer.call, None
            if call is not None:
                self.run_isolated(call, "a timer", None, timer.arguments)
                if self.clock.monotonic_s() > until_s:
                    return True
        return False

    def _run_posted(self, until_s: float) -> None:
        """Run posted calls, then preferred work, then long work, a piece of each in turn; at least one call and one
        piece, so that nothing starves.
        """
        while self._posted:
            self.run_isolated(self._posted.popleft(), "a posted call")
            if self.clock.monotonic_s() > until_s:
                break
        for works in (self._first, self._works):
            while works:
                work = works.popleft()
                if next(work, _DONE) is not _DONE:
                    works.append(work)
                if self.clock.monotonic_s() > until_s:
                    break


_DONE = object()


# ---- many parts, few of which have something to do in a turn


class TurnHooks(Protocol):
    """Registration of a part with turns: `Turns` themselves, or a member of a group of them."""

    def source(self, take: EventSource) -> None: ...

    def at_end(self, hook: Callable[[], None]) -> None: ...

    def attach(self, start: StartConnection) -> None: ...

    def wake(self) -> None:
        """Ensure that a turn is run soon, with this part's hooks."""
        ...


class TurnGroup:
    """Parts of one kind: a turn runs the sources and hooks of those only that were woken.

    An instance has thousands of hosts, and a ping of one of them is no reason to look at all.
    """

    def __init__(self, turns: Turns) -> None:
        """Register the group with the turns: its members have its place in the order of sources and hooks."""
        self.turns = turns
        self.arrived: dict[TurnMember, None] = {}
        """Members whose connections have something to receive."""
        self.due: dict[TurnMember, None] = {}
        """Members whose hooks are run at the end of the turn."""
        turns.source(self._take)
        turns.at_end(self._end)

    def _take(self, until_s: float) -> bool:
        arrived, self.arrived = self.arrived, {}
        for member in arrived:
            more = [take(until_s) for take in member.sources]
            if any(more):
                self.arrived[member] = None
        return bool(self.arrived)

    def _end(self) -> None:
        due, self.due = self.due, {}
        for member in due:
            for hook in member.hooks:
                hook()
        if self.arrived:
            self.turns.wake()


class TurnMember:
    """One part of a group: `TurnHooks`."""

    def __init__(self, group: TurnGroup) -> None:
        self.sources: list[EventSource] = []
        self.hooks: list[Callable[[], None]] = []
        self._group = group

    def source(self, take: EventSource) -> None:
        """Register a source, which is drained when a connection of this member has something to receive."""
        self.sources.append(take)

    def at_end(self, hook: Callable[[], None]) -> None:
        """Register a hook, which is run at the end of turns for which this member was woken."""
        self.hooks.append(hook)

    def attach(self, start: StartConnection) -> None:
        """Start one end of a connection, which wakes this member."""
        self._group.turns.attach(lambda loop, _: start(loop, self._has_arrived))

    def _has_arrived(self) -> None:
        self._group.arrived[self] = None
        self._group.turns.wake()

    def wake(self) -> None:
        """Ensure that a turn is run soon, with the hooks of this member at its end."""
        self._group.due[self] = None
        self._group.turns.wake()


# ---- pieces of long work


def pieces(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the items, as many at a time as long work may handle at once."""
    for start in range(0, len(items), PIECE_ITEMS):
        yield items[start : start + PIECE_ITEMS]


# ---- faults that the loop reports

log = logger("instance")


class Faults:
    """Logs and counts unexpected exceptions."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, what: str, exc: Exception) -> None:
        """Log a fault with its traceback; `what` names the call in which it was raised."""
        self.count += 1
        log.error("%s: a fault of fluxsched, please report it: %s", what, exc, exc_info=exc)


def is_expected(exc: Exception) -> bool:
    """Return whether the exception is a response to a request, not a bug."""
    return isinstance(exc, FluxschedError) and not isinstance(exc, LocalProtocolError)


def error_answer(topic: str, exc: Exception) -> tuple[int, str]:
    """Return errno and text of the error response to a request whose handler raised `exc`.

    A value that was not checked is still the sender's fault (EINVAL); any other unexpected exception is ours (EIO).
    """
    if isinstance(exc, FluxschedError):
        return exc.errnum, str(exc)
    said = f"{type(exc).__name__}: {exc}"
    if isinstance(exc, ValueError | OverflowError):
        return errno.EINVAL, f"{topic}: some value in the request cannot be used ({said})"
    return errno.EIO, f"{topic}: a fault of fluxsched ended this call ({said}): the instance's log has the traceback"


# ---- histograms

SHORT_S: Final[tuple[float, ...]] = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0
)  # fmt: skip
"""Bounds for what a program does: a transaction, a pass (seconds)."""
CONSIDERED_S: Final[tuple[float, ...]] = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0
)  # fmt: skip
"""Bounds for how soon a scheduler looks at a job (seconds); it is later where jobs wait for others first."""
LONG_S: Final[tuple[float, ...]] = (
    0.01, 0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0
)  # fmt: skip
"""Bounds for how long jobs wait, up to a week (seconds), as monitoring has them."""
WAITS_S: Final[tuple[float, ...]] = (
    0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7,
    1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 45.0,
    60.0, 90.0, 120.0, 180.0, 300.0, 450.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0,
    3600.0, 5400.0, 7200.0, 10_800.0, 14_400.0, 21_600.0, 28_800.0, 43_200.0, 64_800.0,
    86_400.0, 129_600.0, 172_800.0, 259_200.0, 432_000.0, 604_800.0, 864_000.0, 1_209_600.0,
    1_814_400.0, 2_592_000.0,
)  # fmt: skip
"""Bounds for the history, up to 30 days: all of LONG_S, and enough between them that each is at most 1.67 times the
previous one. Files have counts by these ranges: a change of them is a change of the form of the store.
"""


class Histogram:
    """Counts of values by upper bounds, which ascend."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Add a value to the counts."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def value(self) -> HistogramValue:
        """Return the counts and the sum so far."""
        return HistogramValue(self._bounds, tuple(self._counts), self._sum)

    def counts(self) -> tuple[int, ...]:
        """Return the counts without bounds and sum."""
        return tuple(self._counts)

    def coarser(self, bounds: tuple[float, ...]) -> HistogramValue:
        """Return all counts until now by some of the bounds."""
        ends = [bisect_left(self._bounds, bound) + 1 for bound in bounds]
        parts = [sum(self._counts[begin:end]) for begin, end in pairwise([0, *ends, len(self._counts)])]
        return HistogramValue(bounds, tuple(parts), self._sum)


def quantile(bounds: Sequence[float], counts: Sequence[float], part: float) -> float | None:
    """Return the value below which this part of the counted values is, as if they were spread evenly over each range;
    None if there are none. Of values above the last bound no more is known.
    """
    wanted, before, low = part * sum(counts), 0.0, 0.0
    if not wanted:
        return None
    for high, count in zip(bounds, counts, strict=False):
        if count and before + count >= wanted:
            return low + (high - low) * (wanted - before) / count
        before, low = before + count, high
    return low


# ---- ends of processes


class ExitWatch:
    """Calls `ended` once when process `pid` (a child) has ended; it is left for the owner to reap."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pid: int, ended: Callable[[], None]) -> None:
        self._loop = loop
        self._fd = os.pidfd_open(pid)
        self._ended = ended
        loop.add_reader(self._fd, self._ready)

    def _ready(self) -> None:
        self.close()
        self._ended()

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1


def ended_status(pid: int) -> int | None:
    """Return the wait status of a child that has ended, and leave it to be reaped; None while it runs.

    Raises ChildProcessError if there is no such child.
    """
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status << 8 if found.si_code == os.CLD_EXITED else found.si_status
