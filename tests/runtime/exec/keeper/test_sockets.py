"""The sockets of keepers: no other user is talked to there, and none is removed that leads to a keeper."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from fluxsched.errors import FluxschedError, LimitExceeded
from fluxsched.runtime.exec.keeper import connection, local_host, process
from fluxsched.runtime.exec.keeper.connection import connected
from fluxsched.runtime.exec.keeper.local_host import LocalKeeperHost
from fluxsched.runtime.exec.keeper.process import Keeper
from fluxsched.transport.base import MESSAGE_BYTES_MAX, UNSENT_BYTES_MAX
from fluxsched.transport.stream import StreamClient

WAIT_S = 15.0


@pytest.fixture
def listener(tmp_path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(tmp_path / "keeper-1"))
    listener.listen(1)
    return listener


def as_another_user(connection: socket.socket) -> tuple[int, int]:
    return os.getpid(), os.geteuid() + 1


def test_an_instance_takes_no_keeper_of_another_user(
    tmp_path: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_host, "peer_of", as_another_user)
    with listener:
        assert LocalKeeperHost(tmp_path, None, -1, 0.0).living() == []


def test_a_socket_that_no_process_listens_at_is_removed(tmp_path: Path, listener: socket.socket) -> None:
    listener.close()
    assert LocalKeeperHost(tmp_path, None, -1, 0.0).living() == []
    assert not (tmp_path / "keeper-1").exists()


def test_a_socket_that_cannot_be_asked_is_kept_and_the_start_refused(
    tmp_path: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", full)
    with listener, pytest.raises(FluxschedError, match="keeper-1 cannot be known: Too many open files"):
        LocalKeeperHost(tmp_path, None, -1, 0.0).living()
    assert (tmp_path / "keeper-1").exists()


async def test_a_keeper_hangs_up_on_another_user(
    tmp_path: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "peer_of", as_another_user)
    keeper = Keeper(str(tmp_path / "keeper-1"), listener)
    with listener, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(str(tmp_path / "keeper-1"))
        keeper._accept()  # it would need its service to attend
        stranger.settimeout(5)
        assert stranger.recv(1) == b""


def test_a_keeper_knows_its_socket_from_one_that_took_its_place(tmp_path: Path, listener: socket.socket) -> None:
    keeper = Keeper(str(tmp_path / "keeper-1"), listener)
    assert keeper.is_reachable
    (tmp_path / "keeper-1").unlink()
    assert not keeper.is_reachable
    with listener, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as another:
        another.bind(str(tmp_path / "keeper-1"))
        assert not keeper.is_reachable


async def test_a_start_larger_than_other_messages_and_a_slow_keeper_cost_no_connection() -> None:
    """Either would end the jobs of the keeper, and the first one the instance, again at each start."""
    ours, theirs = socket.socketpair()
    client = connected(ours)
    with theirs:
        for size in (MESSAGE_BYTES_MAX + 1, UNSENT_BYTES_MAX, 1):
            client.send([bytes(size)])
        client.receive(1)
        assert client.lost is None
    client.close()


def test_a_stopped_keeper_with_no_room_for_a_connection_is_said(
    tmp_path: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_host, "CONNECT_S", 0.05)
    with listener, ExitStack() as others:
        there_is_room = True
        while there_is_room:
            other = others.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            other.setblocking(False)
            there_is_room = other.connect_ex(str(tmp_path / "keeper-1")) == 0
        with pytest.raises(FluxschedError, match=r"keeper-1 .* has accepted no connection within 0.05 s; .*kill -CONT"):
            LocalKeeperHost(tmp_path, None, -1, 0.0).living()
    assert (tmp_path / "keeper-1").exists()


async def test_a_killed_keeper_that_is_not_gone_is_not_waited_for_without_end(
    tmp_path: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Here it is this process, which is not killed; a real one may wait for a disk."""
    monkeypatch.setattr(local_host, "GONE_S", 0.01)
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda fd, signum: None)
    host = LocalKeeperHost(tmp_path, None, -1, 0.0)
    with listener:
        [client] = host.living()
        host.end(client, 0.0)
        client.close()
    assert f"keeper {os.getpid()} is not gone 0.01 s after it was killed" in caplog.text


async def test_a_part_beyond_the_limit_ends_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PART_BYTES_MAX", 1000)
    ours, theirs = socket.socketpair()
    client, other = connected(ours), StreamClient(theirs)
    with pytest.raises(LimitExceeded, match="limit 1000"):
        client.send([bytes(1001)])
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()
    client.start(loop, arrived.set)
    other.start(loop, lambda: None)
    other.send([bytes(1001)])
    async with asyncio.timeout(WAIT_S):
        while client.lost is None:
            arrived.clear()
            client.receive(1)
            if client.lost is None:
                await arrived.wait()
    assert "1000" in client.lost
    client.close()
    other.close()
