"""Addresses of instances as a process finds them, also on a host where the instance itself is not."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from fluxsched.client.find import local_uri_of, parent_of
from fluxsched.errors import FluxschedError


class Asked:
    """An instance on another machine, which names its own addresses."""

    parent: str | None = "ipc:///there/outer/instance.sock"

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def rpc(self, topic: str, payload: Any = None, *, timeout_s: float | None = None) -> Any:
        found = {"uri": "x", "parent": self.parent}
        return {"attr.get": {"value": "local:///there/local-0"}, "instance.info": found}[topic]


def test_the_socket_for_flux_is_the_one_beside_ours(tmp_path: Path) -> None:
    handle = Asked(f"ipc://{tmp_path}/instance.sock")
    assert local_uri_of(handle) == "local:///there/local-0"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/local-0")
        assert local_uri_of(handle) == f"local://{tmp_path}/local-0"
        assert local_uri_of(Asked("tcp://host:1")) == "local:///there/local-0"


def test_the_parent_is_where_this_process_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUXSCHED_URI", "ipc:///here/instance.sock")
    monkeypatch.setenv("FLUXSCHED_PARENT_URI", "ipc:///here/outer/instance.sock")
    handle = Asked("ipc:///here/instance.sock")
    assert parent_of(handle) == "ipc:///here/outer/instance.sock"
    assert parent_of(Asked("ipc:///another/instance.sock")) == Asked.parent, "the variable is of another instance"
    monkeypatch.delenv("FLUXSCHED_PARENT_URI")
    assert parent_of(handle) == Asked.parent
    handle.parent = None
    with pytest.raises(FluxschedError, match="has no enclosing instance"):
        parent_of(handle)
