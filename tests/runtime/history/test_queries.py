"""Long queries: in another thread, some at most, and a fault in one is told to who asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fluxsched.errors import LimitExceeded, Refused
from fluxsched.runtime.loop.queries import QUERIES_WAITING_MAX, Queries
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.loop.writer import ThreadedWriter
from fluxsched.runtime.storage.jobs import Query
from fluxsched.runtime.system.clock import SystemClock

WAIT_S = 10.0


@pytest.fixture
async def site(tmp_path: Path) -> Iterator[tuple[Queries, Store]]:
    turns = Turns(SystemClock())
    store = Store(tmp_path / "state", turns)
    background = ThreadedWriter(turns, "queries")
    turns.start(asyncio.get_running_loop())
    yield Queries(store, background), store
    background.close()
    store.close()


async def asked(queries: Queries, query: Callable[[Query], object]) -> object:
    found: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    queries.run(query, found.set_result, found.set_exception)
    async with asyncio.timeout(WAIT_S):
        return await found


async def test_a_query_runs_in_another_thread_and_is_answered_in_a_turn(site: tuple[Queries, Store]) -> None:
    queries, _ = site
    here = threading.get_ident()
    assert await asked(queries, lambda read: read("SELECT 7", ())) == [(7,)]
    assert await asked(queries, lambda read: threading.get_ident() == here) is False


async def test_a_fault_in_a_query_is_told_and_the_next_one_is_answered(site: tuple[Queries, Store]) -> None:
    queries, _ = site
    with pytest.raises(Refused, match="the history cannot be read: no such table"):
        await asked(queries, lambda read: read("SELECT * FROM missing", ()))
    with pytest.raises(ZeroDivisionError):
        await asked(queries, lambda read: 1 // 0)
    with pytest.raises(Refused, match="readonly"):
        await asked(queries, lambda read: read("DELETE FROM sample", ()))
    assert await asked(queries, lambda read: read("SELECT 7", ())) == [(7,)]
    assert queries.waiting == 0


async def test_more_queries_than_may_wait_are_refused(site: tuple[Queries, Store]) -> None:
    queries, _ = site
    go = threading.Event()
    answers = [asyncio.ensure_future(asked(queries, lambda read: go.wait(WAIT_S))) for _ in range(QUERIES_WAITING_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(LimitExceeded, match=str(QUERIES_WAITING_MAX)):
        queries.run(lambda read: None, lambda answer: None, lambda fault: None)
    go.set()
    assert await asyncio.gather(*answers) == [True] * QUERIES_WAITING_MAX
