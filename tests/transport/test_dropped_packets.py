"""A network that drops what is sent, without a word: a relay between client and server that stops."""

from __future__ import annotations

import asyncio

import pytest

from fluxsched.transport.zeromq import ZmqClient, ZmqServer
from tests.waiting import until


class Relay:
    """Passes bytes on in both directions until it `drops` them."""

    def __init__(self, port):
        self._port = port
        self.drops = False
        self._tasks = []
        self._writers = []

    async def begin(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader, writer):
        there = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [there[1], writer]
        pairs = ((reader, there[1]), (there[0], writer))
        self._tasks += [asyncio.ensure_future(self._pass(*pair)) for pair in pairs]

    async def _pass(self, reader, writer):
        while data := await reader.read(65536):
            if not self.drops:
                writer.write(data)
                await writer.drain()

    async def end(self):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*[writer.wait_closed() for writer in self._writers], return_exceptions=True)
        await self._server.wait_closed()


@pytest.mark.parametrize("drops", [False, True])
async def test_a_client_that_asks_for_heartbeats_notices_and_else_keeps_an_idle_connection(drops):
    loop = asyncio.get_running_loop()
    server = ZmqServer("tcp://127.0.0.1:*", insecure_tcp=True)
    server.start(loop, lambda: None)
    relay = Relay(int(server.endpoint.rpartition(":")[2]))
    client = ZmqClient(f"tcp://127.0.0.1:{await relay.begin()}", lost_after_ms=150)
    client.start(loop, lambda: None)
    client.send([b"hello"])
    await until(lambda: bool(server.receive(9)))
    relay.drops = drops
    if drops:
        await until(lambda: client.receive(9) == [] and client.lost is not None)
    else:
        await asyncio.sleep(0.4)
        assert client.receive(9) == []
        assert client.lost is None
    client.close()
    server.close()
    await relay.end()
