"""Who owns the path of a socket: one at a time, and nothing is left of it."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import chdir
from pathlib import Path

import pytest

from fluxsched.errors import Disconnected, InvalidValue, Refused
from fluxsched.transport.base import SOCKET_PATH_BYTES_MAX, PathClaim, check_listening, local_path
from fluxsched.transport.local import connect_local


def test_a_released_claim_leaves_no_lock_file_behind(tmp_path: Path) -> None:
    claim = PathClaim(tmp_path / "s")
    with pytest.raises(Refused) as refused:
        PathClaim(tmp_path / "s")
    assert refused.value.errnum == errno.EADDRINUSE
    claim.release()
    assert os.listdir(tmp_path) == []
    PathClaim(tmp_path / "s").release()


def test_a_lock_file_that_was_removed_in_between_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    monkeypatch.setattr("fluxsched.transport.base.os.open", open_late)
    second = PathClaim(tmp_path / "s")
    assert len(calls) == 2
    with pytest.raises(Refused):
        PathClaim(tmp_path / "s")
    second.release()
    assert os.listdir(tmp_path) == []


def test_an_instance_of_another_user_is_not_said_to_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error asked "is the instance running?"."""

    def refused(self: socket.socket, address: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("fluxsched.transport.base.socket.socket.connect", refused)
    with pytest.raises(Disconnected, match=r"may not connect to ipc:///s \(Permission denied\): it is for"):
        check_listening("ipc:///s")


def test_the_path_of_a_socket_has_a_limit(tmp_path: Path) -> None:
    path = f"/{'x' * (SOCKET_PATH_BYTES_MAX - 1)}"
    assert local_path(f"local://{path}") == Path(path)
    with pytest.raises(InvalidValue, match=f"longer than {SOCKET_PATH_BYTES_MAX} bytes"):
        local_path(f"local://{path}x")


def test_a_lock_file_is_not_made_through_a_link_of_another_user(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "s.lock").symlink_to(elsewhere)
    with pytest.raises(Refused, match=r"s\.lock is a symbolic link, .*: remove it, or choose another") as refused:
        PathClaim(tmp_path / "s")
    assert refused.value.errnum == errno.ELOOP
    assert not elsewhere.exists()


@pytest.mark.parametrize("kind", ["link", "file"])
def test_the_mode_of_what_replaced_a_bound_socket_stays(tmp_path: Path, kind: str) -> None:
    elsewhere, claim = tmp_path / "elsewhere", PathClaim(tmp_path / "s")
    elsewhere.touch(0o600)
    if kind == "link":
        claim.path.symlink_to(elsewhere)
    else:
        claim.path.hardlink_to(elsewhere)
    with pytest.raises(Refused, match="was replaced by another user"):
        claim.set_mode(0o666)
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o600
    claim.release()


def test_another_users_socket_in_the_name_of_a_run_directory_is_refused(tmp_path: Path) -> None:
    """In /tmp anybody may take the name of an instance that is down."""
    directory = tmp_path / f"fluxsched-{os.geteuid() + 1}-abc"
    directory.mkdir()
    ours = tmp_path / f"fluxsched-{os.geteuid()}-abc"
    ours.mkdir()
    for place, listens in ((directory, False), (ours, True), (tmp_path, True)):
        with chdir(place), socket.socket(socket.AF_UNIX) as listener:
            listener.bind("instance.sock")
            listener.listen()
            for connect, scheme in ((check_listening, "ipc"), (_connect_and_close, "local")):
                if listens:
                    connect(f"{scheme}://{place}/instance.sock")
                else:
                    with pytest.raises(Disconnected, match="is a socket of user"):
                        connect(f"{scheme}://{place}/instance.sock")


def _connect_and_close(endpoint: str) -> None:
    connect_local(endpoint).close()
