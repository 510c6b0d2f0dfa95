"""Changes of a job's duration: before it runs at once, while it runs when its scheduler agrees, afterwards never."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from fluxsched.errors import InvalidValue, Refused
from fluxsched.jobs.effects import SchedAlloc, SchedExpiration, UpdateDone
from fluxsched.jobs.job.job import sched_jobspec


def test_a_pending_jobs_duration_changes_at_once(world: Any) -> None:
    world.submit()
    world.do("update", 1, {"attributes.system.duration": 60})
    assert [type(effect).__name__ for effect in world.last] == ["Persist", "SchedCancel", "UpdateDone"]
    world.do("alloc_canceled", "sched", 1)
    assert world.of(SchedAlloc)[0].jobspec["attributes"]["system"]["duration"] == 60.0
    assert world.job().jobspec.raw["attributes"]["system"]["duration"] == 0.0  # what was submitted stays
    assert sched_jobspec(world.job())["attributes"]["system"]["duration"] == 60.0


def test_a_running_jobs_expiration_changes_when_the_scheduler_agrees(world: Any, r_of: Callable[..., Any]) -> None:
    R = r_of("0", starttime_s=100.0, expiration_s=160.0)  # noqa: N806
    world.run(1, R)
    assert world.do("update", 1, {"attributes.system.duration": 120}) == [SchedExpiration("sched", 1, 220.0)]
    with pytest.raises(Refused, match="not answered yet"):
        world.do("update", 1, {"attributes.system.duration": 130})
    world.do("expiration_answered", 1, "no", )
    assert world.last == [UpdateDone(1, "no")]
    world.do("update", 1, {"attributes.system.duration": 0})
    world.do("expiration_answered", 1, None)
    assert world.contexts(1, "resource-update") == [{"expiration": 0.0}]
    assert world.job().R["execution"]["expiration"] == 0.0
    assert R["execution"]["expiration"] == 160.0
    assert world.listing()[0]["duration"] == 0.0
    world.do("update", 1, {"attributes.system.duration": 500})
    world.do("expiration_answered", 1, None)
    assert world.listing()[0]["duration"] == 500.0
    with pytest.raises(Refused, match="cancel it instead"):
        world.do("update", 1, {"attributes.system.duration": 1})


@pytest.mark.parametrize(
    ("expiration_s", "duration_s", "is_allowed"),
    [(160.0, 59, True), (160.0, 60, True), (160.0, 61, False), (160.0, 0, False), (0.0, 60, True), (0.0, 0, True)],
)
def test_who_may_not_prolong_a_running_job_may_shorten_it(
    world: Any, r_of: Callable[..., Any], expiration_s: float, duration_s: float, is_allowed: bool
) -> None:
    world.run(1, r_of("0", starttime_s=100.0, expiration_s=expiration_s))
    updates = {"attributes.system.duration": duration_s}
    if is_allowed:
        asked_s = 100.0 + duration_s if duration_s else 0.0
        assert world.do("update", 1, updates, may_prolong=False) == [SchedExpiration("sched", 1, asked_s)]
    else:
        with pytest.raises(Refused, match=r"at most 1m, which it has, not .*: ask an admin") as caught:
            world.do("update", 1, updates, may_prolong=False)
        assert caught.value.errnum == errno.EPERM
        assert world.do("update", 1, updates), "who may prolong it still can"


def test_a_waiting_job_may_be_prolonged_by_its_user(world: Any) -> None:
    world.submit()
    world.do("update", 1, {"attributes.system.duration": 1e6}, may_prolong=False)
    assert world.of(UpdateDone) == [UpdateDone(1, None)]


def test_updates_that_come_too_late(world: Any) -> None:
    world.run()
    world.do("update", 1, {"attributes.system.duration": 1000})
    world.do("finished", 1, 0)
    world.do("expiration_answered", 1, None)
    assert world.last == [UpdateDone(1, "job ƒ2 is no longer running")]
    assert world.do("expiration_answered", 1, None) == []
    with pytest.raises(Refused, match="job ƒ2 is ending"):
        world.do("update", 1, {"attributes.system.duration": 1000})


def test_the_loss_of_the_scheduler_answers_an_update(world: Any) -> None:
    world.run()
    world.do("update", 1, {"attributes.system.duration": 1000})
    world.do("scheduler_lost", "sched")
    assert [effect.jobid for effect in world.last] == [1]
    assert "scheduler was lost" in world.last[0].error
    with pytest.raises(Refused, match="no scheduler serves group default"):
        world.do("update", 1, {"attributes.system.duration": 1000})


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
        world.do("update", 1, updates)
