"""Changes of a job's duration: before it runs at once, while it runs when its scheduler agrees, afterwards never."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fluxsched.errors import InvalidValue, Refused
from fluxsched.jobs.effects import SchedAlloc, SchedExpiration, UpdateDone
from fluxsched.jobs.job.job import sched_jobspec


def test_a_pending_jobs_duration_changes_at_once(world: Any) -> None:
    world.submit()
    world.do("update", 1, {"attributes.system.duration": 60}, 5)
    assert [type(effect).__name__ for effect in world.last] == ["Persist", "SchedCancel", "UpdateDone"]
    world.do("alloc_canceled", "sched", 1)
    assert world.of(SchedAlloc)[0].jobspec["attributes"]["system"]["duration"] == 60.0
    assert world.job().jobspec.raw["attributes"]["system"]["duration"] == 0.0  # what was submitted stays
    assert sched_jobspec(world.job())["attributes"]["system"]["duration"] == 60.0


def test_a_running_jobs_expiration_changes_when_the_scheduler_agrees(world: Any, r_of: Callable[..., Any]) -> None:
    R = r_of("0", starttime_s=100.0, expiration_s=160.0)  # noqa: N806
    world.run(1, R)
    assert world.do("update", 1, {"attributes.system.duration": 120}, 5) == [SchedExpiration("sched", 1, 220.0)]
    with pytest.raises(Refused, match="not answered yet"):
        world.do("update", 1, {"attributes.system.duration": 130}, 5)
    world.do("expiration_answered", 1, "no", )
    assert world.last == [UpdateDone(1, "no")]
    world.do("update", 1, {"attributes.system.duration": 0}, 5)
    world.do("expiration_answered", 1, None)
    assert world.contexts(1, "resource-update") == [{"expiration": 0.0}]
    assert world.job().R["execution"]["expiration"] == 0.0
    assert R["execution"]["expiration"] == 160.0
    assert world.listing()[0]["duration"] == 0.0
    world.do("update", 1, {"attributes.system.duration": 500}, 5)
    world.do("expiration_answered", 1, None)
    assert world.listing()[0]["duration"] == 500.0
    with pytest.raises(Refused, match="cancel it instead"):
        world.do("update", 1, {"attributes.system.duration": 1}, 5)


def test_updates_that_come_too_late(world: Any) -> None:
    world.run()
    world.do("update", 1, {"attributes.system.duration": 1000}, 5)
    world.do("finished", 1, 0)
    world.do("expiration_answered", 1, None)
    assert world.last == [UpdateDone(1, "job ƒ2 is no longer running")]
    assert world.do("expiration_answered", 1, None) == []
    with pytest.raises(Refused, match="job ƒ2 is ending"):
        world.do("update", 1, {"attributes.system.duration": 1000}, 5)


def test_the_loss_of_the_scheduler_answers_an_update(world: Any) -> None:
    world.run()
    world.do("update", 1, {"attributes.system.duration": 1000}, 5)
    world.do("scheduler_lost", "sched")
    assert [effect.jobid for effect in world.last] == [1]
    assert "scheduler was lost" in world.last[0].error
    with pytest.raises(Refused, match="no scheduler serves group default"):
        world.do("update", 1, {"attributes.system.duration": 1000}, 5)


@pytest.mark.parametrize(
    ("updates", "match"),
    [
        ({}, "cannot update nothing"),
        ({"tasks": 1, "x.y": 2}, "cannot update tasks, x.y"),
        ({"attributes.system.duration": "long"}, "not a number"),
        ({"attributes.system.duration": True}, "not a number"),
        ({"attributes.system.duration": -1}, "not a number"),
        ({"attributes.system.duration": 1e300}, "300 is not a number of seconds within 0 and 100000000000"),
        ({"attributes.system.duration": float("inf")}, "not a number"),
    ],
)
def test_bad_updates_are_refused(world: Any, updates: dict[str, Any], match: str) -> None:
    world.submit()
    with pytest.raises((Refused, InvalidValue), match=match):
        world.do("update", 1, updates, 5)
