"""An instance that a test plays, and hosts whose keepers are real processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.engine.harness import Host, Site
from tests.site import eventually, world

__all__ = ["eventually", "world"]


@pytest.fixture
async def played() -> AsyncIterator[Site]:
    site = Site()
    yield site
    site.close()


@pytest.fixture
def start_host(tmp_path: Path) -> Iterator[Callable[..., Host]]:
    hosts: list[Host] = []

    def start(name: str = "n1") -> Host:
        hosts.append(Host(tmp_path, name))
        return hosts[-1]

    yield start
    for host in hosts:
        host.close()
