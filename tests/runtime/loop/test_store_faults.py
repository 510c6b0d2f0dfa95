"""A disk that takes nothing for a while: what was to be stored is stored later, in order, and not told before."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import FluxschedError, Refused
from fluxsched.runtime.loop import store as stores
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.messaging import disk_guard as disk
from fluxsched.runtime.messaging.disk_guard import DiskGuard, shortage
from fluxsched.runtime.system.clock import SystemClock

WAIT_S = 10.0


class Disk:
    """A store, and its writer's connection, which has room for no page more while it is `full`."""

    def __init__(self, store: Store, writer: sqlite3.Connection) -> None:
        self.store = store
        self.turns = store._turns
        self._writer = writer

    def full(self) -> None:
        pages = self._writer.execute("PRAGMA page_count").fetchone()[0]
        self._writer.execute(f"PRAGMA max_page_count = {pages}")

    def repair(self) -> None:
        self._writer.execute("PRAGMA max_page_count = 1000000")

    def add(self, jobid: int) -> None:
        self.store.add("job_log", (jobid, 0, b"x" * 9000, "", 0, 0, ""))
        self.turns.wake()

    def known(self) -> list[int]:
        return [jobid for (jobid,) in self.store.read("SELECT jobid FROM job_log ORDER BY seq")]

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.002)


@pytest.fixture
async def full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Disk]:
    connections: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def opened(*words: object, **more: object) -> sqlite3.Connection:
        connections.append(connect(*words, **more))  # type: ignore[call-overload]
        return connections[-1]

    monkeypatch.setattr(sqlite3, "connect", opened)
    monkeypatch.setattr(stores, "RETRY_S", 0.01)
    turns = Turns(SystemClock())
    store = Store(tmp_path / "state", turns)
    turns.at_end(store.flush)
    turns.start(asyncio.get_running_loop())
    yield Disk(store, connections[1])
    store.close()


async def test_what_a_full_disk_refused_is_written_when_there_is_room(full_disk: Disk) -> None:
    store, told = full_disk.store, []
    full_disk.full()
    full_disk.add(1)
    store.after_commit(lambda: told.append(1))
    await full_disk.until(lambda: store.fault)
    assert store.is_full
    assert "cannot be written: database or disk is full" in str(store.fault)
    full_disk.add(2)
    store.after_commit(lambda: told.append(2))
    await asyncio.sleep(0.05)
    assert (told, full_disk.known()) == ([], [])
    full_disk.repair()
    await full_disk.until(lambda: len(told) == 2)
    assert (told, full_disk.known(), store.fault) == ([1, 2], [1, 2], None)


async def test_readers_are_served_while_the_disk_is_full(full_disk: Disk) -> None:
    store, joined = full_disk.store, []
    full_disk.add(1)
    await full_disk.until(lambda: full_disk.known() == [1])
    full_disk.full()
    full_disk.add(2)
    store.when_settled(lambda: joined.append("waited"))
    await full_disk.until(lambda: store.fault and joined)
    store.when_settled(lambda: joined.append("at once"))
    assert joined == ["waited", "at once"]
    full_disk.repair()


async def test_who_asks_while_a_write_is_about_to_fail_is_served_too(full_disk: Disk) -> None:
    """A signal that was sent in this moment waited for room, and so did its answer."""
    store, served = full_disk.store, []
    full_disk.full()
    full_disk.add(1)
    store.flush()
    store.when_settled(lambda: served.append("behind it"))
    await full_disk.until(lambda: served)
    assert store.fault
    full_disk.repair()


async def test_more_rows_than_may_wait_for_a_full_disk_end_the_instance(
    full_disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "UNSTORED_ROWS_MAX", 3)
    failed: list[BaseException] = []
    full_disk.store.failed = failed.append
    full_disk.full()
    full_disk.add(1)
    await full_disk.until(lambda: full_disk.store.fault)
    for jobid in range(2, 5):
        full_disk.add(jobid)
    await asyncio.sleep(0.05)
    assert failed == []
    full_disk.add(5)
    await full_disk.until(lambda: failed)
    assert "and 4 rows wait for it; the limit is 3" in str(failed[0])


async def test_a_store_that_is_closed_on_a_full_disk_does_not_wait_for_room(
    full_disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    full_disk.full()
    full_disk.add(1)
    await full_disk.until(lambda: full_disk.store.fault)
    full_disk.store.close()
    assert full_disk.store.fault is not None


async def test_a_file_that_was_moved_away_is_missed_and_used_again_when_it_is_back(
    full_disk: Disk, tmp_path: Path
) -> None:
    """SQLite would write on into a file that nobody will ever find."""
    store = full_disk.store
    (tmp_path / "state").rename(tmp_path / "elsewhere")
    full_disk.add(1)
    await full_disk.until(lambda: store.fault)
    assert "cannot be written: the file is gone (No such file or directory): put it back" in str(store.fault)
    (tmp_path / "state").touch()
    await full_disk.until(lambda: "another file has taken its place" in str(store.fault))
    (tmp_path / "elsewhere").rename(tmp_path / "state")
    await full_disk.until(lambda: store.fault is None)
    assert full_disk.known() == [1]


async def test_a_fault_that_no_retry_mends_ends_the_instance(full_disk: Disk) -> None:
    failed: list[BaseException] = []
    full_disk.store.failed = failed.append
    full_disk.store.add("journal", (object(),))
    full_disk.turns.wake()
    await full_disk.until(lambda: failed)
    assert isinstance(failed[0], FluxschedError)


async def test_a_file_that_cannot_be_read_is_the_answer_of_each_request_that_needs_it(world: Any) -> None:
    site = await world.bare(fake="1x1")
    peer = world.second(site)
    job = await peer.ok("job-manager.submit", {"jobspec": Jobspec.from_command(["true"]).to_json()})
    reader = site.store._database.reader
    site.store._database.reader = sqlite3.connect(":memory:")  # as if the tables were gone
    for topic, payload in (("lookup", {"id": job["id"], "keys": ["R"]}), ("eventlog", {"id": job["id"]})):
        submitted = peer.send("job-manager.submit", {"jobspec": Jobspec.from_command(["true"]).to_json()})
        asked = peer.open(f"job-manager.{topic}", payload)  # while that is being stored
        assert (await peer.next(submitted)).errnum == 0
        answer = await peer.next(asked)
        assert answer.errnum == errno.EIO
        assert "cannot be read: no such table: job_log: a restart checks it" in answer.payload
    site.store._database.reader.close()
    site.store._database.reader = reader


async def test_little_room_is_kept_for_what_runs(
    full_disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = DiskGuard(full_disk.store, full_disk.turns, partial(shortage, tmp_path))
    room.check_new()
    monkeypatch.setattr(disk, "ROOM_BYTES", 1 << 62)
    room.check_new()  # one look a turn is enough
    room = DiskGuard(full_disk.store, full_disk.turns, partial(shortage, tmp_path))
    with pytest.raises(Refused, match=rf"MiB are free on the file system of {tmp_path}, .* make room there"):
        room.check_new()
    room.check_ending()
    room = DiskGuard(full_disk.store, full_disk.turns, partial(shortage, tmp_path / "gone"))
    with pytest.raises(Refused, match="gone cannot be used: No such file or directory"):
        room.check_new()
