"""The named limits of what runs tasks, each reached."""

from __future__ import annotations

import asyncio
import os
import resource
from typing import Any

import pytest

from fluxsched.core.jobspec import Jobspec
from fluxsched.runtime.exec import local
from fluxsched.runtime.exec.cleanup import orphans
from fluxsched.runtime.exec.job_processes import LOOK_S
from fluxsched.runtime.exec.tasks import gate
from fluxsched.runtime.exec.tasks import input as task_input
from fluxsched.runtime.exec.tasks.input import INPUT_TASKS_MAX, NOTHING, JobInput, source_of

Shop = Any
"""That of `conftest.py`."""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted"),
    [
        (1024, 4096, 4096),
        (1024, resource.RLIM_INFINITY, gate.DESCRIPTORS_MAX),
        (gate.DESCRIPTORS_MAX, resource.RLIM_INFINITY, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)
def test_so_many_descriptors_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, wanted: int | None
) -> None:
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: found.append(limits))
    assert gate.more_descriptors() == (None if wanted is None else soft)
    assert found == ([] if wanted is None else [(wanted, hard)])


def test_the_tasks_of_a_large_job_are_sent_no_input() -> None:
    spec = Jobspec.from_command(["true"])
    assert (source_of(spec, None, INPUT_TASKS_MAX), source_of(spec, None, INPUT_TASKS_MAX + 1)) == (None, NOTHING)


async def test_one_task_takes_so_many_writes_in_a_row(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_input, "WRITES_MAX", 2)
    read, write = os.pipe()
    job = JobInput(shop.turns, [write])
    taken: list[bytes] = []
    monkeypatch.setattr(os, "write", lambda fd, data: taken.append(bytes(data)) or len(data))
    for number in range(5):
        job.send(str(number).encode(), None, eof=False, taken=lambda: None)
    turns = []
    while len(taken) < 5:
        before = len(taken)
        await asyncio.sleep(0)
        turns.append(len(taken) - before)
    assert (taken, max(turns)) == ([b"0", b"1", b"2", b"3", b"4"], 2)
    monkeypatch.undo()
    job.close()
    os.close(read)


@pytest.mark.plain_only("replaces a method of Turns")
async def test_the_dead_are_looked_for_less_and_less_often(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "LOOK_MAX_S", 2.5 * LOOK_S)
    delays: list[float] = []
    survives = iter([True] * 4 + [False])
    monkeypatch.setattr(shop.executor, "_survives", lambda run: next(survives))
    after = shop.turns.after
    monkeypatch.setattr(shop.turns, "after", lambda delay_s, call: delays.append(delay_s) or after(0.0, call))
    await shop.run("exit 0")
    assert delays == [LOOK_S, 2 * LOOK_S, 2.5 * LOOK_S, 2.5 * LOOK_S]


def test_a_note_names_so_many_processes() -> None:
    pids = list(range(1, orphans.PIDS_NAMED_MAX + 1))
    listed = ", ".join(map(str, pids))
    assert orphans._named(pids) == f"{len(pids)} processes ({listed})"
    assert orphans._named([*pids, 99]) == f"{len(pids) + 1} processes ({listed}, ...)"
