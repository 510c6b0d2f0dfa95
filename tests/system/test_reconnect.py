"""Commands that follow jobs go on across a restart and a crash of the instance: nothing is printed twice or lost."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import ExitStack, suppress
from queue import Queue
from threading import Thread
from typing import Any

import pytest

import fluxsched
from fluxsched.client.find import attempts, may_come_back
from fluxsched.instance.launch import HOSTS_MAX

STATE = ("--fake", "1x8", "--statedir", "state")
SCRIPT = "echo one; while [ ! -e a ]; do sleep .02; done; echo two; while [ ! -e b ]; do sleep .02; done; " \
         "echo three; echo end >&2; exit 3"  # fmt: skip


def open_requests(handle: Any) -> int:
    """What all peers wait for, as the least of some looks: who watches jobs asks now and then besides."""
    return min(handle.rpc("instance.metrics")["peers"]["open_requests"] for _ in range(20))


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
    for process, (_, err) in done.items():
        cuts = err.count("closed the connection: connecting again when it is back\n")
        # the others may have looked for it in vain from the restart to the crash
        assert cuts == 2 if process in (run, attach) else 1 <= cuts <= 2, err


def test_only_what_may_come_back_is_looked_for(daemon: Any, kill_hard: Any, monkeypatch: Any, tmp_path: Any) -> None:
    assert list(attempts(f"ipc://{tmp_path}/nowhere/instance.sock", 60.0)) == []
    assert len(list(attempts("tcp://192.0.2.1:4000", 0.0))) == 1
    site = daemon(*STATE)
    for name, value in site.environment.items():
        monkeypatch.setenv(name, value)
    assert may_come_back(site.uri)
    kill_hard(site.pid())
    assert may_come_back(site.uri)
    daemon(*STATE)
    site("stop")
    assert not may_come_back(site.uri)
    assert may_come_back(site.uri, also_stopped=True)


def test_clients_at_a_path_that_was_bound_find_the_instance_again(daemon: Any, kill_hard: Any, tmp_path: Any) -> None:
    """Nothing is written beside it: it was given up at once."""
    start = (*STATE, "--bind", f"ipc://{tmp_path}/site")
    site = daemon(*start)
    job = site.running("sh", "-c", SCRIPT)
    with site.at(f"ipc://{tmp_path}/site").popen("job", "attach", job) as attach:
        assert attach.stdout.readline() == "one\n"
        site("restart")
        (site.directory / "a").touch()
        assert attach.stdout.readline() == "two\n"
        kill_hard(site.pid())
        daemon(*start)
        (site.directory / "b").touch()
        assert (attach.communicate(timeout=60)[0], attach.returncode) == ("three\n", 3)


def test_the_address_is_the_same_after_any_end_and_jobs_and_agents_find_it(
    user: Any, daemon: Any, kill_hard: Any, until: Any
) -> None:
    """They asked an address at which nothing would ever listen again."""
    (user.directory / "site.toml").write_text('[[resource.config]]\nhosts = "n[0-2]"\ncores = "0-3"\n')
    hostname = os.uname().nodename
    with (user.directory / "site.toml").open("a") as file:
        file.write(f'[[resource.config]]\nhosts = "{hostname}"\ncores = "0"\n')
    start = ("--config", "site.toml", "--statedir", "state")
    site = daemon(*start)

    def online() -> str:
        return str(site("resource", "list", "-n", "-s", "free,allocated", "-o", "{nnodes}").word)

    assert online() == "1"
    asking = f"while [ ! -e again ]; do sleep .02; done; fluxsched submit --requires=host:{hostname} true > jobid"
    asking_job = site.running(f"--requires=host:{hostname}", "sh", "-c", asking)
    with site.popen("agent", "--host", "n[0-2]") as agent:
        until(lambda: "4" in online())
        site("restart")
        until(lambda: "4" in online())
        kill_hard(site.pid())
        assert daemon(*start).uri == site.uri
        until(lambda: "4" in online())
        (site.directory / "again").touch()
        site("wait", asking_job)
        site("wait", (site.directory / "jobid").read_text().strip())
        site("stop")
        assert daemon(*start).uri == site.uri
        until(lambda: "4" in online())
        for hosts in (f"n[0-{HOSTS_MAX}]", "n0,n0"):
            refused = site.process("agent", "--host", hosts, status=1).err
            assert f"limit of {HOSTS_MAX}" in refused or "each once" in refused
        agent.terminate()
        assert "connecting again" in agent.communicate()[1]


def test_both_clients_open_their_streams_again(daemon: Any, kill_hard: Any, monkeypatch: Any) -> None:
    site = daemon(*STATE)
    for name, value in site.environment.items():
        monkeypatch.setenv(name, value)
    seen = Queue[str]()

    async def follow() -> None:
        with suppress(fluxsched.Disconnected):  # when it is stopped
            async with fluxsched.connect(site.uri) as h:
                async for change in await h.watch_resources():
                    if "R" in change:  # the first answer to a request
                        seen.put(f"async {h.reconnects}")

    def read() -> None:
        with suppress(fluxsched.Disconnected), fluxsched.connect_sync(site.uri) as h:
            for change in h.watch_resources():
                if "R" in change:
                    seen.put(f"sync {h.reconnects}")

    threads = [Thread(target=body, daemon=True) for body in (lambda: asyncio.run(follow()), read)]
    for thread in threads:
        thread.start()
    with fluxsched.connect_sync(site.uri) as h:
        for times in range(3):
            found = {seen.get(timeout=60) for _ in range(2)}
            assert found == {f"{which} {times}" for which in ("async", "sync")}
            assert h.rpc("instance.info")["uri"] == site.uri  # an idle handle notices nothing
            assert h.reconnects == times
            if times == 0:
                site("restart")
            elif times == 1:
                kill_hard(site.pid())
                daemon(*STATE)
    site("stop")
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_a_call_under_way_fails_and_the_next_one_waits(daemon: Any, kill_hard: Any, monkeypatch: Any) -> None:
    """Whether what was asked for was done is not known, so it is not asked for again."""
    site = daemon(*STATE)
    for name, value in site.environment.items():
        monkeypatch.setenv(name, value)
    job = fluxsched.parse_jobid(site.submit("--urgency=hold", "true"))
    pid = site.pid()

    def crash(before: int) -> None:
        with site.connect() as other:
            while open_requests(other) <= before:
                time.sleep(0.01)
        kill_hard(pid)
        daemon(*STATE)

    with fluxsched.connect_sync(site.uri) as h:
        Thread(target=crash, args=(open_requests(h),), daemon=True).start()
        with pytest.raises(fluxsched.Disconnected):
            h.wait(job)
        h.cancel(job)
        assert h.wait(job)["exception_type"] == "cancel"


def test_followers_of_an_instance_that_is_stopped_end_with_it(daemon: Any) -> None:
    site = daemon(*STATE)
    with site.popen("jobs", "--watch", "--no-header") as watch:
        job = site.submit("--urgency=hold", "true")
        assert watch.stdout.readline().split()[0] == job
        site("stop")
        out, err = watch.communicate(timeout=60)
    assert watch.returncode == 1, out
    assert err.endswith("closed the connection; watch them again\n")
