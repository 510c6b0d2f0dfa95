"""Law 3 down to the system: nothing is answered before the disk was asked to sync it, and said that it did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fluxsched.runtime.loop import store as stores
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.system.clock import SystemClock

from .watched_syncs import Syncs, library, watched_syncs

WAIT_S = 10.0
HELD_S = 0.1
"""How long a sync is held up to see that nothing happens meanwhile."""
ROWS = 100


@pytest.fixture
def syncs() -> Iterator[Syncs]:
    sqlite = library()
    if sqlite is None:
        pytest.skip("this Python's SQLite cannot be called from outside")
    with watched_syncs(sqlite) as found:
        yield found


@pytest.fixture
async def store(syncs: Syncs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    monkeypatch.setattr(stores, "RETRY_S", 0.01)
    turns = Turns(SystemClock())
    found = Store(tmp_path / "state", turns)
    turns.at_end(found.flush)
    turns.start(asyncio.get_running_loop())
    yield found
    syncs.may_go.set()
    found.close()


def keep(store: Store, key: str, told: list[str]) -> None:
    store.add("saved", ("test", key, b"1"))
    store.after_commit(lambda: told.append(key))
    store._turns.wake()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.002)


async def test_nothing_is_told_before_its_sync_is_done(store: Store, syncs: Syncs) -> None:
    told: list[str] = []
    syncs.may_go.clear()
    keep(store, "a", told)
    await asyncio.sleep(HELD_S)
    assert told == []
    before = syncs.of_log
    syncs.may_go.set()
    await until(lambda: told)
    assert syncs.of_log > before


async def test_each_transaction_is_synced_and_many_rows_share_one(store: Store, syncs: Syncs) -> None:
    told: list[str] = []
    keep(store, "begin", told)
    await until(lambda: told)  # a log that is begun anew is synced once more, behind its header
    told.clear()
    for number in range(3):
        before = syncs.of_log
        keep(store, str(number), told)
        await until(lambda number=number: len(told) == number + 1)
        assert syncs.of_log == before + 1
    syncs.may_go.clear()
    before = syncs.of_log
    keep(store, "first", told)
    store.flush()
    for number in range(ROWS):
        keep(store, f"row {number}", told)
    await asyncio.sleep(HELD_S)
    syncs.may_go.set()
    await until(lambda: len(told) == ROWS + 4)
    assert syncs.of_log == before + 2, "one for the first, one for all that gathered meanwhile"


async def test_a_sync_that_fails_answers_nothing_and_is_tried_again(store: Store, syncs: Syncs) -> None:
    told: list[str] = []
    syncs.fails = True
    keep(store, "a", told)
    await until(lambda: store.fault)
    keep(store, "b", told)
    await asyncio.sleep(HELD_S)
    assert told == []
    assert "cannot be written: disk I/O error" in str(store.fault)
    syncs.fails = False
    await until(lambda: len(told) == 2)
    assert told == ["a", "b"]
    assert store.fault is None
    assert store.read("SELECT key FROM saved WHERE kind = 'test' ORDER BY key") == [("a",), ("b",)]


async def test_a_copy_of_the_log_is_synced_on_both_sides(store: Store, syncs: Syncs) -> None:
    """The log before it is copied into the file, the file before the log is used anew."""
    told: list[str] = []
    keep(store, "a", told)
    await until(lambda: told)
    before = (syncs.of_log, syncs.of_file)
    store.close()
    assert (syncs.of_log > before[0], syncs.of_file > before[1]) == (True, True)


async def test_an_instance_answers_no_submit_and_no_drain_before_the_sync(
    syncs: Syncs, world: Any, timed: Any
) -> None:
    site = await world.instance(fake="2x2", statedir=world.directory / "state")
    peer = world.second(site)
    await peer.settle()
    syncs.may_go.clear()
    submitted = peer.send("job-manager.submit", {"jobspec": timed("1ms").to_json()})
    drained = peer.send("resource.drain", {"targets": "1", "reason": "fan"})
    await asyncio.sleep(HELD_S)
    await peer.settle()
    assert (peer.waiting(submitted), peer.waiting(drained)) == ([], [])
    syncs.may_go.set()
    assert (await peer.next(submitted)).errnum == 0
    assert (await peer.next(drained)).errnum == 0
    await world.stop(site)
