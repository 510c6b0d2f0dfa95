"""What only real sockets can do: descriptors used again, identities that come back, paths, killed processes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import zmq

from fluxsched.errors import Disconnected, InvalidValue, LimitExceeded, Refused
from fluxsched.transport import sockets, zeromq
from fluxsched.transport.base import PARTS_MAX, Arrived, Lost
from fluxsched.transport.zeromq import BlockingClient, ZmqClient, ZmqServer


class Plain:
    """Somebody else's client: a DEALER as pyzmq makes it."""

    def __init__(self, server: Any, identity: bytes = b"") -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        if identity:
            self.socket.setsockopt(zmq.IDENTITY, identity)
        self.socket.connect(server.end.endpoint)

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)

    def close(self) -> None:
        self.socket.close(1000)
        self.context.term()


async def test_descriptors_used_again_at_once_never_confuse_peers(ipc: Any) -> None:
    server = ipc.server()
    for turn in range(40):
        plain = Plain(server)
        plain.send(b"", b"%d" % turn)
        plain.close()
    await server.until(lambda: len(server.lost) == 40)
    assert [item.frames[1] for item in server.arrived] == [b"%d" % turn for turn in range(40)]
    assert {item.peer for item in server.arrived} == {item.peer for item in server.lost}
    for lost in server.lost:
        (message,) = [item for item in server.arrived if item.peer == lost.peer]
        assert server.items.index(message) < server.items.index(lost)
    assert server.end.peers() == 0


async def test_a_late_drop_hits_no_other_peer(ipc: Any) -> None:
    """The only message of a peer is read after its end: its descriptor may be another one's by then."""
    server = ipc.server()
    server.on_item = lambda item: server.end.drop(item.peer, "") if item[1][1:] == [b"goodbye"] else None
    for _ in range(20):
        server.items.clear()
        server.paused = True
        first = Plain(server)
        first.send(b"", b"goodbye")
        first.close()
        second = Plain(server)
        second.send(b"", b"stay")
        await asyncio.sleep(0.02)
        server.resume()
        await server.until(lambda: len(server.arrived) == 2)
        (stays,) = [item.peer for item in server.arrived if item.frames[1] == b"stay"]
        server.send(stays, [b"", b"welcome"])
        answered = second.socket.poll(2000)
        second.close()
        assert answered, "cut off in the place of another"
        await server.until(lambda: len(server.lost) == 2)


async def test_a_chosen_identity_that_comes_back_at_once_is_a_new_peer(ipc: Any) -> None:
    server = ipc.server()
    first = Plain(server, b"bob")
    first.send(b"", b"one")
    await server.until(lambda: server.arrived)
    server.paused = True
    first.close()
    second = Plain(server, b"bob")
    second.send(b"", b"two")
    await asyncio.sleep(0.1)
    server.resume()
    await server.until(lambda: server.lost)
    await server.until(lambda: len(server.arrived) == 2)
    old, new = (item.peer for item in server.arrived)
    assert old != new
    assert server.lost == [Lost(old, "connection closed")]
    server.send(new, [b"", b"welcome"])
    assert second.socket.poll(2000)
    assert second.socket.recv_multipart() == [b"", b"welcome"]
    second.close()
    await server.until(lambda: len(server.lost) == 2)
    assert server.lost[1].peer == new
    assert server.end.peers() == 0


async def test_an_identity_that_comes_back_while_the_loop_is_busy_is_answered(ipc: Any) -> None:
    server, loop = ipc.server(), asyncio.get_running_loop()
    first = Plain(server, b"bob")
    first.send(b"", b"one")
    await server.until(lambda: server.arrived)
    taken: list[Any] = []

    def return_to_a_busy_loop() -> Plain:
        loop.call_soon(lambda: taken.extend(server.end.receive(100)))  # before the loop looks at any descriptor
        first.close()
        second = Plain(server, b"bob")
        second.send(b"", b"two")
        time.sleep(0.1)
        return second

    second = return_to_a_busy_loop()
    await server.until(lambda: [*taken, *server.lost])
    two = next(one for one in [*taken, *server.arrived[1:]] if isinstance(one, Arrived))
    server.send(two.peer, [b"", b"welcome"])
    assert await asyncio.to_thread(second.socket.poll, 5000)
    second.close()


async def test_what_was_unread_when_an_identity_came_back_still_belongs_to_the_former_peer(ipc: Any) -> None:
    server = ipc.server()
    first = Plain(server, b"bob")
    first.send(b"", b"0")
    await server.until(lambda: server.arrived)
    former = server.items[0].peer
    for number in range(1, 50):
        first.send(b"", b"%d" % number)
    first.close()
    second = Plain(server, b"bob")
    second.send(b"", b"new")
    time.sleep(0.1)  # the server is busy all the while
    await server.until(lambda: server.lost)
    await server.until(lambda: len(server.arrived) == 51)
    assert [item.frames[1] for item in server.arrived if item.peer == former] == [b"%d" % n for n in range(50)]
    assert server.items.index(server.lost[0]) > server.items.index(server.arrived[49])
    assert server.lost == [Lost(former, "connection closed")]
    second.close()


async def test_an_identity_taken_by_a_second_living_client_ends_the_first(ipc: Any) -> None:
    server = ipc.server()
    first, second = Plain(server, b"bob"), None
    first.socket.setsockopt(zmq.RECONNECT_IVL, -1)
    first.send(b"", b"one")
    await server.until(lambda: server.arrived)
    second = Plain(server, b"bob")
    second.send(b"", b"two")
    await server.until(lambda: server.lost)
    await server.until(lambda: len(server.arrived) == 2)
    assert server.lost == [Lost(b"bob", "its identity came back on another connection")]
    server.send(server.arrived[1].peer, [b"", b"yours"])
    assert second.socket.poll(2000)
    first.socket.close(0)
    first.close()
    second.close()


SENDS_AND_DIES = """
import os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(b"\\xff" + bytes(8) + b"\\x7f\\x03\\0" + b"NULL".ljust(52, b"\\0"))
s.recv(64, socket.MSG_WAITALL)
ready = b"\\x05READY\\x0bSocket-Type\\0\\0\\0\\x06DEALER"
s.sendall(b"\\x04" + bytes([len(ready)]) + ready)
s.recv(s.recv(2, socket.MSG_WAITALL)[1], socket.MSG_WAITALL)
numbers = [b"%d" % n for n in range(2500)]
s.sendall(b"".join(b"\\x01\\0" + bytes([0, len(number)]) + number for number in numbers))
os.kill(os.getpid(), 9)
"""
"""A DEALER by hand: zmq does not tell when the kernel has what it was given to send."""


async def test_a_killed_process_loses_nothing_that_it_had_sent(ipc: Any) -> None:
    server = ipc.server()
    server.paused = True
    path = server.end.endpoint.removeprefix("ipc://")
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SENDS_AND_DIES, path)
    assert await process.wait() == -signal.SIGKILL
    server.resume()
    await server.until(lambda: server.lost)
    assert [item.frames[1] for item in server.items[:-1]] == [b"%d" % n for n in range(2500)]
    assert server.items[-1] == Lost(server.items[0].peer, "connection closed")


async def test_garbage_and_broken_handshakes_disturb_no_peer(ipc: Any) -> None:
    server, client, _ = await ipc.pair()
    path = server.end.endpoint.removeprefix("ipc://")
    for bad in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" + bytes(8) + b"\x7f\x03\x00", b"\xff" * 200):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(path)
            stranger.sendall(bad)
    await asyncio.sleep(0.05)
    client.send([b"still here"])
    await server.until(lambda: server.items)
    assert [item.frames for item in server.items] == [[b"still here"]]
    assert server.end.peers() == 1


async def test_too_many_parts_end_their_sender(ipc: Any) -> None:
    server, client, _ = await ipc.pair()
    plain = Plain(server)
    plain.socket.setsockopt(zmq.RECONNECT_IVL, -1)
    plain.send(*[b""] * (PARTS_MAX + 1))
    await server.until(lambda: server.items)
    assert server.items[0].reason == f"message of more than {PARTS_MAX} parts"
    plain.close()
    client.send([b"fine"])
    await server.until(lambda: server.arrived)


async def test_a_frame_of_the_wrong_type_spoils_no_later_message(ipc: Any) -> None:
    server, client, peer = await ipc.pair()
    for frames in (["text"], [b"", "text"]):
        with pytest.raises(TypeError):
            server.send(peer, frames)
        with pytest.raises(TypeError):
            client.send(frames)
    await server.until(lambda: server.items)
    other, other_name = await ipc.known(server)
    server.send(other_name, [b"whole"])
    await other.until(lambda: other.items)
    assert other.items == [[b"whole"]]
    client.send([b"whole"])
    await server.until(lambda: server.arrived and server.arrived[-1].frames == [b"whole"])


async def test_many_clients_at_once(ipc: Any) -> None:
    server = ipc.server()
    server.on_item = lambda item: server.send(item.peer, item.frames)
    clients = [ipc.client(server) for _ in range(60)]
    for number, client in enumerate(clients):
        client.send([b"%d" % number])
    for number, client in enumerate(clients):
        await client.until(lambda client=client: client.items)
        assert client.items == [[b"%d" % number]]
    for client in clients:
        client.end.close()
    server.on_item = None
    await server.until(lambda: len(server.lost) == 60)
    assert {item.peer for item in server.lost} == {item.peer for item in server.arrived}


def test_a_second_server_is_refused_and_a_dead_path_is_taken_over(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/run/s"
    first = ZmqServer(endpoint)
    with pytest.raises(Refused, match="in use by another server"):
        ZmqServer(endpoint)
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "run" / "s").stat().st_mode & 0o777 == 0o600
    first.close()
    assert not (tmp_path / "run" / "s").exists()
    with socket.socket(socket.AF_UNIX) as leftover:
        leftover.bind(str(tmp_path / "run" / "s"))
    ZmqServer(endpoint).close()


def test_a_path_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis").write_text("years of work")
    with pytest.raises(Refused, match="is not a socket"):
        ZmqServer(f"ipc://{tmp_path}/thesis")
    assert (tmp_path / "thesis").read_text() == "years of work"


def test_a_tcp_port_in_use_is_refused() -> None:
    server = ZmqServer("tcp://127.0.0.1:*", insecure_tcp=True)
    with pytest.raises(Refused, match="cannot bind"):
        ZmqServer(server.endpoint, insecure_tcp=True)
    server.close()


@pytest.mark.parametrize("make", [ZmqClient, BlockingClient])
def test_a_dead_endpoint_is_an_error_at_once(make: Any, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as leftover:
        leftover.bind(str(tmp_path / "dead"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    for endpoint in (f"ipc://{tmp_path}/dead", f"ipc://{tmp_path}/missing", f"tcp://127.0.0.1:{port}"):
        with pytest.raises(Disconnected, match="nothing listens at"):
            make(endpoint)


@pytest.mark.parametrize(
    ("endpoint", "text"),
    [
        ("tcp://10.0.0.1:5555", "needs CURVE"),
        ("tcp://*:5555", "needs CURVE"),
        ("tcp://example.org:1", "needs CURVE"),
        ("tcp://127.0.0.1", "expected tcp"),
        ("tcp://127.0.0.1:65536", "PORT 0-65535"),
        ("tcp://127.0.0.1:http", "PORT 0-65535"),
        ("ipc://relative", "absolute path"),
        ("ipc://@abstract", "absolute path"),
        ("ipc:///" + "x" * 107, "longer than 107 bytes"),
        ("udp://127.0.0.1:1", "expected ipc"),
        ("local:///tmp/local-0", "local sockets are for Flux's own commands"),
        ("", "expected ipc"),
    ],
)
def test_endpoints_that_we_do_not_bind(endpoint: str, text: str) -> None:
    with pytest.raises(InvalidValue, match=text):
        ZmqServer(endpoint)


def test_a_client_must_name_the_port() -> None:
    with pytest.raises(InvalidValue, match="name the port"):
        ZmqClient("tcp://127.0.0.1:*")


def test_the_blocking_client_asks_waits_and_notices_the_end(tmp_path: Path) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        endpoint = f"ipc://{tmp_path}/s"
        router.bind(endpoint)
        client = BlockingClient(endpoint)
        assert client.receive(0.01) is None
        client.send([b"", b"ask"])
        identity, *frames = router.recv_multipart()
        assert frames == [b"", b"ask"]
        answer = threading.Timer(0.02, router.send_multipart, [[identity, b"", b"answer"]])
        answer.start()
        assert client.receive() == [b"", b"answer"]
        answer.join()
        router.send_multipart([identity, b"last"])
        assert client.receive(1.0) == [b"last"]
        router.close(0)
        with pytest.raises(Disconnected, match="closed the connection"):
            client.receive(2.0)
        with pytest.raises(Disconnected):
            client.send([b"too late"])
        client.close()
        with pytest.raises(Disconnected, match="was closed here"):
            client.send([b"after close"])
        with pytest.raises(Disconnected, match="was closed here"):
            client.receive()


def test_a_signal_that_interrupts_no_poll_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that comes just before a poll: here another thread gets it, and the handler is the main thread's."""
    monkeypatch.setattr(sockets, "POLL_MS", 10)
    handled, in_time = threading.Event(), []

    def get_signal() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        in_time.append(handled.wait(20))

    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        endpoint = f"ipc://{tmp_path}/s"
        router.bind(endpoint)
        client = BlockingClient(endpoint)

        def handle(signum: int, frame: object) -> None:
            handled.set()
            raise InterruptedError

        before = signal.signal(signal.SIGUSR1, handle)
        try:
            getter = threading.Timer(0.05, get_signal)
            getter.start()
            with pytest.raises(InterruptedError):
                client.receive(30.0)
            getter.join()
        finally:
            signal.signal(signal.SIGUSR1, before)
            client.close()
    assert in_time == [True]


class _Interrupting:
    """Raises KeyboardInterrupt where line number `left` of sockets.py would be executed, as Ctrl-C may at each."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __enter__(self) -> None:
        sys.settrace(self.trace)

    def __exit__(self, *exc: object) -> None:
        sys.settrace(None)

    def trace(self, frame: Any, event: str, arg: object) -> Any:
        if frame.f_code.co_filename != sockets.__file__:
            return None
        self.left -= event == "line"
        if not self.left:
            sys.settrace(None)
            raise KeyboardInterrupt
        return self.trace


def test_ctrl_c_cuts_no_message_in_two(tmp_path: Path) -> None:
    """A client that goes on afterwards, to cancel its job, goes on with whole messages, or knows that it is closed."""
    closed = went_on = 0
    for line in range(1, 1000):
        with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
            router.bind(endpoint := f"ipc://{tmp_path}/s{line}")
            client = BlockingClient(endpoint)
            client.send([b"first", b"of", b"three"])
            router.send_multipart(first := router.recv_multipart())
            assert first[1:] == [b"first", b"of", b"three"]
            client._pump.wait_message(1000)
            interrupting = _Interrupting(line)
            try:
                with interrupting:
                    client.send([b"second", b"of", b"three"])
                    client.receive()
            except KeyboardInterrupt:
                pass
            last = b"third"
            try:
                client.send([b"third", b"of", b"three"])
                went_on += 1
            except Disconnected:
                closed, last = closed + 1, b""
            client.close()
            while router.poll(10_000 if last else 20):
                whole = router.recv_multipart()[1:]
                assert whole[1:] == [b"of", b"three"]
                if whole[0] == last:
                    last = b""
            assert not last
        if interrupting.left > 0:
            break
    assert closed >= 5
    assert went_on >= 5


def test_what_an_interrupted_client_receives_is_whole(tmp_path: Path) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.bind(endpoint := f"ipc://{tmp_path}/s")
        for line in range(1, 1000):
            client = BlockingClient(endpoint)
            client.send([b"hello"])
            identity = router.recv_multipart()[0]
            for number in (b"1", b"2", b"3"):
                router.send_multipart([identity, number, b"of", b"three"])
            client._pump.wait_message(1000)
            interrupting = _Interrupting(line)
            try:
                with interrupting:
                    client.receive()
            except KeyboardInterrupt:
                pass
            with suppress(Disconnected):
                assert client.receive(10.0)[1:] == [b"of", b"three"]
            client.close()
            if interrupting.left > 0:
                break


def test_a_process_may_exit_right_after_close(tmp_path: Path) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        endpoint = f"ipc://{tmp_path}/s"
        router.bind(endpoint)
        script = (
            "import sys; from fluxsched.transport.zeromq import BlockingClient; c = BlockingClient(sys.argv[1])\n"
            "for n in range(100): c.send([b'%d' % n])\n"
            "c.close()"
        )
        environment = dict(os.environ)
        subprocess.run([sys.executable, "-c", script, endpoint], check=True, timeout=10, env=environment)
        received = []
        while router.poll(200):
            received.append(router.recv_multipart()[1])
        assert received == [b"%d" % n for n in range(100)]


def test_a_blocking_client_sends_up_to_a_limit_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sockets, zeromq):
        monkeypatch.setattr(module, "RECEIVE_MESSAGES_MAX", 5)
    server = ZmqServer(f"ipc://{tmp_path}/s")
    client = BlockingClient(server.endpoint)

    def flood() -> None:
        for _ in range(1000):
            client.send([bytes(1 << 16)])

    with pytest.raises(LimitExceeded, match="5 messages unsent"):
        flood()
    client.close()
    server.close()


async def test_what_a_client_does_not_read_is_kept_by_the_server(ipc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "CLIENT_RECEIVE_MESSAGES_MAX", 5)
    server, client, peer = await ipc.pair()
    client.paused = True
    sent = 0
    while not server.end.unsent_bytes(peer):
        server.send(peer, [bytes(1 << 16)])
        sent += 1
    assert sent < 1000
    client.resume()
    await client.until(lambda: len(client.items) == sent)


def test_an_end_that_libzmq_does_not_come_to_holds_nobody_up() -> None:
    context = sockets.Context()
    one = context.socket(zmq.PAIR)
    assert not sockets.end_context(context, 0.1), "libzmq waits for a socket that is open"
    one.close()
    assert sockets.end_context(sockets.Context())
