"""Who owns the path of a socket: one at a time, and nothing is left of it."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from fluxsched.errors import InvalidValue, Refused
from fluxsched.transport.base import Disconnected
from fluxsched.transport.endpoints import SOCKET_PATH_BYTES_MAX, PathClaim, check_listening, local_path


def test_a_released_claim_leaves_no_lock_file_behind(tmp_path: Path) -> None:
    claim = PathClaim(tmp_path / "s")
    with pytest.raises(Refused) as refused:
        PathClaim(tmp_path / "s")
    assert refused.value.errnum == errno.EADDRINUSE
    claim.release()
    assert os.listdir(tmp_path) == []
    PathClaim(tmp_path / "s").release()


def test_a_lock_file_that_was_removed_in_between_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = PathClaim(tmp_path / "s")
    opened = os.open
    calls = []

    def open_late(path: str, *rest: int) -> int:
        """The first one ends between the second one's open and its lock."""
        fd = opened(path, *rest)
        calls.append(path)
        if len(calls) == 1:
            first.release()
        return fd

    monkeypatch.setattr("fluxsched.transport.endpoints.os.open", open_late)
    second = PathClaim(tmp_path / "s")
    assert len(calls) == 2
    with pytest.raises(Refused):
        PathClaim(tmp_path / "s")
    second.release()
    assert os.listdir(tmp_path) == []


def test_an_instance_of_another_user_is_not_said_to_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """"is the instance running?", it asked."""

    def refused(self: socket.socket, address: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("fluxsched.transport.endpoints.socket.socket.connect", refused)
    with pytest.raises(Disconnected, match=r"may not connect to ipc:///s \(Permission denied\): it is for"):
        check_listening("ipc:///s")


def test_the_path_of_a_socket_has_a_limit(tmp_path: Path) -> None:
    path = f"/{'x' * (SOCKET_PATH_BYTES_MAX - 1)}"
    assert local_path(f"local://{path}") == Path(path)
    with pytest.raises(InvalidValue, match=f"longer than {SOCKET_PATH_BYTES_MAX} bytes"):
        local_path(f"local://{path}x")
