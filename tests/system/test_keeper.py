"""No task outlives its instance, unless a state directory lets the next instance find it: kill -9, and then look."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

SAY = "echo $$ > .$0; mv .$0 $0"  # a file that appears with its text in it


def pid_in(path: Path, until: Any) -> int:
    until(path.exists)
    return int(path.read_text())


def keeper_of(instance: int) -> list[int]:
    """The keeper of the instance of this process id."""
    found = []
    for child in Path(f"/proc/{instance}/task/{instance}/children").read_text().split():
        if b"keeper_main.py" in Path(f"/proc/{child}/cmdline").read_bytes():
            found.append(int(child))
    return found


def left_behind(user: Any) -> list[str]:
    return [path.name for path in user.directory.iterdir() if path.name.startswith("fluxsched-")]


def test_kill_9_of_the_instance_ends_all_that_its_jobs_run(
    user: Any, daemon: Any, alive: Any, until: Any, kill_hard: Any
) -> None:
    """Tasks, what left their group, what wiped its environment too, and who heeds no SIGTERM."""
    (user.directory / "site.toml").write_text("[exec]\nkill-timeout = '200ms'\n")
    here = daemon("--fake", "1x4", "--config", "site.toml")
    here.submit("sh", "-c", f"{SAY}; exec sleep 403", "plain")
    here.submit("sh", "-c", f"trap '' TERM HUP; {SAY}; while :; do sleep .1; done", "stubborn")
    (user.directory / "task.sh").write_text(f"{SAY.replace('$0', '$1')}; exec sleep 403")
    here.submit("sh", "-c", f"env -i setsid sh task.sh wiped & setsid sh task.sh free & {SAY}; wait", "outer")
    pids = [pid_in(user.directory / name, until) for name in ("plain", "stubborn", "outer", "wiped", "free")]
    [keeper] = keeper_of(here.pid())
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
    user: Any, daemon: Any, alive: Any, until: Any, kill_hard: Any
) -> None:
    here = daemon("--fake", "1x1")
    here.submit("sh", "-c", f"{SAY}; exec sleep 403", "task")
    task, instance = pid_in(user.directory / "task", until), here.pid()
    [first] = until(lambda: keeper_of(instance))
    os.kill(first, signal.SIGKILL)
    until(lambda: keeper_of(instance) not in ([], [first]))
    kill_hard(instance)
    until(lambda: not alive(task))


def test_the_next_start_ends_the_tasks_when_the_keeper_was_killed_too(
    user: Any, daemon: Any, alive: Any, until: Any, kill_hard: Any
) -> None:
    here = daemon("--fake", "1x1")
    here.submit("sh", "-c", f"{SAY}; exec sleep 403", "task")
    task, instance = pid_in(user.directory / "task", until), here.pid()
    [keeper] = until(lambda: keeper_of(instance))
    os.kill(keeper, signal.SIGSTOP)  # else it would be there first
    kill_hard(instance)
    os.kill(keeper, signal.SIGKILL)
    until(lambda: not alive(keeper))
    assert alive(task)
    user.shell("true", "--fake", "1x1")
    until(lambda: not alive(task))
    assert left_behind(user) == []


def test_with_a_state_directory_tasks_wait_for_the_next_start(
    user: Any, daemon: Any, alive: Any, until: Any, kill_hard: Any
) -> None:
    here = daemon("--fake", "1x1", "--statedir", "state")
    here.submit("sh", "-c", f"{SAY}; exec sleep 403", "task")
    task, instance = pid_in(user.directory / "task", until), here.pid()
    assert keeper_of(instance) == []
    kill_hard(instance)
    assert alive(task)
    daemon("--fake", "1x1", "--statedir", "state")
    assert not alive(task)


@pytest.mark.parametrize("how", ["stop", "term"])
def test_an_instance_that_ends_takes_its_keeper_along(user: Any, daemon: Any, alive: Any, until: Any, how: str) -> None:
    here = daemon("--fake", "1x1")
    here("run", "true")
    instance = here.pid()
    [keeper] = keeper_of(instance)
    if how == "stop":
        here("stop")
    else:
        os.kill(instance, signal.SIGTERM)
        until(lambda: not alive(instance))
    assert not alive(keeper)
    assert left_behind(user) == []
