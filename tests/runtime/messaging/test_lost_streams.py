"""A stream whose peer is lost is over, also for a handler that was about to begin it."""

from __future__ import annotations

import asyncio

from fluxsched.protocol.framing.header import STREAMING, encode, make_request
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.messaging.peers import RpcRequest
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
