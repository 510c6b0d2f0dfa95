"""The named limits of messaging, each reached."""

from __future__ import annotations

import errno
from collections import deque
from typing import Any

import pytest

from fluxsched.errors import FluxschedError
from fluxsched.protocol.framing.header import encode, make_request
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.messaging import outgoing_calls, router
from fluxsched.runtime.messaging.outgoing_calls import OutgoingCalls
from fluxsched.runtime.messaging.payload_memo import SPEC_BYTES_MAX, SPECS_KEPT, PayloadMemo
from fluxsched.runtime.messaging.peers import Peer
from fluxsched.runtime.messaging.router import SERVICES_PEER_MAX, Router
from fluxsched.runtime.system.clock import SystemClock
from fluxsched.transport.base import Arrived


class Server:
    """A transport with messages of one peer in hand."""

    endpoint, dropped, json = "test", 0, False

    def __init__(self, count: int) -> None:
        self.arrivals = deque(Arrived(b"peer", encode(make_request("a.b", matchtag=tag + 1))) for tag in range(count))
        self.limits: set[int] = set()

    def receive(self, limit: int) -> list[Arrived]:
        self.limits.add(limit)
        return [self.arrivals.popleft() for _ in range(min(limit, len(self.arrivals)))]

    def send(self, peer: bytes, frames: Any) -> None: ...


def test_a_transport_is_asked_for_a_few_frames_at_a_time() -> None:
    server, turns = Server(10), Turns(SystemClock())
    Router(turns, [server])._take(float("inf"))  # type: ignore[list-item]
    assert (server.limits, len(server.arrivals)) == ({router.RECEIVE_MAX}, 0)


def test_a_peer_registers_so_many_services() -> None:
    own, peer = Router(Turns(SystemClock()), []), Peer(Server(0), b"peer", 0, 0)  # type: ignore[arg-type]
    for number in range(SERVICES_PEER_MAX):
        own.register(f"s{number}", peer)
    with pytest.raises(FluxschedError, match=str(SERVICES_PEER_MAX)) as raised:
        own.register("more", peer)
    assert raised.value.errnum == errno.EMFILE
    own.unregister("s0", peer)
    own.register("more", peer)


@pytest.mark.plain_only("has an empty Peer")
def test_matchtags_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing_calls, "TAG_MAX", 2)
    calls, peer = OutgoingCalls(), Peer.__new__(Peer)
    assert [calls.begin(peer, "a.b", lambda answer: None, is_question=True) for _ in range(3)] == [1, 2, 1]


def test_what_is_large_is_read_each_time() -> None:
    read: list[int] = []
    memo = PayloadMemo(lambda data: read.append(len(data)) or len(data), SPECS_KEPT, SPEC_BYTES_MAX)
    for size in (SPEC_BYTES_MAX, SPEC_BYTES_MAX, SPEC_BYTES_MAX + 1, SPEC_BYTES_MAX + 1):
        assert memo.read(b" " * size) == size
    assert read == [SPEC_BYTES_MAX, SPEC_BYTES_MAX + 1, SPEC_BYTES_MAX + 1]
