"""Breadth first through every history of the small world.

Law: a level is a number of things that people, agents and accidents do; what follows by itself (messages, the disk,
executors, schedulers) is tried in every order within it. From each state a way must lead back to the first one.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from tests.chaos.checkers.base import Violation
from tests.chaos.exhaustive.machines import INVERSE, broken, exchanged
from tests.chaos.exhaustive.world import Event, NotPossible, State, World

LOOK_EVERY: Final = 256
"""States between two looks at the clock."""


class Found(NamedTuple):
    """What a search has met: states, the levels that are complete, steps tried, events of the longest history, and the
    history that leads to a violation, if there is one.
    """

    states: int
    levels: int
    steps: int
    longest: int
    violation: str
    history: list[Event]


class Search:
    """All states that are met, by their hash, and how each was met first."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.first = world.canonical(world.begin())
        self._known = {hash(self.first)}
        """States from which a way leads back; all that were met are among them."""
        self._met = {hash(self.first)}
        self._before = array("l", [0])
        self._by: list[Event] = [()]
        self._events: dict[Event, Event] = {}
        """Each once: there are some dozens, and millions of steps."""
        self._length = array("i", [0])
        self._steps = 0
        self._ends_s = 0.0

    def run(self, levels: int, until_s: float, say: Callable[[str], None] | None = None) -> Found:
        """Every state of these many levels, or of as many as there is time for, which is up at `until_s`."""
        self._ends_s = until_s
        level, frontier = -1, [(self.first, 0)]
        try:
            while frontier:
                frontier = self._closed(frontier)
                level += 1
                if say is not None:
                    say(f"level {level}: {len(self._met)} states, {self._steps} steps, longest {max(self._length)}")
                if level == levels:
                    break
                frontier = self._disturbed(frontier)
        except _NoTime:
            pass
        except _Broken as found:
            return self._found(max(level, 0), str(found.violation), self._history(found.before, found.events))
        return self._found(max(level, 0), "", [])

    def _found(self, level: int, violation: str, history: list[Event]) -> Found:
        return Found(len(self._met), level, self._steps, max(self._length), violation, history)

    def _closed(self, states: list[tuple[State, int]]) -> list[tuple[State, int]]:
        """These states and all that follow by themselves."""
        found = list(states)
        for at, (state, index) in enumerate(found):
            if not at % LOOK_EVERY:
                self._look()
            self._expand(state, index, self.world.inner(state), found)
        return found

    def _disturbed(self, states: list[tuple[State, int]]) -> list[tuple[State, int]]:
        """What is new after one more thing that somebody does."""
        found: list[tuple[State, int]] = []
        for at, (state, index) in enumerate(states):
            if not at % LOOK_EVERY:
                self._look()
            self._expand(state, index, self.world.outer(state), found)
        return found

    def _look(self) -> None:
        if time.monotonic() > self._ends_s:
            raise _NoTime

    def _expand(self, state: State, index: int, events: Iterable[Event], found: list[tuple[State, int]]) -> None:
        world, met = self.world, self._met
        for event in events:
            try:
                after = world.canonical(world.step(state, event))
            except NotPossible:
                continue
            except Exception as fault:  # of the machines, too
                raise _Broken(index, [event], fault) from fault
            self._steps += 1
            number = hash(after)
            if number not in met:
                met.add(number)
                self._before.append(index)
                self._by.append(self._events.setdefault(event, event))
                self._length.append(self._length[index] + 1)
                found.append((after, len(self._by) - 1))
                if number not in self._known:
                    self._return(after, index, event)

    def _return(self, state: State, index: int, event: Event) -> None:
        """Follow the way back until it is known."""
        world, way, events = self.world, dict[int, None](), [event]
        try:
            while (number := hash(state)) not in self._known:
                if number in way:
                    raise broken(f"no way leads back, but round in circles: {world.shown(state)}")
                way[number] = None
                events.append(self._next(state))
                state = world.canonical(world.step(state, events[-1]))
        except Exception as fault:
            raise _Broken(index, events, fault) from fault
        self._known.update(way)

    def _next(self, state: State) -> Event:
        events = self.world.inner(state) or self.world.repairs(state)
        if not events:
            raise broken(f"all rests, but not as at first: {self.world.shown(state)}")
        return events[0]

    def _history(self, index: int, last: list[Event]) -> list[Event]:
        """What happened, by the same names of targets throughout."""
        events = last[::-1]
        while index:
            events.append(self._by[index])
            index = self._before[index]
        world, history = self.world, list[Event]()
        state = world.begin()
        for event in reversed(events):
            alike = world.alike(state)
            permutation = alike.index(min(alike))
            history.append(exchanged(event, INVERSE[permutation]))
            if len(history) < len(events):
                state = world.step(state, history[-1])
        return history


class _NoTime(Exception):
    """The time is up."""


class _Broken(Exception):
    """A law is broken by the last of these events, behind the state of this index."""

    def __init__(self, before: int, events: list[Event], violation: Exception) -> None:
        super().__init__(str(violation))
        self.before = before
        self.events = events
        self.violation = f"{type(violation).__name__}: {violation}"


def explore(typed: bool, levels: int, seconds: float, own_checks: bool = True, spoken: bool = False) -> Found:
    """A search in which the acquirer of `default` speaks the one dialect or the other; `spoken` prints each level."""
    began_s = time.monotonic()
    try:
        search = Search(World(typed, own_checks))
    except Violation as violation:
        return Found(0, 0, 0, 0, str(violation), [])

    def say(text: str) -> None:
        sys.stdout.write(f"{'typed' if typed else 'plain'}, {time.monotonic() - began_s:.0f} s: {text}\n")
        sys.stdout.flush()

    found = search.run(levels, began_s + seconds, say if spoken else None)
    if own_checks and not found.violation:
        search.world.audit()
    return found
