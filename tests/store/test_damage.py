"""Damage to the store's file and to its log is found, said and repaired as far as that can be."""

from __future__ import annotations

import re
import shutil
import sqlite3
import zlib
from collections import deque
from pathlib import Path
from random import Random

import pytest

from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.history import MachineSample, damaged_history, read_intervals, read_runs, read_samples
from fluxsched.instance.assembly import LEFT_OUT_NAMED_MAX, StateNotice, read_store
from fluxsched.store import repair
from fluxsched.store.integrity import (
    COLUMNS,
    FRAME_HEADER_BYTES,
    HEADER_BYTES,
    add_function,
    examine_wal,
    frames_in_index,
)
from fluxsched.store.jobs import NO_JOBSPEC, DamagedJob, pack_events, read_events, read_job
from fluxsched.store.repair import LOST_NAMED_MAX, Salvaged, make_sound
from fluxsched.store.schema import SUMS, prepare
from fluxsched.store.store import Database, ImmediateWriter, Store
from fluxsched.system.clock import SystemClock
from fluxsched.system.loop import Turns
from tests.generated.share import ALL

# A damaged file is found at the start, kept aside, read as far as it goes; nothing is lost unless the user says so.


JOBS = 400
SETTINGS = 200


def log_of(jobid):
    """The rows of a job that has ended."""
    submit = {"userid": 0, "urgency": 16, "flags": 0, "version": 1}
    start = [{"timestamp": float(jobid), "name": "submit", "context": submit}]
    start += [{"timestamp": float(jobid), "name": name} for name in ("validate", "depend")]
    note = {"type": "cancel", "severity": 0, "note": "n" * 100}
    end = [{"timestamp": float(jobid), "name": "exception", "context": note}]
    return [start, [*end, {"timestamp": jobid + 1.0, "name": "clean"}]]


@pytest.fixture
def path(sound_file, tmp_path):
    """A sound file with jobs and settings."""
    return Path(shutil.copyfile(sound_file, tmp_path / sound_file.name))


@pytest.fixture(scope="module")
def sound_file(tmp_path_factory):
    """It is copied for each test: to write it takes longer than most of these."""
    found = tmp_path_factory.mktemp("sound") / "state.sqlite"
    connection = sqlite3.connect(found, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    prepare(connection, str(found))
    connection.execute("BEGIN")
    for number in range(SETTINGS):
        row = (f"host{number}", b'{"timestamp": 1, "reason": "%s"}' % (b"r" * 99))
        connection.execute("INSERT INTO saved (kind, key, value) VALUES ('drain', ?, ?)", row)
    for ended in (0, 1):
        for jobid in range(1, JOBS + 1):
            events = log_of(jobid)[ended]
            row = (jobid, jobid if ended else None, pack_events(events), *NO_JOBSPEC)
            connection.execute(
                "INSERT INTO job_log (jobid, ended, events, jobspec, environment, files) "
                "VALUES (?, ?, ?, nullif(?, ''), nullif(?, 0), nullif(?, 0))",
                row,
            )
    add_all_checksums(connection)
    connection.execute("COMMIT")
    connection.close()
    assert not found.with_name("state.sqlite-wal").exists()
    return found


def add_all_checksums(connection):
    """Have all rows be as they were written."""
    add_function(connection)
    for table, columns in COLUMNS.items():
        connection.execute(f"UPDATE {table} SET crc = row_checksum({columns})")


def damage_page_of(path, name, which):
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


def middle(pages):
    return pages[len(pages) // 2]


def counts(path):
    """Jobs and settings in a file, which is sound."""
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    jobs = connection.execute("SELECT count(DISTINCT jobid) FROM job_log").fetchone()[0]
    settings = connection.execute("SELECT count(*) FROM saved WHERE kind = 'drain'").fetchone()[0]
    connection.close()
    return jobs, settings


def aside(path):
    return sorted(path.parent.glob("state.sqlite.damaged-*"))


def test_a_sound_file_is_left_alone(path):
    before = path.read_bytes()
    assert make_sound(path, has_jobs=True) is None
    assert path.read_bytes() == before
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_a_damaged_index_costs_nothing(path):
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


def test_the_history_of_a_damaged_file_is_read_too(path):
    connection = sqlite3.connect(path)
    for table, row in HISTORY.items():
        columns = f"({COLUMNS[table]})" if table in COLUMNS else ""
        connection.execute(f"INSERT INTO {table} {columns} VALUES ({', '.join('?' * len(row))})", row)
    add_all_checksums(connection)
    connection.commit()
    connection.close()
    damage_page_of(path, "job_log_jobid", middle)
    assert make_sound(path, has_jobs=True) is not None
    connection = sqlite3.connect(path)
    for table, row in HISTORY.items():
        assert connection.execute(f"SELECT {COLUMNS.get(table, '*')} FROM {table}").fetchone() == row
    connection.close()


@pytest.mark.parametrize("table", ["saved", "job_log"])
def test_a_loss_is_refused_until_the_user_accepts_it(table, path):
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
        assert "of which parts are missing" in notice
        assert (jobs, settings) == (pytest.approx(JOBS - 30, abs=29), SETTINGS)
    assert aside(path)[0].read_bytes() == damaged


def test_what_a_killed_instance_had_in_the_log_alone_is_read_too(path, tmp_path):
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("INSERT INTO saved (kind, key, value) VALUES ('drain', 'late', ?)", (b'{"timestamp": 1}',))
    add_all_checksums(connection)
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


def damage_page_of_file(path):
    """An index page of a file whose log must stay as it is."""
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    damage_page_of(copy, "job_log_jobid", middle)
    path.write_bytes(copy.read_bytes())
    copy.unlink()


@pytest.mark.parametrize("at", range(4))
def test_an_interrupted_change_is_completed_by_the_next_start(at, path, monkeypatch):
    damage_page_of(path, "job_log_jobid", middle)
    damaged = path.read_bytes()
    rename, calls = Path.rename, 0

    def renamed(self, target):
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


def test_what_is_no_database_is_refused_and_set_aside_if_that_is_accepted(path):
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(FluxschedError, match=r"0 jobs and 0 settings .* lost: everything \(file is not a database\)"):
        make_sound(path, has_jobs=False)
    assert make_sound(path, has_jobs=False, accept_loss=True) is not None
    assert counts(path) == (0, 0)
    assert aside(path)[0].read_bytes() == b"this is no database" * 100


def test_an_empty_file_is_new_only_where_no_job_has_run(path):
    path.write_bytes(b"")
    assert make_sound(path, has_jobs=False) is None
    with pytest.raises(FluxschedError, match="it is empty, but jobs have run on this state"):
        make_sound(path, has_jobs=True)
    path.unlink()
    assert make_sound(path, has_jobs=False) is None
    with pytest.raises(FluxschedError, match=r"is missing, though jobs have run on this state.*--salvage"):
        make_sound(path, has_jobs=True)
    notice = make_sound(path, has_jobs=True, accept_loss=True)
    assert "state.sqlite is missing, though jobs have run on this state: it has no jobs" in str(notice)
    assert not path.exists()


def test_a_log_without_its_file_is_set_aside_if_that_is_accepted(path):
    log, record = path.with_name("state.sqlite-wal"), path.with_name("state.sqlite-commit")
    path.unlink()
    log.write_bytes(b"of a killed instance")
    record.write_bytes(b"7\n")
    with pytest.raises(FluxschedError, match=r"is missing, though jobs have run on this state.*put the file back"):
        make_sound(path, has_jobs=False)
    assert log.exists()
    notice = str(make_sound(path, has_jobs=True, accept_loss=True))
    assert not any(one.exists() for one in (path, log, record))
    [kept] = path.parent.glob("*-wal")
    assert notice.endswith(f"groups any more; its log is kept as {kept}")
    assert kept.read_bytes() == b"of a killed instance"
    assert make_sound(path, has_jobs=False) is None


def test_a_large_file_is_checked_after_an_end_that_was_not_clean(path, monkeypatch):
    monkeypatch.setattr(repair, "CHECKED_BYTES", 4096)
    damage_page_of(path, "job_log_jobid", middle)
    assert make_sound(path, has_jobs=True) is None
    path.with_name("state.sqlite-wal").write_bytes(b"\0" * 64)
    assert make_sound(path, has_jobs=True) is not None


# -- the log and the record of commits: what a kill leaves ----------------------------------------------------------


@pytest.fixture
def killed(tmp_path):
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


def drains(path):
    connection = sqlite3.connect(path)
    (count,) = connection.execute("SELECT count(*) FROM saved WHERE kind = 'drain'").fetchone()
    connection.close()
    return int(count)


def test_what_a_kill_leaves_is_sound_and_copied_at_the_next_start(killed):
    assert make_sound(killed, has_jobs=True) is None
    database = Database(killed)
    assert killed.with_name("state.sqlite-wal").stat().st_size == 0
    assert drains(killed) == 5
    database.close()
    assert make_sound(killed, has_jobs=True) is None


def cut(path, size):
    data = path.read_bytes()
    path.write_bytes(data[:size])


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


FRAME = 4096 + 24
DAMAGES = {
    "is missing": lambda log: log.unlink(),
    "is damaged: it cannot be read beyond frame": lambda log: flip(log, 32 + FRAME + 500),
    "ends too early": lambda log: cut(log, log.stat().st_size // 2),
    "-wal) ends too early": lambda log: flip(log, log.stat().st_size - 7),
    "-wal) is missing": lambda log: cut(log, 0),
    "(state.sqlite-wal) ends too early": lambda log: flip(log, 17),
}


@pytest.mark.parametrize("said", DAMAGES)
def test_a_damaged_log_is_a_loss_that_is_refused(said, killed):
    log = killed.with_name("state.sqlite-wal")
    DAMAGES[said](log)
    before = {path.name: path.read_bytes() for path in killed.parent.iterdir()}
    with pytest.raises(FluxschedError) as refused:
        make_sound(killed, has_jobs=False)
    assert said in str(refused.value)
    lost = r"the last (\d+ transactions|transaction), so that jobs that ended in them run again. Nothing was changed"
    assert re.search(lost, str(refused.value))
    after = {path.name: path.read_bytes() for path in killed.parent.iterdir()}
    assert {name: after[name] for name in before} == before
    notice = make_sound(killed, has_jobs=False, accept_loss=True)
    assert notice is not None
    assert said in notice
    assert drains(killed) < 5
    assert make_sound(killed, has_jobs=False) is None, "the loss is accepted once and for all"
    Database(killed).close()


def test_a_kill_between_a_commit_and_its_record_leaves_a_sound_state(killed):
    record = killed.with_name("state.sqlite-commit")
    for text in (b"%020d %08x\n" % (4, zlib.crc32(b"%020d" % 4)), b"", b"garbage", record.read_bytes()[:12]):
        record.write_bytes(text)
        assert make_sound(killed, has_jobs=True) is None
    record.unlink()
    assert make_sound(killed, has_jobs=True) is None


def test_a_log_without_a_record_is_judged_by_itself(killed):
    """As versions left it that kept none."""
    killed.with_name("state.sqlite-commit").unlink()
    flip(killed.with_name("state.sqlite-wal"), 17)
    with pytest.raises(FluxschedError, match="its header is damaged, and a transaction that was complete ends at"):
        make_sound(killed, has_jobs=True)


def test_a_file_that_was_copied_without_its_log_and_record_is_a_loss_that_is_refused(killed):
    for suffix in ("-wal", "-commit"):
        killed.with_name(f"state.sqlite{suffix}").unlink()
    with pytest.raises(FluxschedError, match=r"state.sqlite-wal\) and the record .* are missing.*last transactions"):
        make_sound(killed, has_jobs=True)
    assert make_sound(killed, has_jobs=True, accept_loss=True) is not None
    assert make_sound(killed, has_jobs=True) is None, "the loss is accepted once and for all"


def test_a_file_that_was_closed_is_complete_without_its_record(killed):
    Database(killed).close()
    killed.with_name("state.sqlite-commit").unlink()
    assert make_sound(killed, has_jobs=True) is None
    assert drains(killed) == 5


def test_a_log_that_another_program_copied_into_the_file_is_no_loss(killed):
    sqlite3.connect(killed).execute("PRAGMA wal_checkpoint").connection.close()
    killed.with_name("state.sqlite-wal").unlink(missing_ok=True)
    assert make_sound(killed, has_jobs=True) is None


def test_a_file_without_tables_is_new_only_where_no_job_has_run(tmp_path):
    path = tmp_path / "state.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    assert path.stat().st_size == 4096, "as versions left it that copied no log at a start"
    assert make_sound(path, has_jobs=False) is None
    with pytest.raises(FluxschedError, match="it has no table of an instance, though jobs have run on this state"):
        make_sound(path, has_jobs=True)


@pytest.mark.parametrize("table", ["process", "journal", "lease", "saved"])
def test_a_table_that_is_gone_is_a_loss_and_there_again_after_it_is_accepted(table, path):
    connection = sqlite3.connect(path)
    connection.execute(f"DROP TABLE {table}")
    connection.close()
    with pytest.raises(FluxschedError, match=f"it has no table {table}.*lost: table {table}"):
        make_sound(path, has_jobs=True)
    assert make_sound(path, has_jobs=True, accept_loss=True) is not None
    Database(path).close()
    assert make_sound(path, has_jobs=True) is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("replace(sql, 'event ', 'evens ') WHERE name = 'journal'", "another table journal .*lost: table journal"),
        ("replace(sql, '(jobid)', '(seq)') WHERE name = 'job_log_jobid'", None),
    ],
)
def test_a_table_or_an_index_of_another_form_is_damage(changed, said, path):
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute(f"UPDATE sqlite_master SET sql = {changed}")
    connection.close()
    if said is not None:
        with pytest.raises(FluxschedError, match=said):
            make_sound(path, has_jobs=True)
    assert make_sound(path, has_jobs=True, accept_loss=said is not None) is not None
    assert counts(path) == (JOBS, SETTINGS)
    assert make_sound(path, has_jobs=True) is None


def test_a_directory_is_named(tmp_path):
    (tmp_path / "state.sqlite").mkdir()
    with pytest.raises(FluxschedError, match="is a directory"):
        make_sound(tmp_path / "state.sqlite", has_jobs=False)


# -- rows whose values cannot be read ---------------------------------------------------------------------------------

ROWS = {
    "drain host7": "UPDATE saved SET value = {0} WHERE key = 'host7'",
    "instance epoch_ms": "INSERT INTO saved VALUES ('instance', 'epoch_ms', {0}, 0)",
    "assign host1": "INSERT INTO saved VALUES ('assign', 'host1', {0}, 0)",
    "source R": "INSERT INTO saved VALUES ('source', 'R', {0}, 0)",
    "lease of job 5": "INSERT INTO lease VALUES (5, 1, 'east', 'x/5', {0}, 'wanted', 0)",
    "process 5": "INSERT INTO process VALUES (5, {0}, 0)",
    "journal 1": "INSERT INTO journal VALUES (1, {0}, 0)",
}


@pytest.mark.parametrize("value", ["x'ff00'", "'[1'", "'[1]'", "'\"text\"'", "NULL"])
def test_values_that_cannot_be_read_are_left_out_and_named(value, path):
    change(path, *[row.format(value) for row in ROWS.values()])
    connection = sqlite3.connect(path, isolation_level=None)
    add_all_checksums(connection)
    connection.close()
    assert make_sound(path, has_jobs=True) is None, "SQLite finds nothing wrong with it"
    with pytest.raises(InvalidValue) as refused:
        read(path)
    assert [named for named in ROWS if f"{named} cannot be read" not in str(refused.value)] == []
    notice = str(make_sound(path, has_jobs=True, accept_loss=True))
    assert [named for named in ROWS if f"{named} cannot be read" not in notice] == []
    read(path)
    assert counts(path) == (JOBS, SETTINGS - 1)
    assert make_sound(path, has_jobs=True, accept_loss=True) is None


def read(path):
    """As a start reads it."""
    store = Store(path, Turns(SystemClock()), ImmediateWriter())
    try:
        found = read_store(store, StateNotice())
        deque(found.jobs, maxlen=0)
        assert [job for some in found.ended for job in some]
    finally:
        store.close()


@pytest.mark.parametrize(
    "changed",
    ["events = CAST(x'ff' || substr(events, 2) AS BLOB)", "events = x'ff' || substr(events, 2)", "ended = ended + 1"],
)
def test_a_job_that_cannot_be_read_hides_no_other(changed, path):
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"UPDATE job_log SET {changed} WHERE jobid = 7")
    if "CAST" in changed:
        add_all_checksums(connection)
    connection.close()
    store, notice = Store(path, Turns(SystemClock()), ImmediateWriter()), StateNotice()
    ended = [job for some in read_store(store, notice).ended for job in some]
    assert sorted(jobid for jobid, *_ in ended) == [jobid for jobid in range(1, JOBS + 1) if jobid != 7]
    assert "1 ended job is left out of listings: job \u01928 cannot be read" in str(notice.text)
    for look in (read_job, read_events):
        with pytest.raises(DamagedJob, match="cannot be read from the state, which is damaged there"):
            look(store.read, 7)
    store.close()
    assert "job \u01928, of which parts are missing" in str(make_sound(path, has_jobs=True, accept_loss=True))


# -- rows that changed on the disk and can still be decoded ---------------------------------------------------------

CHANGED = {
    "drain host7 cannot be read": "UPDATE saved SET value = replace(value, 'rr', 'rs') WHERE key = 'host7'",
    "drain hosu7 cannot be read": "UPDATE saved SET key = 'hosu7' WHERE key = 'host7'",
    "process 5 cannot be read": "INSERT INTO process VALUES (5, '{}', 1)",
    "journal 1 cannot be read": """INSERT INTO journal VALUES (1, '{"timestamp": 1, "name": "x"}', 1)""",
    "lease of job 8 cannot be read": "INSERT INTO lease VALUES (8, 0, 'east', 'a/8', '{}', 'wanted', 1)",
    "leased a/3 cannot be read": "INSERT INTO leased VALUES ('a/3', 3, 1)",
    "job \u0192A cannot be read": "UPDATE job_log SET R = x'7b7d' WHERE jobid = 9",
}


def change(path, *statements):
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


@pytest.mark.parametrize("named", CHANGED)
def test_a_row_that_changed_is_refused_at_the_start_and_left_out_with_salvage(named, path):
    change(path, "DELETE FROM job_log WHERE jobid = 9 AND ended", CHANGED[named])  # so that it is active
    with pytest.raises(InvalidValue, match=f"{named}.*: its checksum differs"):
        read(path)
    notice = make_sound(path, has_jobs=True, accept_loss=True)
    assert named.split(" cannot")[0].replace(" of job", "") in str(notice)
    read(path)
    assert make_sound(path, has_jobs=True, accept_loss=True) is None


def test_a_refusal_names_all_rows(path):
    change(path, "DELETE FROM job_log WHERE jobid = 9 AND ended", *CHANGED.values())
    with pytest.raises(InvalidValue) as refused:
        read(path)
    assert [named for named in CHANGED if named not in str(refused.value)] == ["drain host7 cannot be read"]
    change(path, "UPDATE saved SET value = value || ' ' WHERE kind = 'drain'")
    with pytest.raises(InvalidValue, match=f"drain host0 .*; and {SETTINGS + 5 - LOST_NAMED_MAX} more"):
        read(path)


def test_rows_of_the_history_that_changed_are_left_out_and_named(path):
    store = Store(path, Turns(SystemClock()), ImmediateWriter())
    for t in (60, 120):
        store.add("sample", (60, t, *MachineSample().row()))
        store.add("run", (t, t + 1))
        store.add("interval", (t, "0", "drained", "fan", t, None))
    store.close()
    change(
        path, "UPDATE sample SET free = 1e9 WHERE t = 60", "UPDATE run SET seen = 1e9 WHERE began = 60.0",
        "UPDATE interval SET note = 'fun' WHERE id = 60",
    )  # fmt: skip
    store = Store(path, Turns(SystemClock()), ImmediateWriter())
    assert [t for _, t, _ in read_samples(store.read, 0.0, 1000.0)] == [120]
    assert read_runs(store.read, 0.0, 1000.0) == [(120.0, 121.0)]
    assert read_intervals(store.read, 0.0, 1000.0, None, 0) == ([("0", "drained", 120.0, None, "fan")], 0)
    notice = StateNotice()
    notice.leave_out_rows(damaged_history(store.read))
    assert notice.text == "3 rows are damaged and left out: sample 60 60; run 60.0 1000000000.0; interval 60 0"
    store.close()
    assert "lost: sample 60 60 cannot be read" in str(make_sound(path, has_jobs=True, accept_loss=True))


def test_a_job_whose_last_row_is_damaged_is_no_job_that_has_not_ended(path):
    """The index still says whose the row was."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA writable_schema = ON")
    where = "WHERE type = 'index' AND tbl_name = 'job_log'"
    indexes = connection.execute(f"SELECT * FROM sqlite_master {where}").fetchall()
    connection.execute(f"DELETE FROM sqlite_master {where}")
    connection.close()
    change(path, "UPDATE job_log SET jobid = 4096 + 7 WHERE jobid = 7 AND ended")
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA writable_schema = ON")
    connection.executemany("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", indexes)
    connection.close()
    with pytest.raises(FluxschedError, match=r"row \d+ missing from index .*lost: job \u01928, of which parts"):
        make_sound(path, has_jobs=True)
    assert make_sound(path, has_jobs=True, accept_loss=True) is not None
    assert counts(path) == (JOBS - 1, SETTINGS)


def test_a_notice_names_a_few_of_many():
    notice, count = StateNotice("before"), LEFT_OUT_NAMED_MAX + 2
    for jobid in range(count):
        notice.leave_out(DamagedJob(jobid, ValueError(f"fault {jobid}")))
    text = str(notice.text)
    assert text.startswith(f"before. {count} ended jobs are left out of listings")
    assert text.count(": fault ") == LEFT_OUT_NAMED_MAX
    assert text.endswith("; the log names 2 more")
    lost = Salvaged(lost=[f"<{number}>" for number in range(LOST_NAMED_MAX + 3)])
    assert str(lost).count("<") == LOST_NAMED_MAX
    assert str(lost).endswith("; and 3 more")


# Damage of a log (WAL) is told from what a crash leaves, whichever byte it hits and wherever a write was torn.


WAL_ROWS = 6
PAGE = 4096
WAL_FRAME = FRAME_HEADER_BYTES + PAGE


@pytest.fixture
def database(tmp_path):
    """Transactions of one to three frames in the log, none of which is copied."""
    connection = sqlite3.connect(tmp_path / "db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("CREATE TABLE t (i INTEGER PRIMARY KEY, text BLOB)")
    write(connection, range(WAL_ROWS))
    yield connection
    connection.close()


def write(connection, numbers):
    for number in numbers:
        connection.execute("INSERT INTO t VALUES (?, ?)", (number, bytes([number % 251]) * 3000))


def wal_of(tmp_path):
    return (tmp_path / "db-wal").read_bytes()


def recovered(log, tmp_path):
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


def commits(log):
    """The numbers of the frames that end a transaction, whatever their salts."""
    starts = range(HEADER_BYTES, len(log) - WAL_FRAME + 1, WAL_FRAME)
    return [number for number, at in enumerate(starts, 1) if any(log[at + 4 : at + 8])]


def test_a_whole_log_has_no_fault_and_as_many_frames_as_sqlite_finds(database, tmp_path):
    log = wal_of(tmp_path)
    assert examine_wal(log) == (commits(log)[-1], None, True)
    assert recovered(log, tmp_path) == (WAL_ROWS, commits(log)[-1])


def test_a_bit_that_flips_before_the_last_transaction_is_damage(database, tmp_path):
    log = wal_of(tmp_path)
    last = HEADER_BYTES + commits(log)[-2] * WAL_FRAME
    for at in range(HEADER_BYTES, last - WAL_FRAME, 61 if ALL else 487):
        broken = bytearray(log)
        broken[at] ^= 4
        state = examine_wal(bytes(broken))
        rows, frames = recovered(bytes(broken), tmp_path)
        assert rows < WAL_ROWS
        assert state.frames == frames
        assert state.fault is not None, f"byte {at}"
        assert examine_wal(bytes(broken), frames) == state


def test_a_damaged_header_is_told_apart(database, tmp_path):
    log = wal_of(tmp_path)
    for at in range(HEADER_BYTES):
        broken = bytearray(log)
        broken[at] ^= 64
        state = examine_wal(bytes(broken))
        assert (state.frames, state.has_header) == (0, False)
        assert "its header is damaged" in str(state.fault)


def test_what_a_crash_leaves_of_the_last_transaction_is_no_damage(database, tmp_path):
    """Any part of it may be on disk: a beginning, or later pages without earlier ones."""
    write(database, range(WAL_ROWS, WAL_ROWS + 1))
    before = wal_of(tmp_path)
    database.execute("INSERT INTO t SELECT i + 100, text FROM t")
    after, chance = wal_of(tmp_path), Random(1)
    assert len(after) - len(before) > 4 * WAL_FRAME
    for cut in range(len(before), len(after) + 1, 331):
        assert examine_wal(after[:cut]).fault is None
    for _ in range(50):
        torn = bytearray(after)
        for at in range(len(before), len(after), 512):
            if chance.random() < 0.5:
                torn[at : at + 512] = bytes(min(512, len(after) - at))
        assert examine_wal(bytes(torn)).fault is None


def test_frames_of_an_earlier_use_of_the_file_are_no_damage(database, tmp_path):
    database.execute("PRAGMA wal_checkpoint(PASSIVE)")
    write(database, range(WAL_ROWS, WAL_ROWS + 1))
    log = wal_of(tmp_path)
    state = examine_wal(log)
    assert state.fault is None
    assert 0 < state.frames < len(log) // WAL_FRAME, "old frames follow"


def test_what_is_left_of_a_transaction_that_was_given_up_is_no_damage(database, tmp_path):
    """Its frames have the salts of those before it, and the last of them is a commit frame if its sync failed."""
    before = wal_of(tmp_path)
    database.execute("INSERT INTO t SELECT i + 100, text FROM t")
    given_up = wal_of(tmp_path)
    there = tmp_path / "again"
    there.mkdir()
    shutil.copyfile(tmp_path / "db", there / "db")
    (there / "db-wal").write_bytes(before)
    other = sqlite3.connect(there / "db", isolation_level=None)
    other.execute("PRAGMA wal_autocheckpoint = 0")
    write(other, range(WAL_ROWS, WAL_ROWS + 1))
    written = (there / "db-wal").read_bytes()
    other.close()
    assert len(before) < len(written) < len(given_up)
    state = examine_wal(written + given_up[len(written) :])
    assert state == (commits(written)[-1], None, True)


@pytest.mark.parametrize("log", [b"", b"\0" * 31, b"\0" * 5000, b"\xff" * 50_000])
def test_no_bytes_raise(log):
    assert examine_wal(log) == (0, None, False)
    assert frames_in_index(log[:7]) is None
