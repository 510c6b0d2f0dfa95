"""`instance.trace`: messages as they pass, for the owner to look at (rfc/live.md).

Law: without a reader no message is looked at. With one, at most TRACE_MESSAGES_MAX are made into text in TRACE_EVERY_S,
and the others counted; so are those that a slow reader has no room for. The messages of these streams are left out.
"""

from __future__ import annotations

from fluxsched.protocol.framing.header import Message
from fluxsched.protocol.messages.live.trace import TracedMessage, TraceRequest, TraceResponse
from fluxsched.runtime.loop.turns import Timer, Turns
from fluxsched.runtime.messaging.peers import RpcRequest
from fluxsched.runtime.messaging.router import Router, forget
from fluxsched.runtime.messaging.tracing import LINE_CHARS_MAX, content, cut, is_sign_of_life, kind_of
from fluxsched.runtime.services.slow_readers import SlowReaders

TRACE_EVERY_S = 0.1
"""The least time between two answers."""
TRACE_MESSAGES_MAX = 256
"""Messages in one answer: 2,560 a second are more than can be read; their text takes 5 % of a core."""
TEXT_PAYLOAD_BYTES_MAX = 1 << 16
"""Of a larger payload the size is told: unpacking an R of a large machine for its first words takes milliseconds."""

_OWN = "instance.trace"


class TraceReader:
    """One stream: which topics, and what is to be told next."""

    __slots__ = ("beginnings", "dropped", "messages")

    def __init__(self, beginnings: tuple[str, ...]) -> None:
        self.beginnings = beginnings
        self.messages: list[TracedMessage] = []
        self.dropped = 0


class TraceService:
    """Serves `instance.trace`."""

    def __init__(self, router: Router, turns: Turns) -> None:
        self._router = router
        self._turns = turns
        self._slow = SlowReaders(router, turns)
        self._readers: dict[RpcRequest, TraceReader] = {}
        self._timer: Timer | None = None
        router.serve({_OWN: self._open})

    def _open(self, request: RpcRequest) -> None:
        wanted = request.payload(TraceRequest)
        request.open_stream(lambda: self._end(request))
        self._readers[request] = TraceReader(tuple(wanted.topics) or ("",))
        if len(self._readers) == 1:
            self._router.trace_to(self._note)

    def _end(self, request: RpcRequest) -> None:
        forget(self._readers, request)
        if not self._readers:
            self._router.trace_to(None)

    def _note(self, direction: str, message: Message) -> None:
        """A message passes."""
        if message.topic.startswith(_OWN) or is_sign_of_life(message):
            return
        noted: TracedMessage | None = None
        for reader in self._readers.values():
            if not message.topic.startswith(reader.beginnings):
                continue
            if len(reader.messages) >= TRACE_MESSAGES_MAX:
                reader.dropped += 1
                continue
            noted = noted or _traced(direction, message, self._turns.wall_s)
            reader.messages.append(noted)
            if self._timer is None:
                self._timer = self._turns.after(TRACE_EVERY_S, self._tell)

    def _tell(self) -> None:
        self._timer = None
        for request, reader in self._readers.items():
            if not reader.messages:
                continue
            if self._slow.must_wait(request.peer):
                self._timer = self._timer or self._turns.after(TRACE_EVERY_S, self._tell)
                continue
            request.respond(TraceResponse(reader.messages, reader.dropped))
            reader.messages, reader.dropped = [], 0


def _traced(direction: str, message: Message, now_s: float) -> TracedMessage:
    arrow, _, peer = direction.partition(" ")
    size = len(message.payload or b"")
    text = content(message) if size <= TEXT_PAYLOAD_BYTES_MAX else f"{size} bytes"
    return TracedMessage(
        t=now_s,
        direction="<-" if arrow == "<-" else "->",
        peer=peer,
        type=kind_of(message),
        topic=message.topic,
        text=cut(text, LINE_CHARS_MAX),
    )
