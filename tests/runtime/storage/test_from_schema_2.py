"""A state of the store's second form: it comes to have a history, with what its jobs used.

`from_schema_2/state.sql` was made once by the last version that wrote that form: the state of `start --config
../from_schema_1/site.toml --fake 8x16+1 --statedir D`, killed with SIGKILL; paths are changed, the boot id is zeroed.
Before, in queue batch and bank physics: `true`, `false`, one job that was canceled, one whose time was up, one of 4
GPUs, `runs`, which ran and cannot go on after another boot; one on two nodes for bank optics; three in queue debug;
`drain fake5 "disk is failing"`.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from fluxsched.runtime.storage.schema import SCHEMA_VERSION

OLD = Path(__file__).with_name("from_schema_2")
CONFIG = Path(__file__).with_name("from_schema_1") / "site.toml"


async def report(peer: Any, by: str) -> dict[str, Any]:
    answer = await peer.ok("history.report", {"by": by, "since": 0.0})
    return {row["name"]: row for row in answer["rows"]}


async def test_what_jobs_used_before_there_was_a_history_is_counted_once(world: Any) -> None:
    statedir = world.directory / "state"
    statedir.mkdir(mode=0o700)
    connection = sqlite3.connect(statedir / "state.sqlite")
    connection.executescript((OLD / "state.sql").read_text())
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
