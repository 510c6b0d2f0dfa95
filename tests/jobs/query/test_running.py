"""The jobs that hold resources: the largest first, those meant only, each step short."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fluxsched.core.idset import Idset
from fluxsched.jobs.query import running
from fluxsched.jobs.query.running import Largest, RunningQuery, largest


def asked(world: Any, **query: Any) -> Largest:
    found = list(largest(world.manager.jobs, world.manager.holdings.jobids(), RunningQuery(**query)))
    assert found[:-1] == [None] * (len(found) - 1)
    assert found[-1] is not None
    return found[-1]


def ids(found: Largest) -> list[int]:
    return [job.id for job in found.jobs]


@pytest.fixture
def site(world: Any, spec: Callable[..., Any], r_of: Callable[..., Any]) -> Any:
    """Jobs of 4 cores for 10 s, 1 core for 100 s, 1 core without a limit, one that waits and one that has ended."""
    for jobid in range(1, 6):
        world.submit(jobid, spec())
        world.job(jobid).userid = 1000 + jobid % 2
    for jobid, (ranks, cores, length_s) in {
        1: ("0", "0-3", 10.0), 2: ("1-2", "0", 100.0), 3: ("3", "0", 0.0), 5: ("4", "0-3", 1000.0)
    }.items():  # fmt: skip
        begin_s = 100.0
        R = r_of(ranks, cores, expiration_s=begin_s + length_s if length_s else 0.0)  # noqa: N806 - RFC 20's name
        R["execution"]["starttime"] = begin_s
        world.grant(jobid, R)
    world.do("started", 5)
    world.end(5)
    return world


def test_the_largest_come_first(site: Any) -> None:
    assert ids(asked(site)) == [3, 2, 1]
    assert asked(site).left_out == 0


def test_of_some_targets_of_one_user_and_so_many(site: Any) -> None:
    assert ids(asked(site, targets=Idset.parse("0,2"))) == [2, 1]
    assert ids(asked(site, targets=Idset.parse("4"))) == []
    assert ids(asked(site, userid=1001)) == [3, 1]
    found = asked(site, max_entries=1)
    assert (ids(found), found.left_out) == ([3], 2)


def test_many_are_looked_at_in_steps(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "STEP_HOLDERS", 1)
    looking = largest(site.manager.jobs, site.manager.holdings.jobids(), RunningQuery())
    assert next(looking) is None
    site.do("started", 2)
    site.end(2)
    *_, found = looking
    assert found is not None
    assert ids(found) == [3, 1]
