"""The store: changes are kept in turns, committed before they are answered, and a disk that fails ends nothing."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
import threading
from functools import partial
from pathlib import Path

import pytest

from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import FluxschedError, Refused
from fluxsched.instance import assembly
from fluxsched.messaging.router import ROOM_BYTES, DiskGuard, shortage
from fluxsched.store.jobs import ALIKE_MAX, NO_JOBSPEC, id_list, pack_events
from fluxsched.store.store import Store, StoreLimits, ThreadPerCallWriter
from fluxsched.system.clock import SystemClock
from fluxsched.system.loop import PIECE_ITEMS, Turns
from tests.store.watched_syncs import library, watched_syncs
from tests.waiting import WAIT_S, until

# The store: answers wait for the disk, in order; its log (WAL) stays small without a commit that waits for a copy.


EVENTS = b"x" * 200


@pytest.fixture
async def store(tmp_path, request):
    """With the limits that a test gives as an indirect parameter."""
    turns = Turns(SystemClock())
    store = Store(tmp_path / "state", turns, limits=getattr(request, "param", StoreLimits()))
    turns.at_end(store.flush)
    turns.start(asyncio.get_running_loop())
    yield store
    store.close()


async def stored(store, turns):
    """All that was added is on disk."""
    done = asyncio.Event()
    store.after_commit(done.set)
    turns.wake()
    async with asyncio.timeout(WAIT_S):
        await done.wait()


def add(store, jobid):
    store.add("job_log", (jobid, None, EVENTS, None, None, None, None))


def log(store, jobid, event, *, ended_s=0):
    store.add("job_log", (jobid, ended_s, pack_events([event]), *NO_JOBSPEC, ""))


def known(store):
    return int(store.read("SELECT count(*) FROM job_log")[0][0])


async def test_work_that_waits_for_a_transaction_is_done_before_the_next_one_is_written(store):
    turns = store._turns
    seen = []

    def told():
        for _ in range(3):
            seen.append(known(store))
            add(store, 2)  # of the next transaction, however long this work takes
            yield

    add(store, 1)
    store.spread_after_commit(told())
    turns.wake()
    async with asyncio.timeout(WAIT_S):
        while len(seen) < 3:
            await asyncio.sleep(0.001)
    await stored(store, turns)
    assert seen == [1, 1, 1]
    assert known(store) == 4


async def test_who_joins_when_all_is_settled_reads_nothing_that_is_still_to_be_told(store):
    told = []
    joined = []

    def tell(jobid):
        yield
        told.append(jobid)

    add(store, 1)
    store.spread_after_commit(tell(1))
    store.flush()  # the writer is busy: what comes now, from two turns, shares the next transaction
    add(store, 2)
    store.spread_after_commit(tell(2))
    store.when_idle(lambda: joined.append((known(store), len(told))))
    add(store, 3)
    store.spread_after_commit(tell(3))
    store._turns.wake()
    async with asyncio.timeout(WAIT_S):
        while not joined:
            await asyncio.sleep(0.001)
    assert joined == [(3, 3)]


async def test_with_nothing_to_write_nothing_is_waited_for(store):
    seen = []

    def work():
        seen.append("work")
        yield

    store.after_commit(lambda: seen.append("call"))
    assert seen == ["call"]
    store.spread_after_commit(work())
    async with asyncio.timeout(WAIT_S):
        while len(seen) < 2:
            await asyncio.sleep(0)
    assert store.commits == 0


@pytest.mark.parametrize("store", [StoreLimits(log_rows=100, log_rows_max=500)], indirect=True)
async def test_the_log_is_copied_and_used_anew(store, tmp_path):
    """The higher limit is low, since how busy the machine is must not matter here."""
    log = tmp_path / "state-wal"
    sizes = []
    for jobid in range(60):
        for _ in range(50):
            add(store, jobid)
        await stored(store, store._turns)
        sizes.append(log.stat().st_size)
    assert known(store) == 3000
    assert max(sizes) < len(sizes) * sizes[0] / 4, f"the log grows with what is written: {sizes[-1]} bytes"


@pytest.mark.parametrize("store", [StoreLimits(log_rows=100, log_rows_max=500)], indirect=True)
async def test_the_log_is_copied_although_few_statements_remove_many_rows(store, tmp_path):
    log = tmp_path / "state-wal"
    for jobid in range(3000):
        add(store, jobid)
    await stored(store, store._turns)
    sizes = []
    for first in range(0, 3000, 60):
        store.remove("job_log", (id_list([*range(first, first + 60)]),))
        await stored(store, store._turns)
        sizes.append(log.stat().st_size)
    assert known(store) == 0
    assert sizes[-1] < 2 * sizes[0], f"the log grows with what is removed: {sizes}"


async def test_a_restart_reads_back_the_jobs_that_ended_last(store):
    for jobid in (1, 2, 3, 4):
        log(store, jobid, {"name": "submit"})
    for jobid in (4, 2, 1):
        log(store, jobid, {"name": "clean"}, ended_s=1)
    await stored(store, store._turns)
    found = assembly.read_store(store, assembly.StateNotice(), inactive_restored_max=2)
    ended = [job for some in found.ended for job in some]
    names = {jobid: [event["name"] for event in events] for jobid, events, *_ in [*found.jobs, *ended]}
    assert names == {1: ["submit", "clean"], 2: ["submit", "clean"], 3: ["submit"]}


async def test_what_is_read_later_sees_what_was_committed_meanwhile(store):
    for jobid in range(1, 2 * PIECE_ITEMS):
        log(store, jobid, {"name": "submit"})
        log(store, jobid, {"name": "clean"}, ended_s=1)
    await stored(store, store._turns)
    ended = iter(assembly.read_store(store, assembly.StateNotice()).ended)
    next(ended)
    log(store, 1_000, {"name": "submit"})
    await stored(store, store._turns)
    assert store.read("SELECT max(jobid) FROM job_log") == [(1_000,)]
    assert 1_000 not in {jobid for some in ended for jobid, *_ in some}


async def test_events_that_many_jobs_log_alike_are_read_once_and_every_job_has_its_own_list(store):
    jobs = range(1, ALIKE_MAX + 3)
    for jobid in jobs:
        log(store, jobid, {"name": "submit", "at": jobid})
    for jobid in jobs:
        log(store, jobid, {"name": "flux-restart"})
    await stored(store, store._turns)
    found = {jobid: events for jobid, events, *_ in assembly.read_store(store, assembly.StateNotice()).jobs}
    assert found == {jobid: [{"name": "submit", "at": jobid}, {"name": "flux-restart"}] for jobid in jobs}
    assert found[1] is not found[2]
    assert found[1][1] is found[2][1]


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_a_connection_that_cannot_be_opened_is_reported(opened, tmp_path, monkeypatch):
    connections = [sqlite3.connect(tmp_path / "state", check_same_thread=False) for _ in range(opened)]
    left = [*connections]

    def connect(*_, **__):
        if not left:
            raise sqlite3.OperationalError("unable to open database file")
        return left.pop()

    threads = threading.active_count()
    monkeypatch.setattr(sqlite3, "connect", connect)
    with pytest.raises(FluxschedError, match=r"cannot open the state in .*state: unable to open"):
        Store(tmp_path / "state", Turns(SystemClock()))
    assert threading.active_count() == threads
    for connection in connections:
        connection.close()


async def test_what_is_in_the_log_alone_is_found_by_the_next_store(tmp_path):
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


# A disk that takes nothing for a while: what was to be stored is stored later, in order, and not told before.


class Disk:
    """A store, and its writer's connection, which has room for no page more while it is `full`."""

    def __init__(self, store, writer, failed):
        self.store = store
        self.failed = failed
        self.turns = store._turns
        self._writer = writer

    def full(self):
        pages = self._writer.execute("PRAGMA page_count").fetchone()[0]
        self._writer.execute(f"PRAGMA max_page_count = {pages}")

    def repair(self):
        self._writer.execute("PRAGMA max_page_count = 1000000")

    def add(self, jobid):
        self.store.add("job_log", (jobid, 0, b"x" * 9000, "", 0, 0, ""))
        self.turns.wake()

    def known(self):
        return [jobid for (jobid,) in self.store.read("SELECT jobid FROM job_log ORDER BY seq")]

    until = staticmethod(until)


@pytest.fixture
async def full_disk(tmp_path, monkeypatch, request):
    connections = []
    connect = sqlite3.connect

    def opened(*words, **more):
        connections.append(connect(*words, **more))  # type: ignore[call-overload]
        return connections[-1]

    monkeypatch.setattr(sqlite3, "connect", opened)
    turns, failed = Turns(SystemClock()), []
    limits = StoreLimits(retry_s=0.01, **getattr(request, "param", {}))
    store = Store(tmp_path / "state", turns, failed=failed.append, limits=limits)
    turns.at_end(store.flush)
    turns.start(asyncio.get_running_loop())
    yield Disk(store, connections[1], failed)
    store.close()


async def test_what_a_full_disk_refused_is_written_when_there_is_room(full_disk):
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


async def test_readers_are_served_while_the_disk_is_full(full_disk):
    store, joined = full_disk.store, []
    full_disk.add(1)
    await full_disk.until(lambda: full_disk.known() == [1])
    full_disk.full()
    full_disk.add(2)
    store.when_idle(lambda: joined.append("waited"))
    await full_disk.until(lambda: store.fault and joined)
    store.when_idle(lambda: joined.append("at once"))
    assert joined == ["waited", "at once"]
    full_disk.repair()


async def test_who_asks_while_a_write_is_about_to_fail_is_served_too(full_disk):
    """A signal that was sent in this moment waited for room, and so did its answer."""
    store, served = full_disk.store, []
    full_disk.full()
    full_disk.add(1)
    store.flush()
    store.when_idle(lambda: served.append("behind it"))
    await full_disk.until(lambda: served)
    assert store.fault
    full_disk.repair()


@pytest.mark.parametrize("full_disk", [{"unstored_rows_max": 3}], indirect=True)
async def test_more_rows_than_may_wait_for_a_full_disk_end_the_instance(full_disk):
    failed = full_disk.failed
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


async def test_a_store_that_is_closed_on_a_full_disk_does_not_wait_for_room(full_disk, caplog):
    full_disk.full()
    full_disk.add(1)
    await full_disk.until(lambda: full_disk.store.fault)
    full_disk.store.close()
    assert full_disk.store.fault is not None


async def test_a_file_that_was_moved_away_is_missed_and_used_again_when_it_is_back(full_disk, tmp_path):
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


async def test_a_fault_that_no_retry_mends_ends_the_instance(full_disk):
    failed = full_disk.failed
    full_disk.store.add("journal", (object(),))
    full_disk.turns.wake()
    await full_disk.until(lambda: failed)
    assert isinstance(failed[0], FluxschedError)


async def test_a_file_that_cannot_be_read_is_the_answer_of_each_request_that_needs_it(world):
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


async def test_little_room_is_kept_for_what_runs(full_disk, tmp_path):
    limits = iter((ROOM_BYTES, 1 << 62))
    look = lambda: shortage(tmp_path, next(limits))  # noqa: E731
    room = DiskGuard(full_disk.store, full_disk.turns, look)
    room.check_new()
    room.check_new()  # one look a turn is enough
    room = DiskGuard(full_disk.store, full_disk.turns, look)
    with pytest.raises(Refused, match=rf"MiB are free on the file system of {tmp_path}, .* make room there"):
        room.check_new()
    room.check_ending()
    room = DiskGuard(full_disk.store, full_disk.turns, partial(shortage, tmp_path / "gone"))
    with pytest.raises(Refused, match="gone cannot be used: No such file or directory"):
        room.check_new()


# Law 3 down to the system: nothing is answered before the disk was asked to sync it, and said that it did.


HELD_S = 0.1
"""How long a sync is held up to see that nothing happens meanwhile."""
ROWS = 100


@pytest.fixture
def syncs():
    sqlite = library()
    if sqlite is None:
        pytest.skip("this Python's SQLite cannot be called from outside")
    with watched_syncs(sqlite) as found:
        yield found


@pytest.fixture
async def synced(syncs, tmp_path):
    turns = Turns(SystemClock())
    found = Store(tmp_path / "state", turns, limits=StoreLimits(retry_s=0.01))
    turns.at_end(found.flush)
    turns.start(asyncio.get_running_loop())
    yield found
    syncs.may_go.set()
    found.close()


def keep(synced, key, told):
    synced.add("saved", ("test", key, b"1"))
    synced.after_commit(lambda: told.append(key))
    synced._turns.wake()


async def test_nothing_is_told_before_its_sync_is_done(synced, syncs):
    told = []
    syncs.may_go.clear()
    keep(synced, "a", told)
    await asyncio.sleep(HELD_S)
    assert told == []
    before = syncs.of_log
    syncs.may_go.set()
    await until(lambda: told)
    assert syncs.of_log > before


async def test_each_transaction_is_synced_and_many_rows_share_one(synced, syncs):
    told = []
    keep(synced, "begin", told)
    await until(lambda: told)  # a log that is begun anew is synced once more, behind its header
    told.clear()
    for number in range(3):
        before = syncs.of_log
        keep(synced, str(number), told)
        await until(lambda number=number: len(told) == number + 1)
        assert syncs.of_log == before + 1
    syncs.may_go.clear()
    before = syncs.of_log
    keep(synced, "first", told)
    synced.flush()
    for number in range(ROWS):
        keep(synced, f"row {number}", told)
    await asyncio.sleep(HELD_S)
    syncs.may_go.set()
    await until(lambda: len(told) == ROWS + 4)
    assert syncs.of_log == before + 2, "one for the first, one for all that gathered meanwhile"


async def test_a_sync_that_fails_answers_nothing_and_is_tried_again(synced, syncs):
    told = []
    syncs.fails = True
    keep(synced, "a", told)
    await until(lambda: synced.fault)
    keep(synced, "b", told)
    await asyncio.sleep(HELD_S)
    assert told == []
    assert "cannot be written: disk I/O error" in str(synced.fault)
    syncs.fails = False
    await until(lambda: len(told) == 2)
    assert told == ["a", "b"]
    assert synced.fault is None
    assert synced.read("SELECT key FROM saved WHERE kind = 'test' ORDER BY key") == [("a",), ("b",)]


async def test_a_copy_of_the_log_is_synced_on_both_sides(synced, syncs):
    """The log before it is copied into the file, the file before the log is used anew."""
    told = []
    keep(synced, "a", told)
    await until(lambda: told)
    before = (syncs.of_log, syncs.of_file)
    synced.close()
    assert (syncs.of_log > before[0], syncs.of_file > before[1]) == (True, True)


async def test_an_instance_answers_no_submit_and_no_drain_before_the_sync(syncs, world, timed):
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


# Calls that wait for the network: no turn waits for them, and none for another.


async def test_a_call_that_waits_for_the_network_holds_up_nothing(eventually):
    turns, answer, done = Turns(SystemClock()), threading.Event(), []
    turns.start(asyncio.get_running_loop())
    writer = ThreadPerCallWriter(turns, "connect")
    writer.run(answer.wait, lambda: done.append("silent"))
    writer.run(lambda: None, lambda: done.append("other"))
    turns.post(lambda: done.append("turn"))
    await eventually(lambda: {"other", "turn"} <= set(done))
    assert "silent" not in done
    writer.close()
    answer.set()
    await eventually(lambda: "silent" in done)
    turns.stop()
