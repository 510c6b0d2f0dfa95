"""What jobs used that grew and shrank: exact by size, in the hours in which it was, also where it is counted again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fluxsched.jobs.lifecycle import restore
from fluxsched.runtime.history.recount import ended_job
from fluxsched.runtime.history.report import RunningUse, Span, running_use
from fluxsched.runtime.storage.events import pack_events
from fluxsched.runtime.storage.jobs import read_ended

from .by_hand import BEGIN_S
from .test_accounting import JOBSPEC, QUEUE, World


def r_of(ranks: str, **properties: str) -> dict[str, Any]:
    lite = [{"rank": ranks, "children": {"core": "0-1", "gpu": "0"}}]
    execution = {"R_lite": lite, "starttime": 0, "expiration": 0, "properties": properties}
    return {"version": 1, "execution": execution}


def events(ended: bool = True) -> list[dict[str, Any]]:
    """2 targets of 2 cores from 1,800 s before the hour, 3 from 900 s before it, 1 from 600 s after it, for 600 s."""
    found = [
        ("submit", -1810.0, {"userid": 1000, "urgency": 16, "flags": 0, "version": 1}), ("validate", -1810.0, None),
        ("depend", -1810.0, None), ("priority", -1810.0, {"priority": 16}), ("alloc", -1800.0, None),
        ("start", -1800.0, None), ("grow", -900.0, {"R": r_of("7", ssd="7")}),
        ("shrink", 0.0, {"ranks": "0,7", "note": "for another"}), ("release", 600.0, {"ranks": "0,7", "final": False}),
    ]  # fmt: skip
    if ended:
        found += [
            ("finish", 1200.0, {"status": 0}), ("release", 1200.0, {"ranks": "all", "final": True}),
            ("free", 1200.0, None), ("clean", 1200.0, None),
        ]  # fmt: skip
    return [
        {"timestamp": BEGIN_S + at_s, "name": name} | ({} if context is None else {"context": context})
        for name, at_s, context in found
    ]


BEFORE_S = 900.0 * 4 + 900.0 * 6
"""Core-seconds before the hour."""
AFTER_S = 600.0 * 6 + 600.0 * 2


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    found.now_s = BEGIN_S + 1200.0
    first_r = msgspec.json.encode(r_of("0-1", gpu="0"))
    found.store.add("job_log", (1, 0, pack_events(events()[:5]), JOBSPEC, 0, 0, first_r))
    found.store.add("job_log", (1, 0, pack_events(events()[5:8]), "", 0, 0, ""))
    found.store.add("job_log", (1, int(found.now_s), pack_events(events()[8:]), "", 0, 0, ""))
    found.flush()
    yield found
    found.store.close()


def test_each_size_counts_in_its_hours(world: World) -> None:
    (record,) = read_ended(world.store.read, [1], pytest.fail)
    job = ended_job(record, lambda name: QUEUE)
    assert job is not None
    world.accounting.ended(job, "COMPLETED")
    world.accounting.write()
    world.flush()
    check(world)


def test_a_restart_counts_the_same(world: World) -> None:
    world.lose()
    world.start()
    world.flush()
    check(world)


def check(world: World) -> None:
    found = {t - BEGIN_S: core_s for t, core_s in world.rows("SELECT t, core_s FROM usage")}
    assert found == {-3600.0: BEFORE_S, 0.0: AFTER_S}
    assert world.rows("SELECT sum(gpu_s) FROM usage") == [((BEFORE_S + AFTER_S) / 2,)]
    assert dict(world.report("property").rows).keys() == {"gpu", "ssd"}, "it counts for what it has ever had"


def test_what_runs_still_has_used_what_it_held(world: World) -> None:
    job = restore.replayed(1, events(ended=False), r_of("0-1"))
    span = Span(int(BEGIN_S - 900), int(BEGIN_S + 3600), BEGIN_S + 900.0)
    steps = [*running_use({1: job}, [1], span, "user", None, {}.get)]
    found = steps[-1]
    assert isinstance(found, RunningUse)
    assert found.total == [1, 900.0 * 6 + 600.0 * 6 + 300.0 * 2, (900.0 * 6 + 600.0 * 6 + 300.0 * 2) / 2]
