"""A file of an older form has that or the present one, wherever its change is interrupted; a newer one is refused."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from fluxsched.errors import FluxschedError
from fluxsched.runtime.storage.jobs import ended_last, read_active, read_ended
from fluxsched.runtime.storage.schema import SCHEMA_VERSION, WRITER, prepare

OLD = {
    "0.1.0": Path(__file__).parents[1] / "instance" / "from_0_1_0" / "state.sql",
    "schema 1": Path(__file__).with_name("from_schema_1") / "state.sql",
    "schema 2": Path(__file__).with_name("from_schema_2") / "state.sql",
}
STATEMENTS_A_STEP = 5


def opened(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    return connection


def made(directory: Path, of: str) -> Path:
    """A file of an older form."""
    path = directory / "state.sqlite"
    connection = opened(path)
    connection.executescript(OLD[of].read_text())
    connection.close()
    return path


def contents(path: Path) -> tuple[int, list[tuple[Any, ...]], str]:
    """Form, old rows, and what is wrong with the file."""
    connection = opened(path)
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    rows = connection.execute("SELECT seq, jobid, R FROM job_log ORDER BY seq").fetchall()
    health = connection.execute("PRAGMA integrity_check").fetchone()[0]
    connection.close()
    return version, rows, health


def killed_at(path: Path, statements: int) -> bool:
    """Whether a process that brings the file to the present form was killed after so many statements."""
    child = os.fork()
    if child == 0:
        left = statements

        def executed(statement: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                os._exit(9)

        connection = opened(path)
        connection.set_trace_callback(executed)
        prepare(connection, str(path))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


@pytest.mark.parametrize("of", OLD)
def test_a_change_of_form_that_is_killed_leaves_the_old_form_or_the_new_one(of: str, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    old = made(tmp_path / "old", of)
    before = contents(old)
    version_before = before[0]
    assert version_before == (2 if of == "schema 2" else 1)
    seen, at = set(), 0
    while True:
        here = tmp_path / str(at)
        shutil.copytree(tmp_path / "old", here)
        was_killed = killed_at(here / old.name, at)
        version, rows, health = contents(here / old.name)
        assert (rows, health) == (before[1], "ok")
        seen.add(version)
        if not was_killed:
            break
        at += STATEMENTS_A_STEP
    assert at >= 2 * STATEMENTS_A_STEP
    assert seen == {version_before, SCHEMA_VERSION}


@pytest.mark.parametrize("of", OLD)
def test_a_file_that_was_changed_has_the_tables_of_a_new_one(of: str, tmp_path: Path) -> None:
    def tables(path: Path) -> list[tuple[str, str]]:
        connection = opened(path)
        prepare(connection, "it")
        found = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
        connection.close()
        return [(name, "".join((sql or "").replace('"', "").split())) for name, sql in found]

    assert tables(made(tmp_path, of)) == tables(tmp_path / "new")


def test_jobs_of_the_old_form_are_read(tmp_path: Path) -> None:
    connection = opened(made(tmp_path, "schema 1"))
    prepare(connection, "it")
    read = connection.execute
    ended = read_ended(read, ended_last(read, 100), pytest.fail)
    jobs = sorted([*read_active(read), *ended], key=lambda job: job.jobid)
    assert len(jobs) == 9
    assert all(job.events[0]["name"] == "submit" for job in jobs)
    ends = connection.execute("SELECT ended FROM job_log WHERE ended ORDER BY seq").fetchall()
    assert [seconds for (seconds,) in ends] == [int(job.events[-1]["timestamp"]) for job in jobs if is_ended(job)]
    connection.close()


def is_ended(job: Any) -> bool:
    return bool(job.events[-1]["name"] == "clean")


@pytest.mark.parametrize("writer", [True, False])
def test_a_newer_form_is_refused_by_name_and_left_as_it_is(writer: bool, tmp_path: Path) -> None:
    connection = opened(tmp_path / "state.sqlite")
    prepare(connection, "it")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.execute("INSERT OR REPLACE INTO saved VALUES (?, ?, ?)", (*WRITER, b'"9.9.9"'))
    if not writer:
        connection.execute("DROP TABLE saved")
    before = list(connection.iterdump())
    named = " of fluxsched 9.9.9" if writer else ""
    wanted = rf"format {SCHEMA_VERSION + 1}{named}; .* reads formats up to {SCHEMA_VERSION}: start with the"
    with pytest.raises(FluxschedError, match=wanted):
        prepare(connection, "it")
    assert list(connection.iterdump()) == before
    connection.close()


def test_the_page_names_the_present_form() -> None:
    page = (Path(__file__).parents[3] / "rfc" / "operations.md").read_text()
    assert f"(`PRAGMA user_version`, {SCHEMA_VERSION} at present)" in " ".join(page.split())
