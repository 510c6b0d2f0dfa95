"""No task outlives an instance without a state directory: kill -9 of the instance and of its keeper, and then look."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from .conftest import left_behind, pid_in

SAY = "echo $$ > .$0; mv .$0 $0"  # a file that appears with its text in it


@pytest.mark.usefixtures("real")
def test_kill_9_of_the_instance_ends_all_that_its_jobs_run(
    user: Any, daemon: Any, alive: Any, until: Any, kill_hard: Any, keeper_of: Any
) -> None:
    """Tasks, what left their group, what wiped its environment too, and who heeds no SIGTERM."""
    (user.directory / "site.toml").write_text("[exec]\nkill-timeout = '200ms'\n")
    here = daemon("--fake", "1x4", "--config", "site.toml")
    here.submit("sh", "-c", f"{SAY}; exec sleep 403", "plain")
    here.submit("sh", "-c", f"trap '' TERM HUP; {SAY}; while :; do sleep .1; done", "stubborn")
    (user.directory / "task.sh").write_text(f"{SAY.replace('$0', '$1')}; exec sleep 403")
    here.submit("sh", "-c", f"env -i setsid sh task.sh wiped & setsid sh task.sh free & {SAY}; wait", "outer")
    pids = [pid_in(user.directory / name, until) for name in ("plain", "stubborn", "outer", "wiped", "free")]
    keeper = keeper_of(here.pid())
    kill_hard(here.pid())
    until(lambda: not any(alive(pid) for pid in [*pids, keeper]))
    assert left_behind(user) == []


def test_jobs_are_asked_to_end_before_they_are_killed(user: Any, daemon: Any, until: Any, kill_hard: Any) -> None:
    here = daemon("--fake", "1x1")
    here.submit("sh", "-c", "trap 'echo asked > asked; exit' TERM; touch up; while :; do sleep .02; done")
    until((user.directory / "up").exists)
    kill_hard(here.pid())
    until((user.directory / "asked").exists)


def test_a_keeper_that_was_killed_is_replaced(
    user: Any, daemon: Any, alive: Any, until: Any, kill_hard: Any, keeper_of: Any
) -> None:
    here = daemon("--fake", "1x1")
    here.submit("sh", "-c", f"{SAY}; exec sleep 403", "task")
    task, instance = pid_in(user.directory / "task", until), here.pid()
    first = until(lambda: keeper_of(instance))
    os.kill(first, signal.SIGKILL)
    until(lambda: keeper_of(instance) not in (None, first))
    kill_hard(instance)
    until(lambda: not alive(task))


def test_the_next_start_ends_the_tasks_when_the_keeper_was_killed_too(
    user: Any, daemon: Any, alive: Any, until: Any, kill_hard: Any, keeper_of: Any
) -> None:
    here = daemon("--fake", "1x1")
    here.submit("sh", "-c", f"{SAY}; exec sleep 403", "task")
    task, instance = pid_in(user.directory / "task", until), here.pid()
    keeper = until(lambda: keeper_of(instance))
    os.kill(keeper, signal.SIGSTOP)  # else it would be there first
    kill_hard(instance)
    os.kill(keeper, signal.SIGKILL)
    until(lambda: not alive(keeper))
    assert alive(task)
    user.shell("true", "--fake", "1x1")
    until(lambda: not alive(task))
    assert left_behind(user) == []


@pytest.mark.parametrize("how", ["stop", "term"])
def test_an_instance_that_ends_takes_its_keeper_along(
    user: Any, daemon: Any, alive: Any, until: Any, keeper_of: Any, how: str
) -> None:
    here = daemon("--fake", "1x1")
    here("run", "true")
    instance = here.pid()
    keeper = keeper_of(instance)
    if how == "stop":
        here("stop")
    else:
        os.kill(instance, signal.SIGTERM)
        until(lambda: not alive(instance))
    assert not alive(keeper)
    assert left_behind(user) == []
