"""Clients on other hosts: both halves of the relay with real sockets, and the whole way to an instance's router."""

from __future__ import annotations

import asyncio
import errno
import logging
from pathlib import Path
from typing import Any

import pytest

from fluxsched.client.aio import AsyncHandle
from fluxsched.errors import Disconnected, RPCError
from fluxsched.executor import wire as msg
from fluxsched.executor.relay import (
    LIMITS,
    PIECE_COST_BYTES,
    RECEIVE_MAX,
    ClientRelay,
    PieceJoiner,
    PieceQueue,
    RelayLimits,
)
from fluxsched.messaging.peers import PeerLimits, RpcRequest
from fluxsched.messaging.router import Router
from fluxsched.protocol.framing import ROLE_OWNER, decode, encode, make_request
from fluxsched.system.clock import SystemClock
from fluxsched.system.loop import Turns
from fluxsched.transport.base import MESSAGE_BYTES_MAX, UNSENT_BYTES_MAX, Lost
from fluxsched.transport.local import connect_local
from fluxsched.transport.zeromq import ZmqClient
from tests.executor.test_hosts import Keeper
from tests.executor.test_hosts import Site as Hosts
from tests.transport.conftest import Driver
from tests.transport.relayed import RelayedServer
from tests.waiting import WAIT_S, until


class Site:
    """An instance's server for clients on hosts, and such clients."""

    def __init__(self, directory: Path, limits: RelayLimits = LIMITS) -> None:
        self.end = RelayedServer(directory, limits=limits)
        self.server = Driver(self.end)
        self.cable = self.end.cables[0]
        self._clients: list[Driver] = []

    def client(self, host: str = "n1") -> Driver:
        self._clients.append(Driver(ZmqClient(self.end.endpoint_at(host))))
        return self._clients[-1]

    async def known(self, host: str = "n1") -> tuple[Driver, bytes]:
        client, count = self.client(host), len(self.server.items)
        client.send([b"hello"])
        await self.until(lambda: len(self.server.items) > count)
        return client, self.server.items.pop().peer

    until = staticmethod(until)

    def close(self) -> None:
        for client in self._clients:
            client.end.close()
        self.end.close()


@pytest.fixture
async def make(tmp_path: Path) -> Any:
    made: list[Site] = []

    def new(**limits: int) -> Site:
        made.append(Site(tmp_path, RelayLimits(**limits)))
        return made[-1]

    yield new
    for site in made:
        site.close()


# ---- clients and hosts


async def test_each_client_of_each_host_has_a_name_that_no_other_had(make):
    site = make()
    site.end.add_host("n2").connect()
    (_, first), (_, second), (_, third) = await site.known(), await site.known("n2"), await site.known("n2")
    assert (first, second, third) == (b"n1/1", b"n2/2", b"n2/3")
    site.end.cables[1].cut()
    await site.until(lambda: len(site.server.lost) == 2)
    site.end.cables[1].connect()
    assert (await site.known("n2"))[1] == b"n2/4"


async def test_clients_end_with_the_connection_of_their_host_and_those_of_others_do_not(make):
    site = make()
    site.end.add_host("n2").connect()
    client, name = await site.known()
    other, other_name = await site.known("n2")
    client.send([b"last"])
    await site.until(lambda: site.end.cables[0].passed[-1:] and site.server.arrived)
    site.cable.cut()
    await site.until(lambda: site.server.lost and client.end.lost)
    assert site.server.lost == [Lost(name, "the connection to the keeper of n1 has ended")]
    with pytest.raises(Disconnected, match="nothing listens"):
        site.client()
    site.end.send(name, [b"nobody is there"])
    site.end.send(other_name, [b"still here"])
    await other.until(lambda: other.items)
    assert (site.end.dropped, site.end.peers()) == (1, 1)
    site.cable.connect()
    again, _ = await site.known()
    assert again.end.lost is None


async def test_messages_of_a_client_that_was_dropped_are_not_those_of_a_new_one(make):
    site = make()
    client, name = await site.known()
    # a connection is shut down only if it is certainly its client's, which the first message to the client proves
    site.end.send(name, [b"welcome"])
    await client.until(lambda: client.items)
    site.cable.is_held = True
    for _ in range(3):
        client.send([b"on its way"])
    await site.until(lambda: site.cable.keeper._queue)
    site.end.drop(name, "unwelcome")
    site.cable.release()
    await site.until(lambda: client.end.lost)
    await site.known()
    assert site.server.items == [Lost(name, "unwelcome")]
    assert site.end.peers() == 1


async def test_a_client_of_fluxs_own_socket_is_one_of_the_json_server(make):
    site = make()
    json = Driver(site.end.servers[True])
    client = Driver(connect_local(site.cable.keeper.environment({})["FLUX_URI"]))
    client.send([b"", b"topic"])
    await site.until(lambda: json.items)
    assert (json.items[0].userid, json.items[0].key, json.items[0].frames) == (None, None, [b"", b"topic"])
    json.send(json.items[0].peer, [b"answer"])
    await client.until(lambda: client.items)
    client.end.close()
    await site.until(lambda: json.lost)
    assert not site.server.items


async def test_the_sockets_are_their_owners_alone(make, tmp_path):
    make()
    directory = tmp_path / "n1"
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir() if path.is_socket()} == {
        "instance.sock": 0o600,
        "local-0": 0o600,
    }


# ---- order and limits


async def test_a_large_message_delays_no_other_client_and_no_word_of_the_keeper(make):
    site = make(window_bytes=5000, piece_bytes=1000)
    large, small = await site.known(), await site.known()
    site.cable.passed.clear()
    site.cable.is_held = True
    site.end.send(large[1], [bytes(100_000)])
    site.end.send(small[1], [b"small"])
    large[0].send([b"x", bytes(100_000)])
    await site.until(lambda: site.cable.keeper._queue)
    small[0].send([b"small"])
    await asyncio.sleep(0.05)
    site.cable.release()
    await site.until(lambda: large[0].items and small[0].items and len(site.server.items) == 2)
    assert (large[0].items, small[0].items) == ([[bytes(100_000)]], [[b"small"]])
    assert [len(one.frames) for one in site.server.items] == [1, 2]
    for kind in (msg.ToClient, msg.ClientFrames):
        pieces = [one for one in site.cable.passed if isinstance(one, kind)]
        assert max(sum(map(len, one.frames)) for one in pieces) <= 1000
        at = next(number for number, one in enumerate(pieces) if one.frames == [b"small"])
        assert at <= 6, "it waits for what is under way, and not for the whole message"
        assert len(pieces) >= 100


async def test_no_more_than_the_window_is_under_way(make):
    site = make(window_bytes=5000, piece_bytes=1000)
    client, name = await site.known()
    await site.until(lambda: site.cable.keeper._queue._room_bytes == 5000)
    site.cable.is_held = True
    for _ in range(100):
        site.end.send(name, [bytes(500)])
        client.send([bytes(500)])
    await site.until(lambda: site.cable.keeper._queue)
    taken = site.cable.host.take()
    cost = sum(PIECE_COST_BYTES + len(one.frames[0]) for one in taken if isinstance(one, msg.ToClient))
    assert 5000 <= cost < 5000 + 1000 + PIECE_COST_BYTES
    assert not [one for one in site.cable.host.take() if isinstance(one, msg.ToClient)]
    await site.until(lambda: site.cable.keeper._queue.total_bytes > 10_000)
    taken = site.cable.keeper.take()
    cost = sum(PIECE_COST_BYTES + len(one.frames[0]) for one in taken if isinstance(one, msg.ClientFrames))
    assert 5000 <= cost < 5000 + 1000 + PIECE_COST_BYTES


async def test_a_client_waits_until_the_instance_takes_what_it_sends(make):
    site = make(window_bytes=5000, waiting_bytes=20_000)
    client, _ = await site.known()
    site.server.paused = True
    for number in range(2000):
        client.send([b"%d" % number, bytes(100)])
    await asyncio.sleep(0.1)
    assert sum(isinstance(one, msg.ClientFrames) for one in site.cable.passed) < 5000 / 300
    assert 20_000 <= site.cable.keeper._queue.total_bytes < 20_000 + RECEIVE_MAX * 400
    site.server.resume()
    await site.until(lambda: len(site.server.items) == 2000)
    assert [int(one.frames[0]) for one in site.server.items] == list(range(2000))


async def test_hosts_have_their_turns(make):
    site = make()
    site.end.add_host("n2").connect()
    (first, _), (second, _) = await site.known(), await site.known("n2")
    site.server.paused = True
    for _ in range(100):
        first.send([b"first"])
    await site.until(lambda: sum(isinstance(one, msg.ClientFrames) for one in site.end.cables[0].passed) == 101)
    second.send([b"second"])
    await site.until(lambda: len(site.end.server._arrived) == 2)
    assert [one.frames for one in site.end.receive(2)] in ([[b"first"], [b"second"]], [[b"second"], [b"first"]])


async def test_a_message_is_limited(make):
    site = make(message_bytes=1000)
    (client, name), (other, _) = await site.known(), await site.known()
    client.send([bytes(600), bytes(401)])
    client.send([b"after"])
    await site.until(lambda: site.server.lost)
    assert site.server.items == [Lost(name, "message of 1001 bytes, limit 1000")]
    other.send([bytes(600), bytes(400)])
    await site.until(lambda: site.server.arrived)


async def test_the_clients_of_a_host_are_limited(make, caplog):
    site = make(clients=2)
    (first, _), (second, _), third = await site.known(), await site.known(), site.client()
    third.send(encode(make_request("instance.info", None, matchtag=3)))
    third.send([b"no request"])
    await third.until(lambda: third.items)
    answer = decode(third.items[0])
    text = "2 clients on n1 are connected, the limit is 2: end some of them"
    assert (answer.matchtag, answer.errnum, answer.payload) == (3, errno.EMFILE, text.encode())
    assert f"a further one is refused: {text}" in caplog.text
    assert (site.server.items, site.end.peers()) == ([], 2)
    first.end.close()
    await site.until(lambda: site.server.lost)
    fourth, name = await site.known()
    third.end.close()
    site.end.send(name, [b"welcome"])
    await fourth.until(lambda: fourth.items)
    await site.until(lambda: len(site.cable.host._clients) == 2)
    last = site.client()
    last.send(encode(make_request("instance.info", None, matchtag=4)))
    await last.until(lambda: last.items)
    assert second.end.lost is None
    assert len(site.server.lost) == 1


async def test_what_a_client_does_not_read_is_known_and_limited(make):
    site = make(unsent_bytes=1_000_000)
    (slow, slow_name), (other, other_name) = await site.known(), await site.known()
    slow.paused = True
    while not site.end.unsent_bytes(slow_name):
        for _ in range(100):
            site.end.send(slow_name, [bytes(1000)])
        await asyncio.sleep(0.01)
    assert site.end.unsent_bytes(other_name) == 0
    slow.resume()
    await site.until(lambda: not site.end.unsent_bytes(slow_name))
    slow.paused = True
    while not site.server.lost:
        for _ in range(100):
            site.end.send(slow_name, [bytes(1000)])
        await asyncio.sleep(0.001)
    (lost,) = site.server.lost
    assert lost.peer == slow_name
    assert lost.reason.startswith("slow reader: ")
    assert lost.reason.endswith("bytes unsent, limit 1000000")
    site.end.send(other_name, [b"still here"])
    await other.until(lambda: other.items)


async def test_one_message_of_any_size_is_for_a_client_that_has_read_all_others(make):
    site = make(unsent_bytes=1000)
    client, name = await site.known()
    site.end.send(name, [bytes(100_000)])
    await client.until(lambda: client.items)
    site.cable.is_held = True
    site.end.send(name, [bytes(900)])
    site.end.send(name, [bytes(900)])
    await site.until(lambda: site.server.lost)
    site.cable.release()


def test_limits():
    assert (LIMITS.message_bytes, LIMITS.unsent_bytes) == (MESSAGE_BYTES_MAX, UNSENT_BYTES_MAX)
    assert LIMITS.piece_bytes < LIMITS.window_bytes < LIMITS.unsent_bytes


# ---- pieces


@pytest.mark.parametrize("sizes", [(0,), (0, 0), (4,), (5,), (8, 0), (9, 1), (1, 3, 0, 1), (20, 0, 1), (3, 3, 3, 30)])
def test_a_message_is_put_together_however_it_was_cut(sizes):
    frames = [bytes([65 + at]) * size for at, size in enumerate(sizes)]
    queue, joiner = PieceQueue(1 << 20), PieceJoiner()
    queue.add_message(msg.ToClient, (False, b"a"), frames, 4)
    joined = [joiner.add(one.frames, is_cut=one.is_cut) for one in queue.take()]
    assert joined == [None] * (len(joined) - 1) + [frames]


def test_clients_have_their_turns_and_what_is_discarded_leaves_no_trace():
    queue = PieceQueue(3 * PIECE_COST_BYTES)
    for name in (b"a", b"a", b"b", b"a", b"b", b"c"):
        queue.add((False, name), msg.ClientLost(False, name, ""))
    assert [one.peer for one in queue.take()] == [b"a", b"b", b"c"]
    assert queue.held_up_bytes((False, b"a")) == queue.waiting_bytes((False, b"a")) == 2 * PIECE_COST_BYTES
    queue.discard((False, b"a"))
    queue.credit(PIECE_COST_BYTES)
    assert queue.held_up_bytes((False, b"b")) == 0
    assert [one.peer for one in queue.take()] == [b"b"]
    assert not queue
    assert queue.waiting_bytes((False, b"a")) == queue.waiting_bytes((False, b"b")) == 0


# ---- the keeper


def relay_in(directory: Path) -> ClientRelay:
    turns = Turns(SystemClock())
    turns.start(asyncio.get_running_loop())
    return ClientRelay(turns, directory)


async def test_tasks_get_addresses_of_their_own_host(tmp_path, monkeypatch):
    for name in ("FLUXSCHED_TMPDIR", "FLUXSCHED_URI", "FLUXSCHED_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    relay = relay_in(tmp_path)
    given = {"FLUXSCHED_URI": "ipc:///there", "FLUX_URI": "local:///there", "FLUXSCHED_TMPDIR": "/there", "A": "b"}
    found = relay.environment(given)
    assert found.pop("FLUXSCHED_TMPDIR") != "/there"
    own = {"FLUXSCHED_URI": f"ipc://{tmp_path}/instance.sock", "FLUX_URI": f"local://{tmp_path}/local-0"}
    assert found == {**own, "A": "b"}
    given["FLUXSCHED_PARENT_URI"] = "ipc:///around"
    assert "FLUXSCHED_PARENT_URI" not in relay.environment(given), "the instance around is not to be found here"
    monkeypatch.setenv("FLUXSCHED_URI", "ipc:///around/here")
    assert "FLUXSCHED_PARENT_URI" not in relay.environment(given), "it is of no instance around"
    monkeypatch.setenv("FLUXSCHED_LEVEL", "1")
    assert relay.environment(given)["FLUXSCHED_PARENT_URI"] == "ipc:///around/here"


async def test_sockets_that_cannot_be_bound_are_told_once_and_end_nothing(tmp_path, caplog):
    relay = relay_in(tmp_path / ("long" * 40))
    relay.connected()
    relay.want()
    relay.want()
    told = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert len(told) == 1
    assert "tasks here do not find their instance: " in told[0].getMessage()
    assert "longer than 107 bytes" in told[0].getMessage()
    relay.disconnected()


# ---- the whole way


class Instance:
    """Router of an instance with hosts, whose keepers are real but for their tasks."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.hosts = Hosts(keeper=lambda host, site, terms: Keeper(host, site, terms, directory / host))
        self.router = Router(self.hosts.turns, [], limits=PeerLimits(guest_burst=5, guest_rate_per_s=1))
        self.asked: list[RpcRequest] = []
        self.router.serve({"test.echo": self._echo, "test.held": self.asked.append})
        self.router.serve({"instance.ready": RpcRequest.respond})
        self.router.start()
        self.hosts.turns.at_end(self.router.flush)
        for server in self.hosts.servers:
            self.router.add_server(server)

    def _echo(self, request: RpcRequest) -> None:
        self.asked.append(request)
        request.respond(request.payload(dict))

    def handle(self, host: str, **options: Any) -> AsyncHandle:
        return AsyncHandle(self.hosts.tasks(host).launched[1].settings.environment["FLUXSCHED_URI"], **options)

    async def run(self) -> Instance:
        await self.hosts.ready()
        assert not list(self.directory.iterdir()), "no socket before the first job"
        self.hosts.executor.start(self.hosts.launch(1, "0-1"))
        await self.hosts.until(lambda: self.hosts.reported("started"))
        return self


@pytest.fixture
async def instance(tmp_path: Path) -> Any:
    instance = await Instance(tmp_path).run()
    yield instance
    await instance.hosts.close()


async def test_a_task_of_another_host_finds_the_instance_as_its_owner(instance):
    assert sorted(path.name for path in instance.directory.iterdir()) == ["n0", "n1"], "hosts that have a job"
    async with instance.handle("n0") as first, instance.handle("n1") as second:
        answers = await asyncio.gather(
            *[one.rpc("test.echo", {"number": number}) for number in range(100) for one in (first, second)]
        )
        assert [answer["number"] for answer in answers] == [number for number in range(100) for _ in range(2)]
        big = {"text": "x" * 3_000_000}
        assert await first.rpc("test.echo", big) == big
        with pytest.raises(RPCError, match="No service matching"):
            await first.rpc("nobody.there", {})
    assert {(one.peer.userid, one.peer.rolemask & ROLE_OWNER != 0) for one in instance.asked} == {
        (instance.router.permissions.access.owner, True)
    }
    await instance.hosts.until(lambda: not instance.router.peers)


async def test_clients_are_lost_with_the_link_and_come_back_with_it(instance):
    async with instance.handle("n0", reconnect_s=WAIT_S) as handle, instance.handle("n1") as other:
        await handle.rpc("test.echo", {})
        await other.rpc("test.echo", {})
        held = asyncio.ensure_future(handle.rpc("test.held", {}))
        await instance.hosts.until(lambda: len(instance.asked) == 3)
        instance.hosts.cables["n0"].close()
        with pytest.raises(Disconnected):
            await held
        await instance.hosts.until(lambda: not instance.hosts.present["n0"])
        instance.asked[-1].respond({"too": "late"})
        assert await other.rpc("test.echo", {"a": 1}) == {"a": 1}
        instance.hosts.connect("n0")
        await instance.hosts.until(lambda: handle.reconnects)
        assert await handle.rpc("test.echo", {"b": 2}) == {"b": 2}
    assert len(instance.hosts.tasks("n0").launched) == 1
