"""`stop` of an instance that is being killed: its threads accept connections for a moment after it is gone."""

from __future__ import annotations

import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from fluxsched.errors import Disconnected
from fluxsched.runtime.instance import launch

URI = "ipc:///run/an-instance/instance.sock"


def test_one_that_closes_the_connection_is_asked_until_nothing_listens(tmp_path: Path) -> None:
    """`stop` failed with "the server closed the connection"."""
    path = tmp_path / "dying.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def die() -> None:
        with listener:
            for _ in range(2):
                listener.accept()[0].close()
            path.unlink()

    thread = threading.Thread(target=die)
    thread.start()
    with pytest.raises(Disconnected, match="nothing listens"):
        launch.stop(f"ipc://{path}")
    thread.join()


def test_one_that_ends_before_it_answers_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()

    class Handle:
        def __init__(self, uri: str) -> None: ...

        def __enter__(self) -> Handle:
            return self

        def __exit__(self, *_: object) -> None: ...

        def rpc(self, topic: str) -> dict[str, Any]:
            if topic == "instance.stop":
                raise Disconnected(f"the server at {URI} closed the connection")
            return {"pid": ended.pid}

    monkeypatch.setattr(launch, "Handle", Handle)
    assert launch.stop(URI) == URI


def test_one_that_closes_each_connection_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_ask_to_stop", lambda uri: None)
    with pytest.raises(launch.FluxschedError, match="closes each connection"):
        launch.stop(URI, 0.0)
