"""A damaged file is found at the start, kept aside, read as far as it goes; nothing is lost unless the user says so."""

from __future__ import annotations

import shutil
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.runtime.instance.stored_state import LEFT_OUT_NAMED_MAX, StateNotice, read_store
from fluxsched.runtime.loop.database import Database
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.loop.writer import ImmediateWriter
from fluxsched.runtime.storage import damage
from fluxsched.runtime.storage.damage import make_sound
from fluxsched.runtime.storage.events import pack_events
from fluxsched.runtime.storage.jobs import DamagedJob, read_events, read_job
from fluxsched.runtime.storage.parts import NO_JOBSPEC
from fluxsched.runtime.storage.salvage import LOST_NAMED_MAX, Salvaged
from fluxsched.runtime.storage.schema import prepare
from fluxsched.runtime.storage.usage import SUMS
from fluxsched.runtime.system.clock import SystemClock

JOBS = 400
SETTINGS = 200


def log_of(jobid: int) -> list[list[dict[str, Any]]]:
    """The rows of a job that has ended."""
    submit = {"userid": 0, "urgency": 16, "flags": 0, "version": 1}
    start = [{"timestamp": float(jobid), "name": "submit", "context": submit}]
    start += [{"timestamp": float(jobid), "name": name} for name in ("validate", "depend")]
    note = {"type": "cancel", "severity": 0, "note": "n" * 100}
    end = [{"timestamp": float(jobid), "name": "exception", "context": note}]
    return [start, [*end, {"timestamp": jobid + 1.0, "name": "clean"}]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A sound file with jobs and settings."""
    found = tmp_path / "state.sqlite"
    connection = sqlite3.connect(found, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    prepare(connection, str(found))
    connection.execute("BEGIN")
    for number in range(SETTINGS):
        row = (f"host{number}", b'{"timestamp": 1, "reason": "%s"}' % (b"r" * 99))
        connection.execute("INSERT INTO saved VALUES ('drain', ?, ?)", row)
    for ended in (0, 1):
        for jobid in range(1, JOBS + 1):
            events = log_of(jobid)[ended]
            row = (jobid, jobid if ended else None, pack_events(events), *NO_JOBSPEC)
            connection.execute(
                "INSERT INTO job_log (jobid, ended, events, jobspec, environment, files) "
                "VALUES (?, ?, ?, nullif(?, ''), nullif(?, 0), nullif(?, 0))",
                row,
            )
    connection.execute("COMMIT")
    connection.close()
    assert not found.with_name("state.sqlite-wal").exists()
    return found


def damage_page_of(path: Path, name: str, which: Callable[[list[int]], int]) -> None:
    """Overwrite one leaf page of a table or index."""
    connection = sqlite3.connect(path)
    size = connection.execute("PRAGMA page_size").fetchone()[0]
    (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()
    connection.close()
    data = bytearray(path.read_bytes())
    at = (root - 1) * size
    count = int.from_bytes(data[at + 3 : at + 5], "big")
    cells = [int.from_bytes(data[at + 12 + 2 * i : at + 14 + 2 * i], "big") for i in range(count)]
    children = [int.from_bytes(data[at + cell : at + cell + 4], "big") for cell in cells]
    page = which(children)
    data[(page - 1) * size : page * size] = b"\xa5" * size
    path.write_bytes(data)


def middle(pages: list[int]) -> int:
    return pages[len(pages) // 2]


def counts(path: Path) -> tuple[int, int]:
    """Jobs and settings in a file, which is sound."""
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    jobs = connection.execute("SELECT count(DISTINCT jobid) FROM job_log").fetchone()[0]
    settings = connection.execute("SELECT count(*) FROM saved WHERE kind = 'drain'").fetchone()[0]
    connection.close()
    return jobs, settings


def aside(path: Path) -> list[Path]:
    return sorted(path.parent.glob("state.sqlite.damaged-*"))


def test_a_sound_file_is_left_alone(path: Path) -> None:
    before = path.read_bytes()
    assert make_sound(path, has_jobs=True) is None
    assert path.read_bytes() == before
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_a_damaged_index_costs_nothing(path: Path) -> None:
    damage_page_of(path, "job_log_jobid", middle)
    damaged = path.read_bytes()
    notice = make_sound(path, has_jobs=True)
    assert notice is not None
    assert "400 jobs and 200 settings (drains, groups, queues) were read, which is all" in notice
    assert counts(path) == (JOBS, SETTINGS)
    (kept,) = aside(path)
    assert str(kept) in notice
    assert kept.read_bytes() == damaged
    assert path.stat().st_mode & 0o777 == 0o600
    assert make_sound(path, has_jobs=True) is None


HISTORY = {
    "sample": (60, 1795370400, 60.0, 1.0, 2.0, 3.0, 4.0, 5.0, b"x"),
    "run": (1795370400.0, 1795370460.0),
    "interval": (1, "0-3", "drained", "fan", 1795370400.0, None),
    "usage": (3600, 1795370400, 1001, "optics", "batch", "default", "gpu", *range(len(SUMS))),
}


def test_the_history_of_a_damaged_file_is_read_too(path: Path) -> None:
    connection = sqlite3.connect(path)
    for table, row in HISTORY.items():
        connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
    connection.commit()
    connection.close()
    damage_page_of(path, "job_log_jobid", middle)
    assert make_sound(path, has_jobs=True) is not None
    connection = sqlite3.connect(path)
    assert {table: connection.execute(f"SELECT * FROM {table}").fetchone() for table in HISTORY} == HISTORY
    connection.close()


@pytest.mark.parametrize("table", ["saved", "job_log"])
def test_a_loss_is_refused_until_the_user_accepts_it(table: str, path: Path) -> None:
    damage_page_of(path, table, middle)
    damaged = path.read_bytes()
    with pytest.raises(FluxschedError, match=rf"is damaged: .*lost: rows of {table} .*or start with --salvage") as said:
        make_sound(path, has_jobs=True)
    assert "fluxsched restore" in str(said.value)
    assert path.read_bytes() == damaged
    assert [found.name for found in path.parent.iterdir() if found.suffix == ".draft"] == []
    assert aside(path) == []
    notice = make_sound(path, has_jobs=True, accept_loss=True)
    assert notice is not None
    assert f"lost: rows of {table}" in notice
    jobs, settings = counts(path)
    if table == "saved":
        assert (jobs, settings) == (JOBS, pytest.approx(SETTINGS - 30, abs=20))
    else:
        assert "jobs of which parts are missing" in notice
        assert (jobs, settings) == (pytest.approx(JOBS - 30, abs=29), SETTINGS)
    assert aside(path)[0].read_bytes() == damaged


def test_what_a_killed_instance_had_in_the_log_alone_is_read_too(path: Path, tmp_path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("INSERT INTO saved VALUES ('drain', 'late', ?)", (b'{"timestamp": 1}',))
    killed = tmp_path / "killed" / path.name
    killed.parent.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", f"{killed}{suffix}")
    connection.close()
    damage_page_of_file(killed)
    notice = make_sound(killed, has_jobs=True)
    assert notice is not None
    assert counts(killed) == (JOBS, SETTINGS + 1)
    assert len(aside(killed)) == 2, "the file and its log"


def damage_page_of_file(path: Path) -> None:
    """An index page of a file whose log must stay as it is."""
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    damage_page_of(copy, "job_log_jobid", middle)
    path.write_bytes(copy.read_bytes())
    copy.unlink()


@pytest.mark.parametrize("at", range(4))
def test_an_interrupted_change_is_completed_by_the_next_start(
    at: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage_page_of(path, "job_log_jobid", middle)
    damaged = path.read_bytes()
    rename, calls = Path.rename, 0

    def renamed(self: Path, target: Path) -> Path:
        nonlocal calls
        if self.name.endswith(("-wal", "-commit")):
            return rename(self, target)
        calls += 1
        if calls > at:
            raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", renamed)
        if at < 3:
            with pytest.raises(KeyboardInterrupt):
                make_sound(path, has_jobs=True)
        else:
            make_sound(path, has_jobs=True)
    notice = make_sound(path, has_jobs=True)
    assert (notice is None) == (at == 3)
    assert counts(path) == (JOBS, SETTINGS)
    assert [found.read_bytes() for found in aside(path)] == [damaged]
    assert {found.name for found in path.parent.iterdir()} == {path.name, *[found.name for found in aside(path)]}


def test_what_is_no_database_is_refused_and_set_aside_if_that_is_accepted(path: Path) -> None:
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(FluxschedError, match=r"0 jobs and 0 settings .* lost: everything \(file is not a database\)"):
        make_sound(path, has_jobs=False)
    assert make_sound(path, has_jobs=False, accept_loss=True) is not None
    assert counts(path) == (0, 0)
    assert aside(path)[0].read_bytes() == b"this is no database" * 100


def test_an_empty_file_is_new_only_where_no_job_has_run(path: Path) -> None:
    path.write_bytes(b"")
    assert make_sound(path, has_jobs=False) is None
    with pytest.raises(FluxschedError, match="it is empty, but jobs have run on this state"):
        make_sound(path, has_jobs=True)
    path.unlink()
    assert make_sound(path, has_jobs=False) is None
    assert "state.sqlite is missing, though jobs have run on this state" in str(make_sound(path, has_jobs=True))
    assert not path.exists()


def test_a_large_file_is_checked_after_an_end_that_was_not_clean(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "CHECKED_BYTES", 4096)
    damage_page_of(path, "job_log_jobid", middle)
    assert make_sound(path, has_jobs=True) is None
    path.with_name("state.sqlite-wal").write_bytes(b"\0" * 64)
    assert make_sound(path, has_jobs=True) is not None


# -- the log and the record of commits: what a kill leaves ----------------------------------------------------------


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """State whose last five transactions are in the log alone, as a kill leaves it; the fourth has a drain."""
    made, there = tmp_path / "made" / "state.sqlite", tmp_path / "killed" / "state.sqlite"
    made.parent.mkdir()
    there.parent.mkdir()
    database = Database(made)
    for number in range(5):
        assert database.write([("saved", [("drain", f"host{number}", b'{"timestamp": 1}')])]) is None
    for suffix in ("", "-wal", "-commit"):
        shutil.copy(f"{made}{suffix}", f"{there}{suffix}")
    database.close()
    return there


def drains(path: Path) -> int:
    connection = sqlite3.connect(path)
    (count,) = connection.execute("SELECT count(*) FROM saved WHERE kind = 'drain'").fetchone()
    connection.close()
    return int(count)


def test_what_a_kill_leaves_is_sound_and_copied_at_the_next_start(killed: Path) -> None:
    assert make_sound(killed, has_jobs=True) is None
    database = Database(killed)
    assert killed.with_name("state.sqlite-wal").stat().st_size == 0
    assert drains(killed) == 5
    database.close()
    assert make_sound(killed, has_jobs=True) is None


def cut(path: Path, size: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:size])


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


FRAME = 4096 + 24
DAMAGES: dict[str, Callable[[Path], None]] = {
    "is missing": lambda log: log.unlink(),
    "is damaged: it cannot be read behind frame": lambda log: flip(log, 32 + FRAME + 500),
    "ends too early": lambda log: cut(log, log.stat().st_size // 2),
    "-wal) ends too early": lambda log: flip(log, log.stat().st_size - 7),
    "-wal) is missing": lambda log: cut(log, 0),
    "(state.sqlite-wal) ends too early": lambda log: flip(log, 17),
}


@pytest.mark.parametrize("said", DAMAGES)
def test_a_damaged_log_is_a_loss_that_is_refused(said: str, killed: Path) -> None:
    log = killed.with_name("state.sqlite-wal")
    DAMAGES[said](log)
    before = {path.name: path.read_bytes() for path in killed.parent.iterdir()}
    with pytest.raises(FluxschedError) as refused:
        make_sound(killed, has_jobs=False)
    assert said in str(refused.value)
    assert "transactions, so that jobs that ended in them run again. Nothing was changed" in str(refused.value)
    after = {path.name: path.read_bytes() for path in killed.parent.iterdir()}
    assert {name: after[name] for name in before} == before
    notice = make_sound(killed, has_jobs=False, accept_loss=True)
    assert notice is not None
    assert said in notice
    assert drains(killed) < 5
    assert make_sound(killed, has_jobs=False) is None, "the loss is accepted once and for all"
    Database(killed).close()


def test_a_kill_between_a_commit_and_its_record_leaves_a_sound_state(killed: Path) -> None:
    record = killed.with_name("state.sqlite-commit")
    for text in (b"%020d %08x\n" % (4, zlib.crc32(b"%020d" % 4)), b"", b"garbage", record.read_bytes()[:12]):
        record.write_bytes(text)
        assert make_sound(killed, has_jobs=True) is None
    record.unlink()
    assert make_sound(killed, has_jobs=True) is None


def test_a_log_without_a_record_is_judged_by_itself(killed: Path) -> None:
    """As versions left it that kept none."""
    killed.with_name("state.sqlite-commit").unlink()
    flip(killed.with_name("state.sqlite-wal"), 17)
    with pytest.raises(FluxschedError, match="its header is damaged, and a transaction that was complete ends at"):
        make_sound(killed, has_jobs=True)


def test_a_log_that_another_program_copied_into_the_file_is_no_loss(killed: Path) -> None:
    sqlite3.connect(killed).execute("PRAGMA wal_checkpoint").connection.close()
    killed.with_name("state.sqlite-wal").unlink(missing_ok=True)
    assert make_sound(killed, has_jobs=True) is None


def test_a_file_without_tables_is_new_only_where_no_job_has_run(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    assert path.stat().st_size == 4096, "as versions left it that copied no log at a start"
    assert make_sound(path, has_jobs=False) is None
    with pytest.raises(FluxschedError, match="it has no table of an instance, though jobs have run on this state"):
        make_sound(path, has_jobs=True)


@pytest.mark.parametrize("table", ["process", "journal", "lease", "saved"])
def test_a_table_that_is_gone_is_a_loss_and_there_again_after_it_is_accepted(table: str, path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute(f"DROP TABLE {table}")
    connection.close()
    with pytest.raises(FluxschedError, match=f"it has no table {table}.*lost: table {table}"):
        make_sound(path, has_jobs=True)
    assert make_sound(path, has_jobs=True, accept_loss=True) is not None
    Database(path).close()
    assert make_sound(path, has_jobs=True) is None


def test_a_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "state.sqlite").mkdir()
    with pytest.raises(FluxschedError, match="is a directory"):
        make_sound(tmp_path / "state.sqlite", has_jobs=False)


# -- rows whose values cannot be read ---------------------------------------------------------------------------------

ROWS = {
    "drain host7": "UPDATE saved SET value = {0} WHERE key = 'host7'",
    "instance epoch_ms": "INSERT INTO saved VALUES ('instance', 'epoch_ms', {0})",
    "assign host1": "INSERT INTO saved VALUES ('assign', 'host1', {0})",
    "source R": "INSERT INTO saved VALUES ('source', 'R', {0})",
    "process 5": "INSERT INTO process VALUES (5, {0})",
    "journal 1": "INSERT INTO journal VALUES (1, {0})",
}


@pytest.mark.parametrize("value", ["x'ff00'", "'[1'", "'[1]'", "'\"text\"'", "NULL"])
@pytest.mark.parametrize("named", ROWS)
def test_a_value_that_cannot_be_read_is_left_out_and_named(named: str, value: str, path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(ROWS[named].format(value))
    connection.close()
    assert make_sound(path, has_jobs=True) is None, "SQLite finds nothing wrong with it"
    with pytest.raises(InvalidValue, match=f"{named} cannot be read"):
        read(path)
    notice = make_sound(path, has_jobs=True, accept_loss=True)
    assert f"lost: {named} cannot be read" in str(notice)
    read(path)
    assert counts(path) == (JOBS, SETTINGS - (named == "drain host7"))
    assert make_sound(path, has_jobs=True, accept_loss=True) is None


def read(path: Path) -> None:
    """As a start reads it."""
    store = Store(path, Turns(SystemClock()), ImmediateWriter())
    try:
        found = read_store(store, StateNotice())
        assert [job for some in found.ended for job in some]
    finally:
        store.close()


def test_a_job_that_cannot_be_read_hides_no_other(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE job_log SET events = x'ff' || substr(events, 2) WHERE jobid = 7")
    connection.close()
    store, notice = Store(path, Turns(SystemClock()), ImmediateWriter()), StateNotice()
    ended = [job for some in read_store(store, notice).ended for job in some]
    assert sorted(jobid for jobid, *_ in ended) == [jobid for jobid in range(1, JOBS + 1) if jobid != 7]
    assert "1 ended job is left out of listings: job \u01928 cannot be read" in str(notice.text)
    for look in (read_job, read_events):
        with pytest.raises(DamagedJob, match="cannot be read from the state, which is damaged there"):
            look(store.read, 7)
    store.close()
    assert "1 jobs of which parts are missing" in str(make_sound(path, has_jobs=True, accept_loss=True))


def test_a_notice_names_a_few_of_many() -> None:
    notice, count = StateNotice("before"), LEFT_OUT_NAMED_MAX + 2
    for jobid in range(count):
        notice.leave_out(DamagedJob(jobid, ValueError(f"fault {jobid}")))
    text = str(notice.text)
    assert text.startswith(f"before. {count} ended jobs are left out of listings")
    assert text.count(": fault ") == LEFT_OUT_NAMED_MAX
    assert text.endswith("; the log names 2 more")
    lost = Salvaged(lost=[f"<{number}>" for number in range(LOST_NAMED_MAX + 3)])
    assert str(lost).count("<") == LOST_NAMED_MAX
    assert str(lost).endswith(", and 3 more")
