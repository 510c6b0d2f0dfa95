"""The shell's event loop: everything that happens, happens in a turn.

A turn handles what has arrived, fires the timers that are due and continues long work, for `SHARE_S` seconds each at
most; then it runs the end-of-turn hooks once, in order: publish, store, flush. So no turn takes 20 ms, however much
there is to do. Other sources of events (a socket, a child process, the writer thread) only call `post` or `wake`;
nothing is handled in the middle of something else.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from fluxsched.runtime.system.clock import Clock
from fluxsched.runtime.system.logs.format import Subject

SHARE_S = 0.004
"""Time a turn spends on arrivals, on timers and on long work before it flushes (seconds): each has its share, so none
starves another; enough to bundle, and no request waits 20 ms."""
PIECE_ITEMS = 64
"""Items of long work that are done before others may have their turn; none should take longer than 50 us."""

T = TypeVar("T")
EventSource = Callable[[float], bool]
Work = Iterator[None]
"""Long work: it yields wherever other events may be handled first."""


class Timer:
    """A handle for one delayed call; `cancel()` is idempotent."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Make the timer do nothing when it comes due."""
        self.call = None


class Turns:
    """Runs turns on an asyncio loop; one timer heap with one loop timer."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.wall_s = clock.wall_s()
        self.count = 0
        self.handling: Subject | None = None
        """What log lines are about that are written now: a request, or none."""
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
        self.failed: Callable[[BaseException], None] | None = None
        """Called with what ends the turns."""
        self.noted: Callable[[str, Exception], None] | None = None
        """Called with what ends one call only, and the name of that call; without it such a fault ends the turns, too.
        """

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to run turns on `loop`."""
        self._loop = loop
        self.wake()

    def attach(self, start: Callable[[asyncio.AbstractEventLoop, Callable[[], None]], None]) -> None:
        """Start one end of a connection, which wakes these turns; they must have been started."""
        assert self._loop is not None, "connections are made in turns"
        start(self._loop, self.wake)

    def report_bug(self, what: str, exc: Exception) -> None:
        """Report an unexpected exception; raise it again where none is reported."""
        if self.noted is None:
            raise exc
        self.noted(what, exc)

    def run_isolated(
        self, call: Callable[[], object], what: str, failed: Callable[[Exception], None] | None = None
    ) -> None:
        """Run a call whose fault must end nothing else; `failed` is called with it."""
        try:
            call()
        except Exception as exc:  # a bug in this call: the others continue
            self.report_bug(what, exc)
            if failed is not None:
                failed(exc)

    def isolated_work(self, work: Work, failed: Callable[[Exception], None] | None = None) -> Work:
        """The same for long work."""
        try:
            yield from work
        except Exception as exc:  # a bug in this work: the others continue
            self.report_bug("long work", exc)
            if failed is not None:
                failed(exc)

    def stop(self) -> None:
        """Run no further turns."""
        self._loop = None
        if self._alarm is not None:
            self._alarm.cancel()

    def source(self, take: EventSource) -> None:
        """Register what a turn drains: `take(until_s)` handles events until then and says whether there are more."""
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
        """The same from another thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self.post, call)

    def wake(self) -> None:
        """Make sure that a turn comes soon."""
        if not self._scheduled and self._loop is not None:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Run `call` in a turn, `delay_s` seconds from now at the earliest."""
        timer = Timer(call)
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
            if self.failed is None:
                raise
            self.failed(exc)

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
        """Fire the timers that were due at `now_s`; whether some have to wait for the next turn."""
        until_s = now_s + SHARE_S
        while self._timers and self._timers[0][0] <= now_s:
            timer = heapq.heappop(self._timers)[2]
            call, timer.call = timer.call, None
            if call is not None:
                self.run_isolated(call, "a timer")
                if self.clock.monotonic_s() > until_s:
                    return True
        return False

    def _run_posted(self, until_s: float) -> None:
        """Do what was posted, then what goes first, then long work, a piece of each in turn; at least one call and one
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


def pieces(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """The items, as many at a time as long work may do in one go."""
    for start in range(0, len(items), PIECE_ITEMS):
        yield items[start : start + PIECE_ITEMS]
