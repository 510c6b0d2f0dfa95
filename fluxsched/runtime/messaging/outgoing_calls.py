"""The instance's own requests to peers; the callback of each runs exactly once.

Law: a question asked on behalf of another peer may be given up while its peer lives: the requester gets an error, and
a late answer is dropped. A call that changes our own state is never given up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fluxsched.protocol.framing.header import RESPONSE, Message
from fluxsched.runtime.messaging.peers import Peer

Answered = Callable[[Message | None], None]
"""Takes the response to a call of the instance; None when the peer was lost before it answered."""

TAG_MAX = 0x7FFFFFFF


class _Call(NamedTuple):
    peer: Peer
    topic: str
    answered: Answered
    is_question: bool


class OutgoingCalls:
    """Open calls by matchtag."""

    def __init__(self) -> None:
        self._open: dict[int, _Call] = {}
        self._tag = 0

    def begin(self, peer: Peer, topic: str, answered: Answered, *, is_question: bool) -> int:
        """The matchtag of a new call."""
        self._tag = self._tag % TAG_MAX + 1
        self._open[self._tag] = _Call(peer, topic, answered, is_question)
        return self._tag

    def end(self, peer: Peer, tag: int) -> Answered | None:
        """The callback for the answer of `peer` to this call; None for one that is over, or another peer's."""
        call = self._open.get(tag)
        if call is None or call.peer is not peer:
            return None
        del self._open[tag]
        return call.answered

    def lost(self, peer: Peer) -> list[Answered]:
        """The peer is lost: the callbacks of its calls, each to be called with None."""
        return [call.answered for call in self._taken(lambda call: call.peer is peer)]

    def give_up(self, peer: Peer, errnum: int, text: str) -> None:
        """Answer all questions to `peer` that are open with an error of the instance."""
        for call in self._taken(lambda call: call.peer is peer and call.is_question):
            call.answered(Message(RESPONSE, call.topic, text.encode(), aux1=errnum))

    def _taken(self, which: Callable[[_Call], bool]) -> list[_Call]:
        return [self._open.pop(tag) for tag in [tag for tag, call in self._open.items() if which(call)]]
