"""The sockets of keepers: no other user is talked to there, and none is removed that leads to a keeper."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from fluxsched.errors import FluxschedError
from fluxsched.runtime.exec.keeper import local_host, process
from fluxsched.runtime.exec.keeper.connection import connected
from fluxsched.runtime.exec.keeper.local_host import LocalKeeperHost
from fluxsched.runtime.exec.keeper.process import Keeper
from fluxsched.transport.base import MESSAGE_BYTES_MAX, UNSENT_BYTES_MAX


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
