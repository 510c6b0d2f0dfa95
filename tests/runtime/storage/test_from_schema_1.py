"""What the store's first form has is found by an instance of today, which brings it to the present form.

`from_schema_1/state.sql` was made once by the last version that wrote that form: the state of `start --config
site.toml --fake 8x16+1 --statedir D`, killed with SIGKILL; rows are text, the boot id is zeroed. Before: `submit` of
two jobs that ended (`true`, `false`), one that was canceled, three that ran (`runs` on two nodes for bank optics, `dbg`
in queue debug, `pre`, which may be preempted), three that did not (`waits`, `held`, `depends`); `drain fake5 "disk is
failing"`, `drain fake7`, `assign fake6 reserved`, `property add 3-4 ssd`, `queue stop debug maintenance`, `queue
disable batch training`. The scheduler had saved the usage of accounts.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from fluxsched.runtime.storage.schema import SCHEMA_VERSION

OLD = Path(__file__).with_name("from_schema_1")


@pytest.fixture
def statedir(world: Any) -> Path:
    """With the file as it was left."""
    found: Path = world.directory / "state"
    found.mkdir(mode=0o700)
    connection = sqlite3.connect(found / "state.sqlite")
    connection.executescript((OLD / "state.sql").read_text())
    connection.close()
    return found


def query(statedir: Path, sql: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(f"file:{statedir / 'state.sqlite'}?mode=ro", uri=True)
    found = connection.execute(sql).fetchall()
    connection.close()
    return found


async def test_all_that_was_stored_is_found(world: Any, statedir: Path) -> None:
    was = {
        jobid: json.loads(jobspec)
        for jobid, jobspec in query(statedir, "SELECT jobid, jobspec FROM job_log WHERE jobspec NOTNULL")
    }
    old_logs: dict[int, list[Any]] = {}
    for jobid, events in query(statedir, "SELECT jobid, events FROM job_log ORDER BY seq"):
        old_logs.setdefault(jobid, []).extend(json.loads(events))
    instance = await world.instance(config=(OLD / "site.toml").read_text(), fake="8x16+1", statedir=statedir)
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


async def test_equal_environments_of_the_old_form_are_kept_once(world: Any, statedir: Path) -> None:
    (jobs,) = query(statedir, "SELECT count(*) FROM job_log WHERE jobspec NOTNULL")[0]
    site = await world.bare(fake="8x16+1", statedir=statedir)
    await world.stop(site)
    (parts,) = query(statedir, "SELECT count(*) FROM part")[0]
    (referring,) = query(statedir, "SELECT count(*) FROM job_log WHERE environment NOTNULL")[0]
    assert parts < referring == jobs
