"""Commands that follow jobs go on across a restart and a crash of the instance: nothing is printed twice or lost."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from fluxsched.runtime.client.coming_back import places

STATE = ("--fake", "1x8", "--statedir", "state")
SCRIPT = "echo one; while [ ! -e a ]; do sleep .02; done; echo two; while [ ! -e b ]; do sleep .02; done; " \
         "echo three; echo end >&2; exit 3"  # fmt: skip


def open_requests(handle: Any) -> int:
    """What all peers wait for."""
    return handle.rpc("instance.metrics")["peers"]["open_requests"]


def test_commands_that_follow_jobs_go_on_across_a_restart_and_a_crash(daemon: Any, kill_hard: Any, until: Any) -> None:
    site = daemon(*STATE)
    job = site.running("sh", "-c", SCRIPT)
    with ExitStack() as ends:
        run = ends.enter_context(site.popen("run", "--label-io", "sh", "-c", SCRIPT))
        attach = ends.enter_context(site.popen("job", "attach", job))
        watch = ends.enter_context(site.popen("jobs", "--watch", "--no-header", "-o", "{id.f58} {status}", job))
        assert (attach.stdout.readline(), run.stdout.readline()) == ("one\n", "0: one\n")
        assert watch.stdout.readline().split() == [job, "RUN"]
        with site.connect() as handle:
            before = open_requests(handle)
            wait = ends.enter_context(site.popen("wait", job))
            until(lambda: open_requests(handle) > before)
        site("restart")
        (site.directory / "a").touch()
        assert (attach.stdout.readline(), run.stdout.readline()) == ("two\n", "0: two\n")
        kill_hard(site.pid())
        daemon(*STATE)
        (site.directory / "b").touch()
        done = {process: process.communicate(timeout=60) for process in (run, attach, wait, watch)}
    assert [process.returncode for process in done] == [3, 3, 3, 0]
    assert (done[run][0], done[attach][0], done[wait][0]) == ("0: three\n", "three\n", "")
    assert done[watch][0].split() == [job, "FAILED"]
    assert next(line for line in done[attach][1].splitlines() if "connecting" not in line) == "end"
    for _, err in done.values():
        assert err.count("closed the connection: connecting again when it is back\n") == 2, err


def test_a_local_instance_that_left_nothing_is_not_looked_for(tmp_path: Any) -> None:
    assert list(places(f"ipc://{tmp_path}/nowhere/instance.sock", 60.0)) == []
    assert list(places("tcp://192.0.2.1:4000", 0.0)) == ["tcp://192.0.2.1:4000"]


def test_one_that_was_followed_by_another_before_its_loss_was_noticed_is_found(
    daemon: Any, kill_hard: Any, monkeypatch: Any
) -> None:
    first = daemon(*STATE)
    for name, value in first.environment.items():
        monkeypatch.setenv(name, value)
    kill_hard(first.pid())
    second = daemon(*STATE)
    assert next(places(first.uri, 0.0)) == second.uri


def test_followers_of_an_instance_that_is_stopped_end_with_it(daemon: Any) -> None:
    site = daemon(*STATE)
    with site.popen("jobs", "--watch", "--no-header") as watch:
        job = site.submit("--urgency=hold", "true")
        assert watch.stdout.readline().split()[0] == job
        site("stop")
        out, err = watch.communicate(timeout=20)
    assert watch.returncode == 1, out
    assert err.endswith("closed the connection; watch them again\n")
