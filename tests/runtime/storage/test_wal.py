"""Damage of a log (WAL) is told from what a crash leaves, whichever byte it hits and wherever a write was torn."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from fluxsched.runtime.storage.wal import FRAME_HEADER_BYTES, HEADER_BYTES, examine_wal, frames_in_index

ROWS = 6
PAGE = 4096
FRAME = FRAME_HEADER_BYTES + PAGE


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Transactions of one to three frames in the log, none of which is copied."""
    connection = sqlite3.connect(tmp_path / "db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("CREATE TABLE t (i INTEGER PRIMARY KEY, text BLOB)")
    write(connection, range(ROWS))
    yield connection
    connection.close()


def write(connection: sqlite3.Connection, numbers: range) -> None:
    for number in numbers:
        connection.execute("INSERT INTO t VALUES (?, ?)", (number, bytes([number % 251]) * 3000))


def log_of(tmp_path: Path) -> bytes:
    return (tmp_path / "db-wal").read_bytes()


def recovered(log: bytes, tmp_path: Path) -> tuple[int, int]:
    """Rows that SQLite finds with this log, and the frames that it says it found."""
    there = tmp_path / "there"
    there.mkdir(exist_ok=True)
    shutil.copyfile(tmp_path / "db", there / "db")
    (there / "db-wal").write_bytes(log)
    connection = sqlite3.connect(f"file:{there / 'db'}?mode=ro", uri=True)
    try:
        rows = connection.execute("SELECT count(*) FROM t").fetchone()[0]
    except sqlite3.OperationalError:  # the table was made in the log
        rows = 0
    connection.close()
    frames = frames_in_index((there / "db-shm").read_bytes())
    assert frames is not None
    shutil.rmtree(there)
    return rows, frames


def commits(log: bytes) -> list[int]:
    """The numbers of the frames that end a transaction, whatever their salts."""
    starts = range(HEADER_BYTES, len(log) - FRAME + 1, FRAME)
    return [number for number, at in enumerate(starts, 1) if any(log[at + 4 : at + 8])]


def test_a_whole_log_has_no_fault_and_as_many_frames_as_sqlite_finds(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    log = log_of(tmp_path)
    assert examine_wal(log) == (commits(log)[-1], None, True)
    assert recovered(log, tmp_path) == (ROWS, commits(log)[-1])


def test_a_bit_that_flips_before_the_last_transaction_is_damage(database: sqlite3.Connection, tmp_path: Path) -> None:
    log = log_of(tmp_path)
    last = HEADER_BYTES + commits(log)[-2] * FRAME
    for at in range(HEADER_BYTES, last - FRAME, 61):
        broken = bytearray(log)
        broken[at] ^= 4
        state = examine_wal(bytes(broken))
        rows, frames = recovered(bytes(broken), tmp_path)
        assert rows < ROWS
        assert state.frames == frames
        assert state.fault is not None, f"byte {at}"
        assert examine_wal(bytes(broken), frames) == state


def test_a_damaged_header_is_told_apart(database: sqlite3.Connection, tmp_path: Path) -> None:
    log = log_of(tmp_path)
    for at in range(HEADER_BYTES):
        broken = bytearray(log)
        broken[at] ^= 64
        state = examine_wal(bytes(broken))
        assert (state.frames, state.has_header) == (0, False)
        assert "its header is damaged" in str(state.fault)


def test_what_a_crash_leaves_of_the_last_transaction_is_no_damage(database: sqlite3.Connection, tmp_path: Path) -> None:
    """Any part of it may be on disk: a beginning, or later pages without earlier ones."""
    write(database, range(ROWS, ROWS + 1))
    before = log_of(tmp_path)
    database.execute("INSERT INTO t SELECT i + 100, text FROM t")
    after, chance = log_of(tmp_path), Random(1)
    assert len(after) - len(before) > 4 * FRAME
    for cut in range(len(before), len(after) + 1, 331):
        assert examine_wal(after[:cut]).fault is None
    for _ in range(50):
        torn = bytearray(after)
        for at in range(len(before), len(after), 512):
            if chance.random() < 0.5:
                torn[at : at + 512] = bytes(min(512, len(after) - at))
        assert examine_wal(bytes(torn)).fault is None


def test_frames_of_an_earlier_use_of_the_file_are_no_damage(database: sqlite3.Connection, tmp_path: Path) -> None:
    database.execute("PRAGMA wal_checkpoint(PASSIVE)")
    write(database, range(ROWS, ROWS + 1))
    log = log_of(tmp_path)
    state = examine_wal(log)
    assert state.fault is None
    assert 0 < state.frames < len(log) // FRAME, "old frames follow"


def test_what_is_left_of_a_transaction_that_was_given_up_is_no_damage(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    """Its frames have the salts of those before it, and the last of them is a commit frame if its sync failed."""
    before = log_of(tmp_path)
    database.execute("INSERT INTO t SELECT i + 100, text FROM t")
    given_up = log_of(tmp_path)
    there = tmp_path / "again"
    there.mkdir()
    shutil.copyfile(tmp_path / "db", there / "db")
    (there / "db-wal").write_bytes(before)
    other = sqlite3.connect(there / "db", isolation_level=None)
    other.execute("PRAGMA wal_autocheckpoint = 0")
    write(other, range(ROWS, ROWS + 1))
    written = (there / "db-wal").read_bytes()
    other.close()
    assert len(before) < len(written) < len(given_up)
    state = examine_wal(written + given_up[len(written) :])
    assert state == (commits(written)[-1], None, True)


@pytest.mark.parametrize("log", [b"", b"\0" * 31, b"\0" * 5000, b"\xff" * 50_000])
def test_no_bytes_raise(log: bytes) -> None:
    assert examine_wal(log) == (0, None, False)
    assert frames_in_index(log[:7]) is None
