"""The store: answers wait for the disk, in order; its log (WAL) stays small without a commit that waits for a copy."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from fluxsched.errors import FluxschedError
from fluxsched.runtime.instance import stored_state as restore
from fluxsched.runtime.loop import checkpoints
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.loop.turns import PIECE_ITEMS, Turns
from fluxsched.runtime.storage.events import pack_events
from fluxsched.runtime.storage.jobs import ALIKE_MAX
from fluxsched.runtime.storage.parts import NO_JOBSPEC
from fluxsched.runtime.system.clock import SystemClock

WAIT_S = 10.0
EVENTS = b"x" * 200


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    turns = Turns(SystemClock())
    store = Store(tmp_path / "state", turns)
    turns.at_end(store.flush)
    turns.start(asyncio.get_running_loop())
    yield store
    store.close()


async def stored(store: Store, turns: Turns) -> None:
    """All that was added is on disk."""
    done = asyncio.Event()
    store.after_commit(done.set)
    turns.wake()
    async with asyncio.timeout(WAIT_S):
        await done.wait()


def add(store: Store, jobid: int) -> None:
    store.add("job_log", (jobid, None, EVENTS, None, None, None, None))


def log(store: Store, jobid: int, event: dict[str, object], *, ended_s: int = 0) -> None:
    store.add("job_log", (jobid, ended_s, pack_events([event]), *NO_JOBSPEC, ""))


def known(store: Store) -> int:
    return int(store.read("SELECT count(*) FROM job_log")[0][0])


async def test_work_that_waits_for_a_transaction_is_done_before_the_next_one_is_written(store: Store) -> None:
    turns = store._turns
    seen: list[int] = []

    def told() -> Iterator[None]:
        for _ in range(3):
            seen.append(known(store))
            add(store, 2)  # of the next transaction, however long this work takes
            yield

    add(store, 1)
    store.then(told())
    turns.wake()
    async with asyncio.timeout(WAIT_S):
        while len(seen) < 3:
            await asyncio.sleep(0.001)
    await stored(store, turns)
    assert seen == [1, 1, 1]
    assert known(store) == 4


async def test_who_joins_when_all_is_settled_reads_nothing_that_is_still_to_be_told(store: Store) -> None:
    told: list[int] = []
    joined: list[tuple[int, int]] = []

    def tell(jobid: int) -> Iterator[None]:
        yield
        told.append(jobid)

    add(store, 1)
    store.then(tell(1))
    store.flush()  # the writer is busy: what comes now, from two turns, shares the next transaction
    add(store, 2)
    store.then(tell(2))
    store.when_settled(lambda: joined.append((known(store), len(told))))
    add(store, 3)
    store.then(tell(3))
    store._turns.wake()
    async with asyncio.timeout(WAIT_S):
        while not joined:
            await asyncio.sleep(0.001)
    assert joined == [(3, 3)]


async def test_with_nothing_to_write_nothing_is_waited_for(store: Store) -> None:
    seen: list[str] = []

    def work() -> Iterator[None]:
        seen.append("work")
        yield

    store.after_commit(lambda: seen.append("call"))
    assert seen == ["call"]
    store.then(work())
    async with asyncio.timeout(WAIT_S):
        while len(seen) < 2:
            await asyncio.sleep(0)
    assert store.commits == 0


async def test_the_log_is_copied_and_used_anew(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "ROWS", 100)
    monkeypatch.setattr(checkpoints, "ROWS_MAX", 500)  # how busy the machine is must not matter here
    log = tmp_path / "state-wal"
    sizes: list[int] = []
    for jobid in range(60):
        for _ in range(50):
            add(store, jobid)
        await stored(store, store._turns)
        sizes.append(log.stat().st_size)
    assert known(store) == 3000
    assert max(sizes) < len(sizes) * sizes[0] / 4, f"the log grows with what is written: {sizes[-1]} bytes"


async def test_a_restart_reads_back_the_jobs_that_ended_last(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "INACTIVE_RESTORED_MAX", 2)
    for jobid in (1, 2, 3, 4):
        log(store, jobid, {"name": "submit"})
    for jobid in (4, 2, 1):
        log(store, jobid, {"name": "clean"}, ended_s=1)
    await stored(store, store._turns)
    found = restore.read_store(store, restore.StateNotice())
    ended = [job for some in found.ended for job in some]
    names = {jobid: [event["name"] for event in events] for jobid, events, *_ in [*found.jobs, *ended]}
    assert names == {1: ["submit", "clean"], 2: ["submit", "clean"], 3: ["submit"]}


async def test_what_is_read_later_sees_what_was_committed_meanwhile(store: Store) -> None:
    for jobid in range(1, 2 * PIECE_ITEMS):
        log(store, jobid, {"name": "submit"})
        log(store, jobid, {"name": "clean"}, ended_s=1)
    await stored(store, store._turns)
    ended = iter(restore.read_store(store, restore.StateNotice()).ended)
    next(ended)
    log(store, 1_000, {"name": "submit"})
    await stored(store, store._turns)
    assert store.read("SELECT max(jobid) FROM job_log") == [(1_000,)]
    assert 1_000 not in {jobid for some in ended for jobid, *_ in some}


async def test_events_that_many_jobs_log_alike_are_read_once_and_every_job_has_its_own_list(store: Store) -> None:
    jobs = range(1, ALIKE_MAX + 3)
    for jobid in jobs:
        log(store, jobid, {"name": "submit", "at": jobid})
    for jobid in jobs:
        log(store, jobid, {"name": "flux-restart"})
    await stored(store, store._turns)
    found = {jobid: events for jobid, events, *_ in restore.read_store(store, restore.StateNotice()).jobs}
    assert found == {jobid: [{"name": "submit", "at": jobid}, {"name": "flux-restart"}] for jobid in jobs}
    assert found[1] is not found[2]
    assert found[1][1] is found[2][1]


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_a_connection_that_cannot_be_opened_is_reported(
    opened: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = [sqlite3.connect(tmp_path / "state", check_same_thread=False) for _ in range(opened)]

    def connect(*_: object, **__: object) -> sqlite3.Connection:
        if not connections:
            raise sqlite3.OperationalError("unable to open database file")
        return connections.pop()

    threads = threading.active_count()
    monkeypatch.setattr(sqlite3, "connect", connect)
    with pytest.raises(FluxschedError, match=r"cannot open the state in .*state: unable to open"):
        Store(tmp_path / "state", Turns(SystemClock()))
    assert threading.active_count() == threads


async def test_what_is_in_the_log_alone_is_found_by_the_next_store(tmp_path: Path) -> None:
    turns = Turns(SystemClock())
    store = Store(tmp_path / "state", turns)
    turns.at_end(store.flush)
    turns.start(asyncio.get_running_loop())
    add(store, 7)
    await stored(store, turns)
    copy = tmp_path / "copy"  # what a killed instance leaves: no close, no copy into the file
    for name in ("", "-wal"):
        Path(f"{copy}{name}").write_bytes((tmp_path / f"state{name}").read_bytes())
    store.close()
    connection = sqlite3.connect(copy)
    assert connection.execute("SELECT jobid FROM job_log").fetchall() == [(7,)]
    connection.close()
