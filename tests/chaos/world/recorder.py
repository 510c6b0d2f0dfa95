"""What outsiders see of a world, told to those that observe it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tests.chaos.observations import (
    Answered,
    Connected,
    Faulted,
    LinkEnded,
    Observation,
    ProcessEnded,
    ProcessStarted,
    Received,
    Sent,
)
from tests.chaos.wire import REQUEST, STREAMING, WireMessage, messages
from tests.chaos.world.network import Link, Network
from tests.chaos.world.processes import Process
from tests.chaos.world.virtual_time import VirtualTime


class Recorder:
    """Turns what happens into observations."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self.observers: list[Callable[[Observation], None]] = []
        self._directory = b""

    def tell(self, one: Observation) -> None:
        """Tell all that observe."""
        for call in self.observers:
            call(one)

    def neutralise(self, directory: Path) -> None:
        """Have all worlds' directories seen under the same name: texts have it, and it is by chance."""
        self._directory = directory.name.encode()

    def watch_network(self, network: Network) -> None:
        """Tell of all connections, and of the messages at their clients' ends."""
        network.connected, network.ended = self._connected, self._ended
        network.sent, network.received = self._sent, self._received

    def watch_process(self, process: Process) -> None:
        """Tell of the beginning of a process, which is now, and of its end."""
        name, number = process.name, process.number
        process.on_end.append(lambda reason: self.tell(ProcessEnded(self._time.now_s, name, number, reason)))
        self.tell(ProcessStarted(self._time.now_s, name, number))

    def fault(self, text: str) -> None:
        """A fault is brought about."""
        self.tell(Faulted(self._time.now_s, text))

    def _connected(self, link: Link) -> None:
        self.tell(Connected(self._time.now_s, link.actor, link.number))

    def _ended(self, link: Link, reason: str) -> None:
        self.tell(LinkEnded(self._time.now_s, link.number, reason))

    def _sent(self, link: Link, frames: list[bytes]) -> None:
        now_s, actor, number = self._time.now_s, link.actor, link.number
        for one in self._messages(frames):
            if one.type == REQUEST:
                is_streaming = bool(one.flags & STREAMING)
                self.tell(Sent(now_s, actor, number, one.topic, one.payload, one.matchtag, is_streaming))
            else:
                self.tell(Answered(now_s, actor, number, one.topic, one.payload, one.matchtag, one.errnum))

    def _received(self, link: Link, frames: list[bytes]) -> None:
        now_s, actor, number = self._time.now_s, link.actor, link.number
        for one in self._messages(frames):
            errnum = None if one.type == REQUEST else one.errnum
            self.tell(Received(now_s, actor, number, one.topic, one.payload, one.matchtag, errnum))

    def _messages(self, frames: list[bytes]) -> Iterator[WireMessage]:
        name = self._directory
        return messages([frame.replace(name, b"-" * len(name)) for frame in frames] if name else frames)
