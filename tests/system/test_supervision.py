"""A policy that hangs or exits while jobs run: it is ended, started again, replaced; no job is touched."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

MINE = """
import os, sys, time
from fluxsched.sched.policy import Fits, Pending, Start

class Mine:
    name = "mine"

    def schedule(self, view, now_s):
        for job in view.queue:
            if job.priority == 17:
                WHAT
            outcome = view.place(job)
            yield Start(job.jobid, outcome) if isinstance(outcome, Fits) else Pending(job.jobid, outcome.why)
"""


def module(here: Any) -> dict[str, Any]:
    (found,) = [mod for mod in here("module", "list", "--json").json["mods"] if mod["name"].startswith("sched-")]
    return found


def configured(directory: Path, what: str, keys: str) -> str:
    (directory / "mine.py").write_text(MINE.replace("WHAT", what))
    (directory / "site.toml").write_text(f'[[scheduler]]\npolicy = "mine.py"\n{keys}\n')
    return "site.toml"


def test_a_policy_that_hangs_is_listed_ended_and_replaced(user: Any, daemon: Any, until: Any, tmp_path: Path) -> None:
    """Nobody waits for it meanwhile; who runs runs on, who waited is taken over. It is not tried again: it would hang
    again, each time for as long.
    """
    config = configured(user.directory, "time.sleep(1000)", 'hung-after = "4s"')
    here = daemon("--fake", "1x2", "--config", config)
    running = here.running("sleep", "100")
    hung = module(here)["pid"]
    waiting = here.submit("--urgency", "17", "true")
    until(lambda: (module(here).get("error") or "").startswith("hung "))
    assert module(here)["status"] == 1
    assert "hung " in here("module", "list").out
    for words in (["module", "stats", "sched-mine"], ["ping", "-c1", "sched-mine"]):
        refused = here(*words, status=1).err
        assert any(word in refused for word in ("has not answered for", "did not answer", "went away", "not running"))
        assert module(here)["pid"] == hung or words[0] == "ping"
    here("wait", waiting)
    until(lambda: not module(here)["error"].startswith("hung"))  # the fallback may be slow on a busy machine
    found = module(here)
    assert found["status"] == 1
    assert found["path"] == "fifo"
    assert found["error"] == f"fifo in place of {user.directory}/mine.py, which failed: hung for 4 s"
    assert here.info(running)["state"] == "RUN"
    assert here("module", "stats", "sched-mine").json["running"] == 1


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("sys.exit(3)", "exit status 3 (mine.py:11): policy 'mine' ended the process"),
        ("os._exit(3)", "exit status 3"),
        ("os._exit(0)", "exit status 0"),
        ("os.kill(os.getpid(), 11)", "ended by signal 11 (Segmentation fault)"),
    ],
)
def test_a_policy_that_exits_is_started_again_and_then_replaced(
    site: Any, until: Any, tmp_path: Path, what: str, why: str
) -> None:
    here, policy = site, tmp_path / "mine.py"
    configured(tmp_path, what, "")
    here("module", "remove", "sched-fifo", status=None)
    here("module", "load", "--restart", "1", "--fallback", "fifo", policy)
    running = here.running("sleep", "100")
    here("queue", "stop")
    waiting = here.submit("--urgency", "17", "true")
    here("queue", "start")
    until(lambda: module(here).get("error") == f"{why}; started again (1 of 1)")
    here("wait", waiting)
    assert module(here)["error"] == f"fifo in place of {policy}, which failed 2 times: {why}"
    assert here.info(running)["state"] == "RUN"
    here("module", "reload", "sched-mine")  # once that is mended
    assert (module(here)["path"], module(here).get("error")) == (str(policy), None)
    here("module", "remove", "sched-mine")
    here("cancel", running)


def test_a_scheduler_killed_by_others_is_started_again_by_default(daemon: Any, until: Any) -> None:
    here = daemon("--fake", "1x2")
    running = here.running("sleep", "100")
    killed = module(here)["pid"]
    os.kill(killed, signal.SIGKILL)
    here.process("run", "true")
    assert module(here)["pid"] != killed
    assert module(here)["error"] == "ended by signal 9 (Killed); started again (1 of 3)"
    assert here.info(running)["state"] == "RUN"


def test_one_that_is_to_be_started_again_can_be_removed(daemon: Any, until: Any) -> None:
    here = daemon("--fake", "1x1")
    os.kill(module(here)["pid"], signal.SIGKILL)
    until(lambda: module(here)["status"] == 3)
    refused = here("module", "load", "easy", status=None)
    assert refused.status == 0 or "is served by module 'sched-fifo'" in refused.err
    here("module", "remove", "sched-fifo")
    here("module", "load", "easy")
    here("run", "true")


def test_a_policy_that_loops_does_not_outlive_its_instance(
    user: Any, daemon: Any, until: Any, alive: Any, kill_hard: Any
) -> None:
    """It hears nothing of the end of its connection; until now it took a processor for ever."""
    looping = "open('looping', 'w').close()\n                while True: pass"
    here = daemon("--fake", "1x2", "--config", configured(user.directory, looping, ""))
    scheduler = module(here)["pid"]
    here.submit("--urgency", "17", "true")
    until((user.directory / "looping").exists)
    kill_hard(here.pid())
    until(lambda: not alive(scheduler))


def test_a_policy_without_options_is_no_fault_of_a_configuration(user: Any) -> None:
    """It had no attribute OPTIONS for `config check`, and ran all the same."""
    name = configured(user.directory, "pass", "")
    assert "1 scheduler" in user.process("config", "check", name).out
    listed = user.process("policy", "list", "mine.py", status=None)
    assert "AttributeError" not in listed.out + listed.err
