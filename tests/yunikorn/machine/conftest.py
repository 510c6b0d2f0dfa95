"""A resource manager with two nodes and an application."""

from __future__ import annotations

import pytest

pytest.importorskip("google.protobuf")
pytest.importorskip("yaml")

from .rms import Client


@pytest.fixture
def rm() -> Client:
    return Client().node("n1", 100).node("n2", 100).application().run()


@pytest.fixture
def quiet(rm: Client) -> Client:
    """The same after what it was told first."""
    rm.node_items()
    rm.application_items()
    return rm
