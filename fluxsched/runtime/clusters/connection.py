"""One connection to another instance, driven by our turns.

Law: a callback is called once for each answer that comes, and for none after `close`; the opener of the connection
learns once that it is lost, whatever the other side sends or does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from fluxsched.errors import FluxschedError, RPCError
from fluxsched.protocol.framing import codec
from fluxsched.protocol.framing.bundle import pack_bundles
from fluxsched.protocol.framing.header import Message, encode
from fluxsched.protocol.sessions.rpc import Answer
from fluxsched.runtime.client.calls import InstanceCalls
from fluxsched.runtime.loop.turns import Turns
from fluxsched.transport.base import Client

RECEIVE_MAX = 256
"""Messages handled in one go: a millisecond or two of a turn."""

TakeAnswer = Callable[[bytes | None, RPCError | None], None]
"""Takes the payload of an answer, or its error."""


class ClusterConnection(InstanceCalls):
    """Requests to the other instance, and their answers."""

    def __init__(self, client: Client, turns: Turns, lost: Callable[[str], None], *, json: bool = False) -> None:
        super().__init__()
        self._json = json
        """Whether the other side takes single messages with JSON, as Flux does."""
        self._client = client
        self._turns = turns
        self._lost: Callable[[str], None] | None = lost
        self._outbox: list[Message] = []
        self.received = 0
        """Messages that have come."""
        turns.attach(client.start)

    def ask(self, topic: str, payload: object, answered: TakeAnswer, *, streaming: bool = False) -> int:
        """Send a request; its matchtag. Every answer is given to `answered`."""

        def take(answer: Answer) -> None:
            answered(answer.payload, answer.error)

        if self._json:
            text = msgspec.json.encode({} if payload is None else payload) + b"\0"
            message = self.calls.start(topic, text, streaming, take)
        else:
            message = self.start(topic, payload, take, streaming=streaming)
        if not self._outbox:
            self._turns.post(self._flush)
        self._outbox.append(message)
        return message.matchtag

    def take(self) -> bool:
        """Handle what has arrived; whether there may be more. What cannot be understood ends the connection."""
        if self._lost is None:
            return False
        frames = self._client.receive(RECEIVE_MAX)
        try:
            for one in frames:
                self.received += 1
                self.receive(one)
                if self._lost is None:
                    return False
        except FluxschedError as fault:
            self.lose(f"it sends what is not understood: {fault}")
            return False
        if self._client.lost is not None:
            self.lose(self._client.lost)
        return len(frames) == RECEIVE_MAX

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Run `call` in so many seconds, unless the connection is lost by then."""
        self._turns.after(delay_s, lambda: call() if self._lost is not None else None)

    def lose(self, reason: str) -> None:
        """Give the connection up."""
        lost = self._lost
        self.close()
        if lost is not None:
            lost(reason)

    def close(self) -> None:
        """End the connection; nothing is called any more."""
        if self._lost is not None:
            self._flush()
            self._lost = None
            self.calls.abandon()
            self._client.close()

    def _flush(self) -> None:
        messages, self._outbox = self._outbox, []
        if self._lost is None or not messages:
            return
        try:
            for frames in map(encode, messages) if self._json else pack_bundles(messages):
                self._client.send(frames)
        except FluxschedError as fault:
            self.lose(str(fault))


def read(payload: bytes | None, kind: type[Any]) -> Any:
    """A payload of the other instance. Raises RemoteProtocolError."""
    return codec.unpack(payload, kind)
