"""What becomes of a lost peer's streams, and of what is asked of it: both are over, also when they begin later."""

from __future__ import annotations

import asyncio

from fluxsched.protocol.framing.header import STREAMING, encode, make_request
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.messaging.peers import Peer, RpcRequest
from fluxsched.runtime.messaging.router import Router
from fluxsched.runtime.system.clock import SystemClock
from fluxsched.transport.memory import MemoryServer


async def test_a_stream_of_a_lost_peer_is_not_begun_later() -> None:
    """Else a service keeps it for ever: the journal did, of a reader that left before the store had settled."""
    server, opened, ended = MemoryServer(), list[RpcRequest](), list[RpcRequest]()
    router = Router(Turns(SystemClock()), [server])

    def handle(request: RpcRequest) -> None:
        request.open_stream(lambda: ended.append(request))
        opened.append(request)

    router.serve({"a.follow": handle})
    router.start()
    client, loop = server.connect(), asyncio.get_running_loop()
    client.start(loop, lambda: None)
    server.start(loop, router.turns.wake)
    router.turns.start(loop)
    client.send(encode(make_request("a.follow", None, matchtag=1, flags=STREAMING)))
    async with asyncio.timeout(10):
        while not opened:
            await asyncio.sleep(0)
        assert opened[0].is_open
        client.close()
        while not ended:
            await asyncio.sleep(0)
    assert not opened[0].is_open
    assert not router.peers
    router.turns.stop()


async def test_a_call_of_a_peer_that_is_gone_ends_at_once() -> None:
    """Else the figures of a scheduler that had just been killed were waited for until the client gave up."""
    server, peers, answers = MemoryServer(), list[Peer](), list[object]()
    router = Router(Turns(SystemClock()), [server])
    router.serve({"a.hello": lambda request: peers.append(request.peer)})
    router.start()
    client, loop = server.connect(), asyncio.get_running_loop()
    client.start(loop, lambda: None)
    server.start(loop, router.turns.wake)
    router.turns.start(loop)
    client.send(encode(make_request("a.hello", None, matchtag=1)))
    async with asyncio.timeout(10):
        while not peers:
            await asyncio.sleep(0)
        client.close()
        while router.peers:
            await asyncio.sleep(0)
        router.call(peers[0], "b.ask", None, answers.append)
        while not answers:
            await asyncio.sleep(0)
    assert answers == [None]
    router.turns.stop()
