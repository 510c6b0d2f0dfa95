"""Stores of older forms are read and changed once, whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from fluxsched.errors import FluxschedError
from fluxsched.store.integrity import SELECTED, is_intact
from fluxsched.store.jobs import ended_last, read_active, read_ended
from fluxsched.store.schema import HOUR, SCHEMA_VERSION, SUMS, WRITER, make_tables, prepare
from fluxsched.store.store import ImmediateWriter, Store
from fluxsched.system.clock import SystemClock
from fluxsched.system.loop import Turns

# A file of an older form has that or the present one, wherever its change is interrupted; a newer one is refused.


OLD_STATES = {
    "0.1.0": Path(__file__).with_name("from_0_1_0") / "state.sql",
    "schema 1": Path(__file__).with_name("from_schema_1") / "state.sql",
    "schema 2": Path(__file__).with_name("from_schema_2") / "state.sql",
}
STATEMENTS_A_STEP = 5
ROWS_OF_FORM_4 = {
    "saved": ("drain", "host1", b"{}"),
    "journal": (1, b"{}"),
    "job_log": (1, 5, 7, b"\x90", b"{}", None, None, 3),
    "part": (3, b"digest", b"text"),
    "process": (5, b"{}"),
    "sample": (60, 120, 60, 1.5, 2, 0.0, 0.0, 0.0, b""),
    "run": (1, 2.5),
    "interval": (1, "0-3", "drained", "fan \u2744", 1, None),
    "lease": (5, 0, "east", "a/5", b"{}", "wanted"),
    "leased": ("b/5", 5),
}


def opened(path):
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    return connection


def made(directory, of):
    """A file of an older form."""
    path = directory / "state.sqlite"
    connection = opened(path)
    connection.executescript(OLD_STATES[of].read_text())
    connection.close()
    return path


def contents(path):
    """Form, old rows, and what is wrong with the file."""
    connection = opened(path)
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    rows = connection.execute("SELECT seq, jobid, R FROM job_log ORDER BY seq").fetchall()
    health = connection.execute("PRAGMA integrity_check").fetchone()[0]
    connection.close()
    return version, rows, health


def killed_at(path, statements):
    """Whether a process that brings the file to the present form was killed after so many statements."""
    child = os.fork()
    if child == 0:
        left = statements

        def executed(statement):
            nonlocal left
            left -= 1
            if left < 0:
                os._exit(9)

        connection = opened(path)
        connection.set_trace_callback(executed)
        prepare(connection, str(path))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


@pytest.mark.parametrize("of", OLD_STATES)
def test_a_change_of_form_that_is_killed_leaves_the_old_form_or_the_new_one(of, tmp_path):
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


@pytest.mark.parametrize("of", OLD_STATES)
def test_a_file_that_was_changed_has_the_tables_of_a_new_one(of, tmp_path):
    def tables(path):
        connection = opened(path)
        prepare(connection, "it")
        found = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
        connection.close()
        return [(name, "".join((sql or "").replace('"', "").split())) for name, sql in found]

    assert tables(made(tmp_path, of)) == tables(tmp_path / "new")


def test_rows_of_the_form_before_get_checksums_and_those_of_later_changes_too(tmp_path):
    connection = opened(tmp_path / "state.sqlite")
    make_tables(connection, 4)
    for table, row in ROWS_OF_FORM_4.items():
        connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
    connection.execute("PRAGMA user_version = 4")
    connection.close()
    store = Store(tmp_path / "state.sqlite", Turns(SystemClock()), ImmediateWriter())
    for columns in SELECTED.values(), SELECTED.values():
        for table, selected in zip(SELECTED, columns, strict=True):
            assert all(map(is_intact, store.read(f"SELECT {selected} FROM {table}"))), table
        store.change("lease is", (5, "running"))
        store.change("all is counted")
        store.change("fewer are counted")
        store.flush()
    for table, row in ROWS_OF_FORM_4.items():
        assert store.read(f"SELECT count(*) FROM {table} WHERE crc") != [(0,)], row
    assert store.read("SELECT state FROM lease") == [("running",)]
    store.close()


def test_usage_of_the_form_before_is_added_to(tmp_path):
    connection = opened(tmp_path / "state.sqlite")
    make_tables(connection, 6)
    old = len(SUMS) - 2
    row = (HOUR, 0, 1000, "optics", "", "default", "", *[1.0] * old)
    connection.execute(f"INSERT INTO usage VALUES ({', '.join('?' * len(row))})", row)
    connection.execute("PRAGMA user_version = 6")
    connection.close()
    store = Store(tmp_path / "state.sqlite", Turns(SystemClock()), ImmediateWriter())
    store.add("usage", (*row, 2.0, 3.0))
    store.flush()
    assert store.read(f"SELECT {', '.join(SUMS)} FROM usage") == [(*[2.0] * old, 2.0, 3.0)]
    store.close()


def test_jobs_of_the_old_form_are_read(tmp_path):
    connection = opened(made(tmp_path, "schema 1"))
    prepare(connection, "it")
    read = connection.execute
    ended = read_ended(read, ended_last(read, 100), pytest.fail)
    jobs = sorted([*read_active(read, pytest.fail), *ended], key=lambda job: job.jobid)
    assert len(jobs) == 9
    assert all(job.events[0]["name"] == "submit" for job in jobs)
    ends = connection.execute("SELECT ended FROM job_log WHERE ended ORDER BY seq").fetchall()
    assert [seconds for (seconds,) in ends] == [int(job.events[-1]["timestamp"]) for job in jobs if is_ended(job)]
    connection.close()


def is_ended(job):
    return bool(job.events[-1]["name"] == "clean")


@pytest.mark.parametrize("writer", [True, False])
def test_a_newer_form_is_refused_by_name_and_left_as_it_is(writer, tmp_path):
    connection = opened(tmp_path / "state.sqlite")
    prepare(connection, "it")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.execute("INSERT OR REPLACE INTO saved VALUES (?, ?, ?, 0)", (*WRITER, b'"9.9.9"'))
    if not writer:
        connection.execute("DROP TABLE saved")
    before = list(connection.iterdump())
    named = " of fluxsched 9.9.9" if writer else ""
    wanted = rf"format {SCHEMA_VERSION + 1}{named}; .* reads formats up to {SCHEMA_VERSION}: start with the"
    with pytest.raises(FluxschedError, match=wanted):
        prepare(connection, "it")
    assert list(connection.iterdump()) == before
    connection.close()


def test_the_page_names_the_present_form():
    page = (Path(__file__).parents[2] / "rfc" / "operations.md").read_text()
    assert f"(`PRAGMA user_version`, {SCHEMA_VERSION} at present)" in " ".join(page.split())


# What the store's first form has is found by an instance of today, which brings it to the present form.
#
# `from_schema_1/state.sql` was made once by the last version that wrote that form: the state of `start --config
# site.toml --fake 8x16+1 --statedir D`, killed with SIGKILL; rows are text, the boot id is zeroed. Before: `submit`
# of two jobs that ended (`true`, `false`), one that was canceled, three that ran (`runs` on two nodes for bank
# optics, `dbg` in queue debug, `pre`, which may be preempted), three that did not (`waits`, `held`, `depends`);
# `drain fake5 "disk is failing"`, `drain fake7`, `assign fake6 reserved`, `property add 3-4 ssd`, `queue stop debug
# maintenance`, `queue disable batch training`. The scheduler had saved the usage of accounts.


SCHEMA_1 = Path(__file__).with_name("from_schema_1")


@pytest.fixture
def statedir(world):
    """With the file as it was left."""
    found = world.directory / "state"
    found.mkdir(mode=0o700)
    connection = sqlite3.connect(found / "state.sqlite")
    connection.executescript((SCHEMA_1 / "state.sql").read_text())
    connection.close()
    return found


def query(statedir, sql):
    connection = sqlite3.connect(f"file:{statedir / 'state.sqlite'}?mode=ro", uri=True)
    found = connection.execute(sql).fetchall()
    connection.close()
    return found


async def test_all_that_was_stored_is_found(world, statedir):
    was = {
        jobid: json.loads(jobspec)
        for jobid, jobspec in query(statedir, "SELECT jobid, jobspec FROM job_log WHERE jobspec NOTNULL")
    }
    old_logs = {}
    for jobid, events in query(statedir, "SELECT jobid, events FROM job_log ORDER BY seq"):
        old_logs.setdefault(jobid, []).extend(json.loads(events))
    instance = await world.instance(config=(SCHEMA_1 / "site.toml").read_text(), fake="8x16+1", statedir=statedir)
    peer = world.second(instance)
    assert query(statedir, "PRAGMA user_version") == [(SCHEMA_VERSION,)]
    jobs = {job["name"]: job for job in (await peer.ok("job-manager.list", {}))["jobs"]}
    for name in ("runs", "dbg", "pre"):
        await peer.ok("job-manager.wait", {"id": jobs[name]["id"], "follow": False})
        found = await peer.ok("job-manager.lookup", {"id": jobs[name]["id"], "keys": ["eventlog"]})
        assert "restarted" in str(found["eventlog"])
    assert {name for name, job in jobs.items() if job["state"] != "INACTIVE"} >= {"waits", "held"}
    assert (jobs["true"]["result"], jobs["false"]["returncode"], jobs["canceled"]["result"]) == (
        "COMPLETED", 1, "CANCELED",
    )  # fmt: skip
    for jobid, jobspec in was.items():
        found = await peer.ok("job-manager.lookup", {"id": jobid, "keys": ["jobspec", "eventlog"]})
        assert found["jobspec"] == jobspec
        assert found["eventlog"][: len(old_logs[jobid])] == old_logs[jobid]
    status = await peer.ok("resource.status")
    while "4" in status["drain"]:  # fake4 was to move once no job held it: its job's time has passed
        status = await peer.ok("resource.status")
    assert {ranks: (line["reason"], line["user"], line["timestamp"]) for ranks, line in status["drain"].items()} == {
        "5": ("disk is failing", "root", 1795369503.50644),
        "7": ("", "root", 1795369503.8220048),
    }
    assert status["groups"] == {"default": "3-5,7", "exclude": "0", "interactive": "1-2", "reserved": "6"}
    assert status["R"]["execution"]["properties"]["ssd"] == "3-4"
    batch, debug = [await peer.ok("job-manager.queue-status", {"name": name}) for name in ("batch", "debug")]
    assert (batch["enable"], batch["enable_reason"]) == (False, "training")
    assert (debug["start"], debug["start_reason"]) == (False, "maintenance")
    accounts = await peer.ok("sched.accounts", {"group": "default", "start": 0})
    assert "optics" in str(accounts)


async def test_equal_environments_of_the_old_form_are_kept_once(world, statedir):
    site = await world.bare(fake="8x16+1", statedir=statedir)
    await world.stop(site)
    (jobs,) = query(statedir, "SELECT count(*) FROM job_log WHERE jobspec NOTNULL")[0]
    (parts,) = query(statedir, "SELECT count(*) FROM part")[0]
    (referring,) = query(statedir, "SELECT count(*) FROM job_log WHERE environment NOTNULL")[0]
    assert parts < referring == jobs


# A state of the store's second form: it comes to have a history, with what its jobs used.
#
# `from_schema_2/state.sql` was made once by the last version that wrote that form: the state of `start --config
# ../from_schema_1/site.toml --fake 8x16+1 --statedir D`, killed with SIGKILL; paths are changed, the boot id is
# zeroed. Before, in queue batch and bank physics: `true`, `false`, one job that was canceled, one whose time was up,
# one of 4 GPUs, `runs`, which ran and cannot go on after another boot; one on two nodes for bank optics; three in
# queue debug; `drain fake5 "disk is failing"`.


SCHEMA_2 = Path(__file__).with_name("from_schema_2")
CONFIG = Path(__file__).with_name("from_schema_1") / "site.toml"


async def report(peer, by):
    answer = await peer.ok("history.report", {"by": by, "since": 0.0})
    return {row["name"]: row for row in answer["rows"]}


async def test_what_jobs_used_before_there_was_a_history_is_counted_once(world):
    statedir = world.directory / "state"
    statedir.mkdir(mode=0o700)
    connection = sqlite3.connect(statedir / "state.sqlite")
    connection.executescript((SCHEMA_2 / "state.sql").read_text())
    connection.close()
    for _ in range(2):
        site = await world.instance(config=CONFIG.read_text(), fake="8x16+1", statedir=statedir)
        peer = world.second(site)
        await peer.ok("instance.ready")
        banks, queues = [await report(peer, by) for by in ("bank", "queue")]
        assert {name: row["jobs"] for name, row in banks.items()} == {"physics": 9, "optics": 1}
        assert {name: row["jobs"] for name, row in queues.items()} == {"batch": 7, "debug": 3}
        results = banks["physics"]["results"]
        assert (results["canceled"], results["timeout"]) == (1, 1)
        assert 2.0 < banks["physics"]["gpu_seconds"] < 10.0
        await world.stop(site)
    connection = sqlite3.connect(statedir / "state.sqlite")
    assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    connection.close()


# What 0.1.0 wrote is read: its state directory, its site file, the messages of its client.
#
# Made once with 0.1.0, in `from_0_1_0/`:
#
# `site.toml` is its `examples/site.toml`.
#
# `state.sql` is the state of `start --config site.toml --fake 8x16+1 --statedir D`, killed with SIGKILL; rows are
# text, the boot id is zeroed. Before: `submit` of two jobs that ended (`true`, `false`), three that ran (`runs` on
# two nodes, `dbg` in queue debug, `gpu` with memory), three that did not (`waits`, `held`, `depends`); `drain fake5
# "disk is failing"`, `drain fake7`, `assign fake6 reserved`, `assign --graceful 4 reserved`, `property add ssd 3-4`,
# `queue stop long maintenance`, `queue disable debug training`.
#
# `conversation.json` has the frames that its asyncio client sent to a bare instance of four targets, in hexadecimal,
# and what it received, decoded.


RELEASED = Path(__file__).with_name("from_0_1_0")
SITE = '[resource.groups]\nb = "fake3"\n[[resource.config]]\nhosts = "fake[0-3]"\ncores = "0-1"\n'
VARYING = ("id", "acquirer")


@pytest.fixture
async def site(world):
    """An instance on the state and with the site file of 0.1.0; its schedulers run."""
    statedir = world.directory / "state"
    statedir.mkdir(mode=0o700)
    connection = sqlite3.connect(statedir / "state.sqlite")
    connection.executescript((RELEASED / "state.sql").read_text())
    connection.close()
    instance = await world.instance(config=(RELEASED / "site.toml").read_text(), fake="8x16+1", statedir=statedir)
    peer = world.second(instance)
    for job in (await peer.ok("job-manager.list", {}))["jobs"]:
        if job["name"] not in ("waits", "held"):
            await peer.ok("job-manager.wait", {"id": job["id"]})
    await peer.settle()
    return instance


async def test_resources_are_as_they_were_left(world, site):
    peer = world.second(site)
    status = await peer.ok("resource.status")
    while "4" in status["drain"]:  # fake4 was to move once no job held it: its job's time has passed
        status = await peer.ok("resource.status")
    assert {ranks: (line["reason"], line["user"], line["timestamp"]) for ranks, line in status["drain"].items()} == {
        "5": ("disk is failing", "root", 1795337312.8302364),
        "7": ("", "root", 1795337313.4510393),
    }
    assert status["groups"] == {"default": "3,5,7", "exclude": "0", "interactive": "1-2", "reserved": "4,6"}
    properties = status["R"]["execution"]["properties"]
    assert (properties["ssd"], properties["gpu"]) == ("3-4", "4-7")
    assert status["R"]["execution"]["shared"] == {"matlab": 5}
    views = {view["name"]: view.get("acquirer") for view in (await peer.ok("resource.groups"))["groups"]}
    assert (views["default"], views["interactive"]) == ("sched-easy", "sched-interactive")
    stream = peer.open("resource.journal")
    await peer.next(stream)  # the first has the restart of 0.1.0
    await peer.settle()
    events = [event["name"] for payload in peer.waiting(stream) for event in payload["events"]]
    assert events[:3] == ["resource-define", "online", "drain"]
    assert events.count("restart") == 1


async def test_jobs_and_queues_go_on(world, site):
    peer = world.second(site)
    listed = (await peer.ok("job-manager.list", {}))["jobs"]
    jobs = {job["name"]: job for job in listed}
    assert {name: job["state"] for name, job in jobs.items() if job["state"] != "INACTIVE"} == {
        "waits": "SCHED",
        "held": "SCHED",
    }
    assert (jobs["true"]["result"], jobs["false"]["returncode"]) == ("COMPLETED", 1)
    for name in ("runs", "dbg", "gpu"):
        assert jobs[name]["exception"]["note"].startswith("resource allocation expired"), "their time passed long ago"
        assert jobs[name]["nodelist"] == {"runs": "fake[3-4]", "dbg": "fake1", "gpu": "fake4"}[name]
    assert jobs["depends"]["exception"]["type"] == "depend"
    debug, long = [await peer.ok("job-manager.queue-status", {"name": name}) for name in ("debug", "long")]
    assert (debug["enable"], debug["enable_reason"]) == (False, "training")
    assert (long["start"], long["start_reason"]) == (False, "maintenance")
    newest = max(job["id"] for job in listed)
    jobspec = json.loads(jobspec_of(jobs["true"]["id"]))
    assert (await peer.ok("job-manager.submit", {"jobspec": jobspec}))["id"] > newest


def jobspec_of(jobid):
    """As 0.1.0 stored it."""
    connection = sqlite3.connect(":memory:")
    connection.executescript((RELEASED / "state.sql").read_text())
    found = connection.execute("SELECT jobspec FROM job_log WHERE jobid = ? AND jobspec NOT NULL", (jobid,)).fetchone()
    connection.close()
    return found[0].decode()


async def test_its_client_is_answered_as_before(world):
    """Each frame as it was sent; each response has at least what was in it, and the same value."""
    bare = await world.bare(config=SITE, fake="4x2")
    peer = world.second(bare)
    steps = json.loads((RELEASED / "conversation.json").read_text())
    bundled = []
    assert len(steps) > 30
    for step in steps:
        if "sent" in step:
            peer.socket.send_multipart([bytes.fromhex(frame) for frame in step["sent"]])
        else:
            was = step["received"]
            if was["topic"] == "job-manager.submit" and not bundled:  # it had sent a bundle, so it is sent one
                bundled = (await peer.request()).payload
            if bundled:
                _, topic, _, errnum, tag, payload = bundled.pop(0)
            else:
                errnum, payload, topic, tag, _ = await peer.next(was["tag"])
            assert (topic, tag, errnum) == (was["topic"], was["tag"], was["errnum"])
            contains(payload, was["payload"], topic)


def contains(now, was, where):
    """Fail unless everything that was there is there."""
    assert type(now) is type(was), where
    if isinstance(was, dict):
        for key, value in was.items():
            if key not in VARYING:
                contains(now[key], value, f"{where}.{key}")
    elif isinstance(was, list):
        assert len(now) == len(was), where
        for index, value in enumerate(was):
            contains(now[index], value, f"{where}[{index}]")
    else:
        assert now == was, where
