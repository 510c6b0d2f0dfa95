"""The network between an instance and one of its hosts: it can be cut in either direction, and mended.

Law: order is kept within one direction of a connection. What is under way when a direction is cut is lost, or arrives
late, once that is mended. A connection may end at one side only, and at the other much later or when it next sends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from tests.chaos.world.network import ReceivingEnd
from tests.chaos.world.processes import Process
from tests.chaos.world.virtual_time import Run, VirtualTime

UP, DOWN = "up", "down"
"""From the host to the instance, and back."""
DELAY_S = 0.0002, 0.003
"""How long a message takes (seconds)."""
NOTICED_S = 0.01, 0.5, 5.0, 11.0, 40.0
"""How long after a cut one side may take its connection for lost (seconds)."""
NOTICED = 0.4
"""How often it does."""
LATE_S = 0.0, 3.0
"""When what was held up by a cut arrives, after it was mended (seconds)."""
RESET = 0.4
"""How often it is lost instead, and the connection with it."""
RESET_S = 0.001, 0.2, 8.0
"""When a side learns of that (seconds)."""


class Way:
    """One direction of a connection: what is under way, in order."""

    def __init__(self, path: HostPath, name: str) -> None:
        self._path = path
        self._name = name
        self._queue: deque[tuple[float, Run]] = deque()
        self._last_s = 0.0

    def carry(self, deliver: Run) -> None:
        """Have something arrive after all that was sent before."""
        path = self._path
        self._last_s = max(self._last_s, path.time.now_s + path.chance.uniform(*path.delay_s))
        self._queue.append((self._last_s, deliver))
        path.time.at(self._last_s, self.move)

    def move(self) -> None:
        """Deliver what is due, unless this direction is cut."""
        queue = self._queue
        while queue and queue[0][0] <= self._path.time.now_s and self._name not in self._path.cut_ways:
            queue.popleft()[1]()

    def lose(self) -> None:
        """What is under way never arrives."""
        self._queue.clear()


class CableEnd(ReceivingEnd):
    """A `transport.base.Client` of one of the two processes."""

    def __init__(self, process: Process, way: Way) -> None:
        super().__init__(process)
        self.other: CableEnd | None = None
        self.has_heard = False
        """Whether anything has come."""
        self.on_over: Callable[[], object] = lambda: None
        """Called once when the connection is over at this side."""
        self._way = way

    @property
    def is_over(self) -> bool:
        """Whether nothing is sent or comes any more."""
        return self._inbox.ending is not None

    def send(self, frames: Sequence[bytes]) -> None:
        """See `Client.send`."""
        self.process.effect()
        if not self.is_over:
            self._way.carry(partial(self._arrive, list(frames)))

    def close(self) -> None:
        """See `Client.close`."""
        if not self.is_over:
            self._end_other("connection closed")
            self.end("connection closed")

    def end(self, reason: str) -> None:
        """It is over at this side, and the other is not told."""
        if not self.is_over:
            self._inbox.ended(reason)
            self.on_over()

    def _arrive(self, frames: list[bytes]) -> None:
        other = self.other
        assert other is not None
        if other.is_over:
            other._end_other("connection reset")
        else:
            other.has_heard = True
            other._inbox.deliver(frames)

    def _end_other(self, reason: str) -> None:
        other = self.other
        if other is not None:
            self._way.carry(partial(other.end, reason))

    def _process_ended(self, reason: str) -> None:
        if reason != CRASHED and not self.is_over:
            self._end_other("connection closed")
        self.on_over = lambda: None
        self.end(reason)
        super()._process_ended(reason)


CRASHED = "its host crashed"
"""Why a process ended that could close no connection."""


class Cable:
    """One connection between a keeper and an instance."""

    def __init__(self, path: HostPath, keeper: Process, instance: Process) -> None:
        self.up, self.down = Way(path, UP), Way(path, DOWN)
        self.host_end, self.instance_end = CableEnd(keeper, self.up), CableEnd(instance, self.down)
        self.host_end.other, self.instance_end.other = self.instance_end, self.host_end

    @property
    def ends(self) -> tuple[CableEnd, CableEnd]:
        """Both."""
        return self.host_end, self.instance_end

    def move(self) -> None:
        """Deliver what is due."""
        self.up.move()
        self.down.move()

    def lose(self) -> None:
        """What is under way is lost."""
        self.up.lose()
        self.down.lose()


class HostPath:
    """What lies between the instance and a host."""

    def __init__(self, time: VirtualTime, chance: Random) -> None:
        self.time = time
        self.chance = chance
        self.delay_s = DELAY_S
        self.cut_ways: frozenset[str] = frozenset()
        self._cables: list[Cable] = []

    def connect(self, keeper: Process, instance: Process) -> Cable | None:
        """A new connection; None if there is no way."""
        if self.cut_ways or not instance.is_alive:
            return None
        self._cables = [cable for cable in self._cables if not all(end.is_over for end in cable.ends)]
        cable = Cable(self, keeper, instance)
        self._cables.append(cable)
        return cable

    def cut(self, ways: frozenset[str]) -> None:
        """Nothing gets through in these directions from now on; each side may notice that, or not."""
        self.cut_ways |= ways
        for cable in self._cables:
            for end in cable.ends:
                if self.chance.random() < NOTICED:
                    self.time.after(self.chance.choice(NOTICED_S), partial(self._noticed, end))

    def _noticed(self, end: CableEnd) -> None:
        if self.cut_ways:
            end.close()

    def end_at_instance(self) -> None:
        """The instance takes its connections for lost."""
        for cable in self._cables:
            cable.instance_end.close()

    def slip(self, way: str) -> None:
        """What is held up in a direction gets through; what is sent later does not."""
        self.cut_ways -= {way}
        for cable in self._cables:
            cable.move()
        self.cut_ways |= {way}

    def mend(self) -> None:
        """All gets through again."""
        was_cut, self.cut_ways = self.cut_ways, frozenset[str]()
        for cable in self._cables if was_cut else ():
            if self.chance.random() < RESET:
                cable.lose()
                for end in cable.ends:
                    self.time.after(self.chance.choice(RESET_S), partial(end.end, "connection reset"))
            else:
                self.time.after(self.chance.uniform(*LATE_S), cable.move)
