"""Fixtures of keepers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.runtime.exec.keeper.played import Bench


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    bench.clients = {}
    yield bench
    bench.turns.stop()
