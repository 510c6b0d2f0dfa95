"""Connections of keepers to an instance: one a host, messages of any size, limits."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from typing import Any

import pytest

from fluxsched.errors import Refused, RemoteProtocolError
from fluxsched.executor.relay import PIECE_BYTES, REPORT_MESSAGES_MAX, PieceInbox, pieces
from fluxsched.messaging.peers import PeerLimits
from fluxsched.messaging.router import Router
from fluxsched.protocol import framing
from fluxsched.protocol.framing import NORESPONSE, ROLE_KEEPER, STREAMING, decode, encode, make_request
from fluxsched.protocol.messages.common import CancelRequest
from fluxsched.protocol.messages.instance import KeeperConnectRequest, KeeperMessages
from fluxsched.services.keepers import KeeperConnectionLimits, KeeperConnections
from fluxsched.system.clock import SystemClock
from fluxsched.system.loop import Turns
from fluxsched.transport.base import PARTS_MAX
from tests.transport.memory import MemoryServer

WAIT_S = 60.0
KEY = b"k" * 32


class KeyedServer(MemoryServer):
    """A port for keepers: whoever connects has proved to have this key."""

    key = KEY

    def receive(self, limit: int) -> list[Any]:
        return [one._replace(key=self.key) if hasattr(one, "key") else one for one in super().receive(limit)]


class Site:
    """A router with the service, and keepers that the test plays."""

    def __init__(self, limits: KeeperConnectionLimits | None = None) -> None:
        self.server, self.turns = KeyedServer(), Turns(SystemClock())
        self.router = Router(self.turns, [], limits=PeerLimits(guest_burst=5, guest_rate_per_s=1))
        self.arrived: list[Any] = []
        self.refusal: str | None = None
        self.connections = KeeperConnections(self.router, self._arrive, limits)
        self.router.start()
        self.turns.at_end(self.router.flush)
        self.turns.start(asyncio.get_running_loop())
        self.router.permissions.access.reserve(self.server, KEY)
        self.router.add_server(self.server)

    def _arrive(self, request: KeeperConnectRequest, connection: Any) -> None:
        if self.refusal is not None:
            raise Refused(self.refusal, errno.ENOENT)
        self.arrived.append(connection)
        connection.start(asyncio.get_running_loop(), self.turns.wake)

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0)

    def keeper(self) -> Keeper:
        return Keeper(self)


class Keeper:
    """The other end."""

    def __init__(self, site: Site) -> None:
        self.site, self.client, self.answers = site, site.server.connect(), list[Any]()
        self.client.start(asyncio.get_running_loop(), self._listen)

    def _listen(self) -> None:
        self.answers += [decode(frames) for frames in self.client.receive(1000)]

    def send(self, topic: str, payload: object, flags: int = 0) -> None:
        tag = 0 if flags & NORESPONSE else 1
        self.client.send(encode(make_request(topic, framing.pack(payload), matchtag=tag, flags=flags)))

    def connect(self, host: str = "n1") -> None:
        self.send("keeper.connect", KeeperConnectRequest(host, "boot", 2, 7), STREAMING)

    async def connected(self, host: str = "n1") -> Any:
        count = len(self.site.arrived)
        self.connect(host)
        await self.site.until(lambda: len(self.site.arrived) > count)
        return self.site.arrived[-1]

    def report(self, *messages: bytes, is_cut: bool = False) -> None:
        self.send("keeper.report", KeeperMessages(list(messages), is_cut), NORESPONSE)

    async def error(self) -> tuple[int, str]:
        await self.site.until(lambda: self.answers and self.answers[-1].errnum)
        return self.answers[-1].errnum, (self.answers[-1].payload or b"").decode()

    @property
    def heard(self) -> list[list[bytes]]:
        inbox = PieceInbox()
        for answer in self.answers:
            if not answer.errnum:
                inbox.add(framing.unpack(answer.payload, KeeperMessages))
        return inbox.receive(1000)


@pytest.fixture
async def site() -> Any:
    site = Site()
    yield site
    site.turns.stop()


async def test_messages_arrive_in_order_in_both_directions(site):
    keeper = site.keeper()
    connection = await keeper.connected()
    for number in range(20):  # a guest would be above the rate
        keeper.report(b"%d" % number, b"x")
    received = []
    await site.until(lambda: received.extend(connection.receive(3)) or len(received) == 20)
    assert received == [[b"%d" % number, b"x"] for number in range(20)]
    large = bytes(3 * PIECE_BYTES + 5)
    connection.send([b"a", large])
    connection.send([b"b"])
    await site.until(lambda: len(keeper.heard) >= 3)
    assert [b"".join(frames) for frames in keeper.heard] in ([b"a", large, b"b"], [b"a" + large, b"b"])
    assert all(len(answer.payload) < PIECE_BYTES + 100 for answer in keeper.answers)
    assert connection.lost is None


async def test_who_connects_at_the_port_of_keepers_is_a_keeper_and_nobody_else_comes_in(site):
    keeper = site.keeper()
    await keeper.connected()
    (peer,) = site.router.peers.values()
    assert (peer.rolemask, peer.key_name) == (ROLE_KEEPER, "keeper")
    keeper.send("instance.info", {})
    assert await keeper.error() == (errno.EPERM, "Request requires guest credentials")
    assert site.router.check_peers() == 0, "a reload of the rules changes nothing for it"
    site.server.key = b"o" * 32
    stranger = site.keeper()
    stranger.connect("n2")
    await site.until(lambda: stranger.client.lost)
    assert (site.connections.hosts, stranger.answers) == (["n1"], [])


async def test_a_second_connection_of_a_host_ends_the_first_and_not_that_of_another(site):
    first, other, second = site.keeper(), site.keeper(), site.keeper()
    old, elsewhere, new = await first.connected(), await other.connected("n2"), await second.connected()
    assert (old.lost, elsewhere.lost, new.lost) == ("its host has connected again", None, None)
    await site.until(lambda: first.client.lost)
    assert site.connections.hosts == ["n1", "n2"] or site.connections.hosts == ["n2", "n1"]
    second.report(b"still there")
    await site.until(lambda: new.receive(1) == [[b"still there"]])


async def test_a_connection_that_ends_is_lost_once_all_it_sent_is_received(site):
    keeper = site.keeper()
    connection = await keeper.connected()
    keeper.report(b"last words")
    keeper.client.close()
    await site.until(lambda: not site.router.peers)
    assert connection.lost is None
    assert connection.receive(10) == [[b"last words"]]
    assert connection.lost == "the connection was lost"
    connection.send([b"nobody hears that"])
    assert site.connections.hosts == []


async def test_the_instance_and_the_keeper_may_end_it(site):
    keeper = site.keeper()
    connection = await keeper.connected()
    connection.send([b"farewell"])
    connection.close()
    connection.close()
    assert await keeper.error() == (errno.ENODATA, "")
    assert keeper.heard == [[b"farewell"]]
    keeper.report(b"too late")
    connection = await keeper.connected()
    keeper.send("keeper.connect-cancel", CancelRequest(1), NORESPONSE)
    await site.until(lambda: connection.lost)
    site.connections.close()
    assert site.connections.hosts == []


async def test_all_connections_end_with_the_service(site):
    keepers = [site.keeper(), site.keeper()]
    for number, keeper in enumerate(keepers):
        await keeper.connected(f"n{number}")
    site.connections.close()
    assert [await keeper.error() for keeper in keepers] == [(errno.ENODATA, "")] * 2


async def test_a_keeper_that_is_not_taken_is_told_why(site):
    site.refusal = "host n9 is none of this instance"
    keeper = site.keeper()
    keeper.connect("n9")
    assert await keeper.error() == (errno.ENOENT, site.refusal)
    assert site.connections.hosts == []


async def test_one_connection_is_of_one_host(site):
    keeper = site.keeper()
    await keeper.connected()
    keeper.send("keeper.connect", KeeperConnectRequest("n2", "boot", 2, 7), STREAMING)
    assert await keeper.error() == (errno.EEXIST, "this connection is that of the keeper of n1")
    keeper = site.keeper()
    keeper.send("keeper.connect", KeeperConnectRequest("n2", "boot", 2, 7))
    errnum, text = await keeper.error()
    assert (errnum, "needs the streaming flag" in text) == (errno.EPROTO, True)
    assert site.connections.hosts == ["n1"]


async def test_a_report_that_cannot_be_read_ends_the_connection(site):
    for payload in ({"messages": 1}, KeeperMessages([b""] * (REPORT_MESSAGES_MAX + 1)), KeeperMessages([])):
        keeper = site.keeper()
        connection = await keeper.connected()
        keeper.send("keeper.report", payload, NORESPONSE)
        errnum, text = await keeper.error()
        assert errnum == errno.EPROTO
        assert connection.lost == text


async def test_figures(site):
    keeper = site.keeper()
    await keeper.connected()
    for topic, expected in (("keeper.stats-get", {"hosts": 1}), ("keeper.ping", None)):
        count = len(keeper.answers)
        keeper.send(topic, {})
        await site.until(lambda count=count: len(keeper.answers) > count)
        answer = framing.unpack_answer(keeper.answers[-1].payload)
        assert expected is None or answer == expected


async def test_hosts_and_their_names_are_limited():
    site = Site(KeeperConnectionLimits(hosts_max=2, host_chars_max=4))
    try:
        first, second, third = site.keeper(), site.keeper(), site.keeper()
        await first.connected("n1")
        await second.connected("n2")
        third.connect("n3")
        assert await third.error() == (errno.EMFILE, "2 hosts are connected, the limit is 2: use fewer")
        await third.connected("n2")  # in place of the second
        for host in ("", "n1234"):
            keeper = site.keeper()
            keeper.connect(host)
            assert (await keeper.error())[1] == f"host name of {len(host)} characters, expected 1-4"
    finally:
        site.turns.stop()


# ---- pieces


def joined(messages: Iterator[KeeperMessages]) -> list[bytes]:
    inbox = PieceInbox()
    for one in messages:
        assert 0 < len(one.messages) <= REPORT_MESSAGES_MAX
        inbox.add(one)
    return [part for frames in inbox.receive(10_000) for part in frames]


SIZES = [(), (0,), (0, 0), (4,), (5,), (8,), (9,), (1, 3, 0, 1), (2, 9, 2), (4, 4), (20, 0, 1), (3, 3, 3, 30)]


@pytest.mark.parametrize("sizes", SIZES)
def test_parts_arrive_whole_however_they_were_cut(sizes):
    parts = [bytes([65 + at]) * size for at, size in enumerate(sizes)]
    cut = list(pieces(parts, 4))
    assert all(sum(map(len, one.messages)) <= 4 for one in cut)
    assert joined(iter(cut)) == parts


def test_a_message_of_a_transport_fits_into_a_report():
    (one,) = pieces([b""] * PARTS_MAX)
    assert len(one.messages) == REPORT_MESSAGES_MAX


def test_a_message_is_limited_however_it_is_cut():
    inbox = PieceInbox(part_bytes_max=5)
    inbox.add(KeeperMessages([b"abc"], is_cut=True))
    inbox.add(KeeperMessages([b"de", b"f"], is_cut=True))
    assert inbox.receive(9) == [[b"abcde"]]
    inbox.add(KeeperMessages([b"ghi"], is_cut=True))
    with pytest.raises(RemoteProtocolError, match="above the limit of 5 bytes"):
        inbox.add(KeeperMessages([b"jk"]))
