"""Backups of a running instance, what a new one makes of them, and a start on a state that is damaged."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fluxsched.instance import backup
from fluxsched.store.schema import SCHEMA_VERSION

NEWER = SCHEMA_VERSION + 1


def test_a_backup_of_a_running_instance_is_the_state_of_a_new_one(user: Any, daemon: Any) -> None:
    here = daemon("--fake", "2x2", "--statedir", "state")
    here("resource", "drain", "1", "fan")
    ended, waits = here.submit("true"), here.submit("--urgency", "hold", "true")
    here("wait", ended)
    made = here("backup", "saved.sqlite")
    assert made.word.startswith("saved.sqlite: 2 jobs, ")
    assert user.directory.joinpath("saved.sqlite").stat().st_mode & 0o777 == 0o600
    here("resource", "undrain", "1")
    assert "saved.sqlite exists, and nothing is overwritten" in here("backup", "saved.sqlite", status=1).err
    refused = user("restore", "saved.sqlite", "--statedir", "state", status=1)
    assert "is used by another instance" in refused.err
    here("stop")
    refused = user("restore", "saved.sqlite", "--statedir", "state", status=1)
    assert "state/state.sqlite exists, and nothing is overwritten: name a new one" in refused.err
    restored = user("restore", "saved.sqlite", "--statedir", "other", "--json").json
    assert (restored["path"], restored["jobs"]) == ("other/state.sqlite", 2)
    again = daemon("--fake", "2x2", "--statedir", "other")
    assert again("resource", "drain", "-n", "-o", "{ranks} {state} {reason}").word == "1 drained fan"
    assert again.info(ended)["result"] == "COMPLETED"
    assert again.info(waits)["state"] == "SCHED"
    assert again("report", "--json").json["total"]["results"]["completed"] == 1


def test_a_restored_state_leaves_the_jobs_of_the_instance_that_was_saved_alone(user: Any, daemon: Any) -> None:
    """Its start ended them: their processes are on record in the backup."""
    here = daemon("--fake", "1x1", "--statedir", "state")
    runs = here.submit("sleep", "600")
    here("job", "wait-event", runs, "start")
    here("backup", "saved.sqlite")
    user("restore", "saved.sqlite", "--statedir", "other")
    again = daemon("--fake", "1x1", "--statedir", "other")
    assert again("wait", runs, status=1).err.count("the state is a backup made while the job ran") == 1
    assert here.info(runs)["state"] == "RUN"


def test_an_instance_without_a_state_directory_is_saved_as_well(daemon: Any) -> None:
    here = daemon("--fake", "1x1")
    assert here("backup", "--json", "saved.sqlite").json["jobs"] == 0


def test_a_backup_is_made_on_the_machine_of_the_instance(user: Any) -> None:
    """The path that another machine names may be that of another state here."""
    refused = user("backup", "--uri", "tcp://127.0.0.1:9", "saved.sqlite", status=1)
    assert "tcp://127.0.0.1:9 may be on another machine" in refused.err


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        (b"no database" * 99, "backup bad is damaged: file is not a database"),
        ("CREATE TABLE t (i)", "bad is no backup of an instance"),
        (f"CREATE TABLE t (i); PRAGMA user_version = {NEWER}", f"has format {NEWER}; fluxsched "),
        (None, "backup bad does not exist"),
    ],
)
def test_what_is_no_backup_is_not_restored(user: Any, contents: Any, said: str) -> None:
    path = user.directory / "bad"
    if isinstance(contents, bytes):
        path.write_bytes(contents)
    elif contents is not None:
        connection = sqlite3.connect(path)
        connection.executescript(contents)
        connection.close()
    assert said in user("restore", "bad", "--statedir", "new", status=1).err
    assert not (user.directory / "new").exists()


def overwrite_drains(path: Path) -> None:
    """Make the page of the table with drains unreadable."""
    connection = sqlite3.connect(path)
    (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'saved'").fetchone()
    size = connection.execute("PRAGMA page_size").fetchone()[0]
    connection.close()
    data = bytearray(path.read_bytes())
    data[(page - 1) * size : page * size] = b"\xa5" * size
    path.write_bytes(data)


def test_a_damaged_state_is_not_started_on_unless_the_user_says_so(user: Any, daemon: Any) -> None:
    here = daemon("--fake", "2x2", "--statedir", "state")
    here("resource", "drain", "1", "fan")
    ended = here.submit("true")
    here("wait", ended)
    here("stop")
    overwrite_drains(user.directory / "state" / "state.sqlite")
    options = ("--fake", "2x2", "--statedir", "state", "--daemon")
    refused = user.process("start", *options, status=1).err
    assert "state/state.sqlite is damaged: " in refused
    assert "1 job and 0 settings (drains, groups, queues) were read; lost: rows of saved" in refused
    started = user.process("start", *options, "--salvage")
    assert "fluxsched: start: warning: the state was damaged and is kept as state/state.sqlite.damaged-" in started.err
    again = user.at(started.word)
    notice = again("uri", "--json").json["state_notice"]
    assert "lost: rows of saved" in notice
    assert again("module", "stats", "instance", "--json").json["state_notice"] == notice
    assert notice in "".join(path.read_text() for path in (user.directory / "state" / "logs").iterdir())
    assert again.info(ended)["result"] == "COMPLETED"
    again("stop")


def test_what_a_job_has_printed_is_shown_though_its_environment_is_damaged(user: Any, daemon: Any) -> None:
    here = daemon("--fake", "2x2", "--statedir", "state")
    jobid = here.submit("--env", f"LONG={'long' * 999}", "echo", "done")
    here("wait", jobid)
    here("stop")
    with closing(sqlite3.connect(user.directory / "state" / "state.sqlite")) as file, file:
        file.execute("UPDATE part SET value = value || x'00'")
    again = daemon("--fake", "2x2", "--statedir", "state")
    assert "cannot be read from the state, which is damaged" in again("job", "info", jobid, "jobspec", status=1).err
    for verb in ("output", "attach"):
        assert again("job", verb, jobid).out == "done\n"


def test_a_log_that_was_lost_after_a_kill_is_not_started_without(user: Any, daemon: Any, kill_hard: Any) -> None:
    options = ("--fake", "2x2", "--statedir", "state")
    here = daemon(*options)
    here("resource", "drain", "1", "fan")
    here("wait", here.submit("true"))
    kill_hard(here.pid())
    log = user.directory / "state" / "state.sqlite-wal"
    kept = log.read_bytes()
    log.unlink()
    refused = user.process("start", *options, "--daemon", status=1).err
    assert "state/state.sqlite is damaged: its log (state.sqlite-wal) is missing" in refused
    assert "start with --salvage" in refused
    log.write_bytes(kept)
    again = daemon(*options)
    assert again("resource", "drain", "-n", "-o", "{ranks} {state} {reason}").word == "1 drained fan"


def test_a_database_that_was_lost_is_not_started_without(user: Any, daemon: Any) -> None:
    """Also if jobs have left nothing else: it was taken for a new state, without the drains."""
    options = ("--fake", "2x2", "--statedir", "state")
    here = daemon(*options)
    here("resource", "drain", "1", "fan")
    here("wait", here.submit("--output=printed", "true"))
    here("stop")
    state = user.directory / "state"
    assert not list((state / "jobs").iterdir())
    (state / "state.sqlite").rename(state / "kept")
    said = "state/state.sqlite is missing, though jobs have run on this state"
    assert said in user.process("start", *options, "--daemon", status=1).err
    (state / "state.sqlite").touch()
    assert "state.sqlite is damaged: it is empty, but" in user.process("start", *options, "--daemon", status=1).err
    (state / "kept").rename(state / "state.sqlite")
    here = daemon(*options)
    assert here("resource", "drain", "-n", "-o", "{ranks} {state} {reason}").word == "1 drained fan"
    here("stop")
    (state / "state.sqlite").unlink()
    here = user.at(user.process("start", *options, "--daemon", "--salvage").word)
    here("stop")
    daemon(*options)("stop")


def test_a_backup_that_others_may_write_is_not_restored(user: Any, daemon: Any) -> None:
    """Its jobs would run as the one who restores it."""
    here = daemon("--fake", "1x1", "--statedir", "state")
    here("backup", "saved.sqlite")
    path = user.directory / "saved.sqlite"
    path.chmod(0o622)
    refused = user("restore", "saved.sqlite", "--statedir", "other", status=1)
    assert "backup saved.sqlite can be written by others (mode 0622), and the jobs in it would run as " in refused.err
    assert not (user.directory / "other").exists()
    if os.geteuid() == 0:
        path.chmod(0o600)
        os.chown(path, 65534, -1)
        refused = user("restore", "saved.sqlite", "--statedir", "other", status=1)
        assert "backup saved.sqlite belongs to " in refused.err


def test_a_file_that_takes_the_name_of_a_checked_backup_is_not_restored(
    user: Any, daemon: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check was of a name, and what was read of whatever had it then."""
    here = daemon("--fake", "1x1", "--statedir", "state")
    here("backup", "saved.sqlite")
    here.submit("--urgency", "hold", "true")
    here("backup", "theirs.sqlite")
    path, theirs = (user.directory / name for name in ("saved.sqlite", "theirs.sqlite"))
    make_state = backup.private_state

    def exchange(state: Path) -> None:
        theirs.rename(path)
        make_state(state)

    monkeypatch.setattr(backup, "private_state", exchange)
    assert user("restore", "saved.sqlite", "--statedir", "other", "--json").json["jobs"] == 0
    assert not [name for name in os.listdir(user.directory / "other") if "copy" in name or "draft" in name]


def test_a_log_beside_a_backup_is_read_and_checked_like_it(user: Any, daemon: Any) -> None:
    here = daemon("--fake", "1x1", "--statedir", "state")
    here.submit("--urgency", "hold", "true")
    for suffix in ("", "-wal"):
        shutil.copy(user.directory / f"state/state.sqlite{suffix}", user.directory / f"saved.sqlite{suffix}")
    log = user.directory / "saved.sqlite-wal"
    log.chmod(0o666)
    refused = user("restore", "saved.sqlite", "--statedir", "other", status=1)
    assert "backup saved.sqlite-wal can be written by others (mode 0666)" in refused.err
    log.chmod(0o600)
    assert user("restore", "saved.sqlite", "--statedir", "other", "--json").json["jobs"] == 1


def test_nothing_but_known_tables_and_columns_is_restored(user: Any, daemon: Any) -> None:
    here = daemon("--fake", "1x1", "--statedir", "state")
    waits = here.submit("--urgency", "hold", "true")
    here("backup", "saved.sqlite")
    connection = sqlite3.connect(user.directory / "saved.sqlite")
    connection.executescript(
        "CREATE TRIGGER evil AFTER UPDATE ON saved BEGIN DELETE FROM job_log; END;"
        "CREATE TABLE more (i); CREATE VIEW seen AS SELECT 1; ALTER TABLE saved ADD COLUMN extra;"
    )
    connection.close()
    user("restore", "saved.sqlite", "--statedir", "other")
    connection = sqlite3.connect(user.directory / "other" / "state.sqlite")
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    columns = [row[1] for row in connection.execute("PRAGMA table_info(saved)")]
    connection.close()
    assert names.isdisjoint({"evil", "more", "seen"})
    assert columns == ["kind", "key", "value", "crc"]
    again = daemon("--fake", "1x1", "--statedir", "other")
    assert again.info(waits)["state"] == "SCHED"
