"""An instance that a test plays, and hosts whose keepers are real processes, forked from a prepared one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from fluxsched.engine import process
from tests.engine.harness import KEEPER, KEEPER_MODULE, Host, Site
from tests.prepared.caller import prepared
from tests.prepared.children import forking
from tests.site import children_are_forked, eventually, world

__all__ = ["children_are_forked", "eventually", "world"]


@pytest.fixture(autouse=True, scope="package")
def _keepers_of_hosts_are_forked() -> Iterator[None]:
    with forking(prepared().child, process, starts=(KEEPER_MODULE, KEEPER)):
        yield


@pytest.fixture
async def played() -> AsyncIterator[Site]:
    site = Site()
    yield site
    site.close()


@pytest.fixture
def start_host(tmp_path: Path) -> Iterator[Callable[..., Host]]:
    hosts: list[Host] = []

    def start(name: str = "n1", *, is_real: bool = False) -> Host:
        hosts.append(Host(tmp_path, name, is_real=is_real))
        return hosts[-1]

    yield start
    for host in hosts:
        host.close()
