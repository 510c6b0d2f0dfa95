"""The log of an instance outlives it, however it ends, and the next command says where it is."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fluxsched.errors import FluxschedError
from fluxsched.system import files as kept_logs

WHEN = r"[A-Z][a-z]{2}\d\d \d\d:\d\d"


def logs(user: Any, place: str = ".state/fluxsched/logs") -> list[Path]:
    return sorted((user.directory / place).glob("*.log"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("FLUXSCHED_LEVEL", raising=False)
    return tmp_path / "fluxsched" / "logs"


def test_the_log_of_a_killed_instance_is_kept_and_named(user: Any, daemon: Any, until: Any, kill_hard: Any) -> None:
    here = daemon("--fake", "1x1")
    here("run", "true")
    kill_hard(here.pid())
    until(lambda: not [path for path in user.directory.iterdir() if path.name.startswith("fluxsched-")])
    [log] = logs(user)
    said = rf"ended unexpectedly at {WHEN}: its log is {log}"
    assert re.search(rf"no fluxsched instance found: .* \(the last instance {said}\)\n$", user("jobs", status=1).err)
    assert re.search(rf"nothing listens at {here.uri}; its instance {said}\n$", here("jobs", status=1).err)
    kept = log.read_text()  # its first line may tell of what others have left on this machine
    assert f" at {here.uri}, state directory none" in kept
    assert "fluxsched.keeper: the instance was killed" in kept
    assert log.stat().st_mode & 0o777 == 0o600
    found = user.shell("true", "--fake", "1x1")
    assert re.fullmatch(rf"fluxsched: start: the last instance {said}\n", found.err)
    assert user.shell("true", "--fake", "1x1").err == "", "it is said once"


def test_without_a_keeper_the_end_came_after_the_last_line(user: Any, daemon: Any, kill_hard: Any, until: Any) -> None:
    here = daemon("--fake", "1x1", "--statedir", "state")
    kill_hard(here.pid())
    [log] = logs(user, "state/logs")
    assert [path.resolve() for path in logs(user)] == [log], "who does not know the state directory finds it, too"
    said = rf"the last instance ended unexpectedly after {WHEN}: its log is {log}"
    remedy = f"; `fluxsched start --statedir {log.parents[1]}`, with its other options, takes its jobs over"
    # its last thread may hold the lock a moment longer
    until(lambda: re.search(said + re.escape(remedy), user("jobs", status=1).err))
    assert re.search(said, user.shell("true", "--fake", "1x1", "--statedir", "state").err)


def test_a_start_that_failed_takes_no_jobs_over(user: Any, daemon: Any, kill_hard: Any, until: Any) -> None:
    options = ("--fake", "1x1", "--statedir", "state")
    here = daemon(*options)
    kill_hard(here.pid())
    until(lambda: here("jobs", status=1).err.endswith("takes its jobs over\n"))
    user.process("start", *options, "--bind", "tcp://192.0.2.1:1", "--", "true", status=1)
    assert len(logs(user, "state/logs")) == 2
    assert here("jobs", status=1).err.endswith("takes its jobs over\n")


async def test_an_instance_that_fails_leaves_its_log(world: Any, place: Path) -> None:
    instance = await world.instance(fake="1x1")
    world.instances.clear()
    instance.store._failed(FluxschedError("the sky is falling"))
    await instance.close()
    [log] = place.iterdir()
    assert "the instance ends: the sky is falling" in log.read_text()
    assert re.fullmatch(rf"ended unexpectedly at {WHEN}: its log is {log}", str(kept_logs.end_of(instance.uri)))


def test_an_instance_that_ended_in_good_order_is_not_mourned(user: Any, daemon: Any) -> None:
    here = daemon("--fake", "1x1")
    here("stop")
    [log] = logs(user)
    assert log.read_text().endswith("the instance has ended\n")
    assert "last instance" not in user("jobs", status=1).err
    assert f"; its instance has ended: its log is {log}\n" in here("jobs", status=1).err
    assert user.shell("true", "--fake", "1x1").err == ""


def test_the_last_end_is_told_also_of_an_instance_that_began_before_others(place: Path) -> None:
    place.mkdir(parents=True)
    (place / "gone.log").symlink_to(place / "nowhere")  # its state directory was removed
    for name, last, ended_s in (
        ("20260102-080000-1.log", "the instance was killed", 30_000.0),
        ("20260102-090000-2.log", kept_logs.ENDED, 20_000.0),
    ):
        (place / name).write_text(f"begun\n{last}\n")
        os.utime(place / name, (ended_s, ended_s))
    assert str(kept_logs.last_end()).endswith("its log is " + str(place / "20260102-080000-1.log"))


def test_no_start_is_advised_where_a_later_one_has_the_jobs(place: Path, tmp_path: Path) -> None:
    kept = tmp_path / "state" / "logs"
    kept.mkdir(parents=True)
    place.mkdir(parents=True)
    first = kept / "20260102-080000-1.log"
    first.write_text("begun\n")
    (place / first.name).symlink_to(first)
    assert str(kept_logs.last_end()).endswith("takes its jobs over")
    (kept / "20260102-090000-2.log").write_text(f"{kept_logs.ENDED}\n")  # a start that failed
    assert str(kept_logs.last_end()).endswith("takes its jobs over")
    (kept / "20260102-100000-3.log").write_text(kept_logs.begin_line("ipc:///other", kept.parent))
    assert str(kept_logs.last_end()).endswith(f"its log is {first}")


def test_a_start_says_once_what_became_of_the_last_instance(place: Path) -> None:
    """It was said at each start as long as no other instance had ended."""
    place.mkdir(parents=True)
    for name, ended_s in (("20260102-080000-1.log", 10_000.0), ("20260102-090000-2.log", 20_000.0)):
        (place / name).write_text("begun\nthe instance was killed\n")
        os.utime(place / name, (ended_s, ended_s))
        before = os.umask(0)
        try:
            assert str(kept_logs.untold_end()).endswith(f"its log is {place / name}")
        finally:
            os.umask(before)
        assert (place / kept_logs.TOLD_NAME).stat().st_mode & 0o777 == 0o600
        assert kept_logs.untold_end() is None
        assert kept_logs.last_end() is not None
    (place / kept_logs.TOLD_NAME).unlink()
    (place / kept_logs.TOLD_NAME).mkdir()
    assert kept_logs.untold_end() == kept_logs.untold_end() == kept_logs.last_end()


def test_a_start_that_is_refused_is_no_unexpected_end(user: Any) -> None:
    user.process("start", "--fake", "1x1", "--bind", "tcp://192.0.2.1:1", "--", "true", status=1)
    assert user.shell("true", "--fake", "1x1").err == ""


def test_instances_inside_jobs_have_a_place_of_their_own(user: Any) -> None:
    user.shell("fluxsched run fluxsched start -- true", "--fake", "1x1")
    assert len(logs(user)) == 1
    assert len(logs(user, ".state/fluxsched/logs/nested")) == 1


def test_without_a_place_for_logs_an_instance_starts_all_the_same(user: Any) -> None:
    user.environ["XDG_STATE_HOME"] = "/dev/null/nowhere"
    assert user.shell("fluxsched run echo ran", "--fake", "1x1").out == "ran\n"
    [place] = user.directory.glob("fluxsched-*-state")
    assert len(list(place.glob("logs/*.log"))) == 1


def test_instances_of_one_process_that_begin_together_have_a_log_each(place: Path, tmp_path: Path) -> None:
    with ExitStack() as alive:
        for number in range(2):
            run = tmp_path / f"run{number}"
            run.mkdir()
            kept_logs.keep_log(alive, run, None, 1000.0)
        assert len(list(place.iterdir())) == 2


def test_of_logs_the_latest_are_kept_and_those_of_living_instances(place: Path, tmp_path: Path) -> None:
    place.mkdir(parents=True)
    for number in range(kept_logs.LOGS_KEPT + 5):
        (place / f"2026010{number:03}-1.log").touch()
    with ExitStack() as alive:
        for number in range(2):
            run = tmp_path / f"run{number}"
            run.mkdir()
            kept_logs.keep_log(alive, run, None, number * 86400.0)
        names = sorted(path.name for path in place.iterdir())
        assert len(names) == kept_logs.LOGS_KEPT + 2
        assert names[0].startswith("19700101-")
        assert names[2] == "2026010005-1.log"
    assert kept_logs.last_end() is None, "nobody knows of an empty log"
