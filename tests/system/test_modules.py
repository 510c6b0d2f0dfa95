"""Scheduler modules by commands: loaded by name and by file, reloaded, broken, killed; jobs and instance live on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

MINE = '''
"""Smallest first."""
from fluxsched.sched.policy import Fits, Infeasible, Option, Start, Deny, Pending

class Mine:
    name = "mine"
    OPTIONS = {"order": Option("up", choices=("up", "down"), help="smallest or largest first")}

    def __init__(self, order="up"):
        self.order = order

    def schedule(self, view, now_s):
        for job in view.queue:
            outcome = view.place(job)
            match outcome:
                case Fits():
                    yield Start(job.jobid, outcome)
                case Infeasible(why):
                    yield Deny(job.jobid, why)
                case other:
                    yield Pending(job.jobid, other.why)
'''


def modules(here: Any) -> dict[str, Any]:
    return {mod["name"]: mod for mod in here("module", "list", "--json").json["mods"]}


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def test_a_policy_by_file_name_with_options(daemon: Any, policy_file: Path, expected_build: str) -> None:
    here = daemon("--fake", "2x2", "--scheduler", "none")
    jobid = here.submit("true")
    assert here("job", "why", jobid).line == "SCHED: no scheduler serves group default"
    here("module", "load", "mine.py", "order=down")
    here("wait", jobid)
    assert here("module", "list", "-n", "-o", "{name} {state} {services}").out.splitlines()[-1].split() == [
        "sched-mine", "R", "sched,sched-mine"
    ]  # fmt: skip
    assert here("module", "stats", "sched-mine").json["policy"] == "mine"
    for module in ("sched-mine", "instance"):
        assert here("module", "stats", module).json["build"] == expected_build, module
    found = here("module", "load", "fifo", status=1)
    assert found.err == "fluxsched: module load: group 'default' is served by module 'sched-mine'; remove it first\n"
    found = here("module", "load", "nope", status=1)
    assert found.err.startswith("fluxsched: module load: no policy 'nope': there are ")
    here("module", "remove", "sched-mine")
    assert "sched-mine" not in modules(here)
    waiting = here.submit("true")
    here("module", "load", "firstfit:placement=best-fit", "--name", "quick")
    here("wait", waiting)
    here("module", "reload", "quick")
    here("run", "true")


@pytest.mark.parametrize(
    ("words", "want"),
    [
        (["nosuch"], "no policy 'nosuch': there are "),
        (["fifo", "placement=nowhere"], "policy 'fifo': placement='nowhere' should be one of worst-fit, best-fit"),
        (["fifo", "speed=9"], "policy 'fifo': no option 'speed'; it has placement"),
        (["./absent.py"], "absent.py"),
        (["./broken.py"], "broken.py"),
        (["./empty.py"], "empty.py"),
        (["./half.py"], "half.py should hold one policy, a class with `name` and `schedule`; it has none"),
        (["./exits.py"], "exits.py ended the process while it was loaded: exit status 3 (exits.py:2)"),
        (["./hard.py"], "module sched-hard: exit status 4 while it was importing"),
        (["./crash.py"], "module sched-crash: ended by signal 11 (Segmentation fault) while it was importing"),
        (["--hung-after", "300ms", "./loops.py"], "module sched-loops: was still importing after 0.3 s"),
        (["./raises.py"], "raises.py raised ZeroDivisionError: division by zero (raises.py:3)"),
    ],
)
def test_a_bad_policy_is_explained(site: Any, words: list[str], want: str) -> None:
    """What it is called, what it has, what it should have; and the module is not kept."""
    (site.directory / "broken.py").write_text("def (:\n")
    (site.directory / "empty.py").write_text("x = 1\n")
    (site.directory / "half.py").write_text("class Half:\n    name = 'half'\n    OPTIONS = {}\n")
    (site.directory / "raises.py").write_text("\n\n1 / 0\n")
    (site.directory / "exits.py").write_text("import sys\nsys.exit(3)\n")
    (site.directory / "hard.py").write_text("import os\nos._exit(4)\n")
    (site.directory / "crash.py").write_text("import os\nos.kill(os.getpid(), 11)\n")
    (site.directory / "loops.py").write_text("import time\nwhile True: time.sleep(1)\n")
    site("module", "remove", "sched-fifo", status=None)
    found = site("module", "load", *words, status=1)
    assert found.err.startswith("fluxsched: module load: ")
    assert want in found.err
    assert found.err.count("\n") == 1
    assert "Traceback" not in found.err
    assert not [name for name in modules(site) if name.startswith("sched-")]


def test_a_policy_that_raises_takes_nothing_with_it(daemon: Any, policy_file: Path, until: Any) -> None:
    here = daemon("--fake", "2x2")
    running = here.running("sleep", "100")
    here("module", "remove", "sched-fifo")
    good = policy_file.read_text()
    policy_file.write_text(good.replace("for job in view.queue:", "for job in view.queue:\n            1 / 0"))
    here("module", "load", "mine.py")
    waiting = here.submit("true")
    until(lambda: modules(here)["sched-mine"]["status"] == 3)
    error = modules(here)["sched-mine"]["error"]
    assert error == "policy 'mine' raised ZeroDivisionError: division by zero (mine.py:14)"
    assert error in here("module", "list").out
    assert here.info(running)["state"] == "RUN"
    assert here("job", "why", waiting).line == "SCHED: no scheduler serves group default"
    assert here("resource", "list", "-n", "-s", "allocated", "-o", "{ncores}").word == "1"
    policy_file.write_text(good)
    here("module", "reload", "sched-mine")
    here("wait", waiting)
    assert here.info(running)["state"] == "RUN"
    until(lambda: here("module", "stats", "sched-mine").json["running"] == 1)  # its free may be on the way


BROKEN = {
    "def x(:\n": "policy file {file} cannot be loaded: invalid syntax (mine.py, line 1)",
    "1 / 0\n": "ZeroDivisionError: division by zero (mine.py:1)",
    "import sys; sys.exit(3)\n": "it ended the process with status 3 while it was imported",
    "import time\nwhile True: time.sleep(1)\n": "it did not come back within 4 s while it was imported",
}


def test_a_reload_of_a_broken_policy_keeps_the_scheduler_that_works(daemon: Any, policy_file: Path) -> None:
    here = daemon("--fake", "2x2", "--scheduler", "none")
    here("module", "load", "--hung-after", "4s", "mine.py")
    before, good = modules(here)["sched-mine"], policy_file.read_text()
    for text, fault in BROKEN.items():
        policy_file.write_text(text)
        refused = here("module", "reload", "sched-mine", status=1).err
        want = f"module sched-mine goes on with the policy that it has: {fault.format(file=policy_file)}"
        assert refused == f"fluxsched: module reload: {want}\n"
        assert modules(here)["sched-mine"] == before
        here("run", "true")
    os.kill(before["pid"], signal.SIGKILL)
    here("job", "wait-event", here.submit("true"), "depend")
    for _ in range(2):  # a module that has ended is not forgotten either
        refused = here("module", "reload", "sched-mine", status=1).err
        assert "it did not come back within 4 s" in refused
    assert modules(here)["sched-mine"]["error"] == "ended by signal 9 (Killed)"
    policy_file.write_text(good)
    here("module", "reload", "sched-mine")
    here("run", "true")


def test_a_reload_that_fails_after_the_check_is_followed_by_the_fallback(user: Any, daemon: Any) -> None:
    config = '[[scheduler]]\npolicy = "mine.py"\nrestart = 0\n'
    (user.directory / "site.toml").write_text(config)
    (user.directory / "mine.py").write_text(MINE)
    here = daemon("--fake", "2x2", "--config", "site.toml")
    once = "import os\nif os.path.exists('tried'): raise OSError('no GPU')\nopen('tried', 'w').close()\n"
    (user.directory / "mine.py").write_text(once + MINE)
    refused = here("module", "reload", "sched-mine", status=1).err
    assert "fifo in place of " in refused
    assert "which failed: policy file" in refused
    here("run", "true")
    assert modules(here)["sched-mine"]["path"] == "fifo"


def test_kill_9_of_the_scheduler_with_jobs_running(user: Any, daemon: Any, kill_hard: Any, until: Any) -> None:
    (user.directory / "site.toml").write_text('[[scheduler]]\npolicy = "fifo"\nrestart = 0\nfallback = "none"\n')
    here = daemon("--fake", "2x2", "--config", "site.toml")
    running = [here.running("sleep", "100") for _ in range(3)]
    kill_hard(modules(here)["sched-fifo"]["pid"])
    until(lambda: modules(here)["sched-fifo"]["status"] == 3)
    assert modules(here)["sched-fifo"]["error"] == "ended by signal 9 (Killed)"
    ended = here.submit("--urgency", "31", "-n1", "true")
    here("cancel", running[0])
    here("wait", running[0], status=128 + signal.SIGTERM)
    assert [here.info(jobid)["state"] for jobid in running[1:]] == ["RUN", "RUN"]
    here("module", "reload", "sched-fifo")
    here("wait", ended)
    last = [here.submit("sleep", "100") for _ in range(3)]
    until(lambda: here.info(last[1])["state"] == "RUN")
    until(lambda: here("job", "why", last[2]).line == "SCHED: needs 1 slot of 1 core; none is free")
    places = [here.info(jobid)["annotations"]["sched"]["resource_summary"] for jobid in (*running[1:], *last[:2])]
    assert sorted(places) == ["rank0/core0", "rank0/core1", "rank1/core0", "rank1/core1"]


ODD = """
from fluxsched.sched.policy import Deny, Start

class Odd:
    name = "odd"

    def schedule(self, view, now_s):
        for job in view.queue:
            yield from DECISIONS
"""


@pytest.mark.parametrize(
    ("decisions", "error"),
    [
        ("[Start(job.jobid, None)]", "only a Fits can start (odd.py:9)"),
        ("[7]", "Start, Pending, Deny, Reserve, Preempt, Shrink, Grow, Withhold, Wake or Pause (odd.py:9)"),
        ("[view.place(job.jobid)]", " (odd.py:9)"),
        ("[Start(job.jobid, view.place(job))] * 2", None),
        ("[Deny(1234, 'who?'), Start(job.jobid, view.place(job))]", None),
    ],
)
def test_odd_decisions(site: Any, until: Any, tmp_path: Path, decisions: str, error: str | None) -> None:
    """A decision that cannot be is refused; one that is none ends the module. Nothing is granted twice."""
    here = site
    (tmp_path / "odd.py").write_text(ODD.replace("DECISIONS", decisions))
    here("module", "remove", "sched-fifo", status=None)
    here("module", "load", tmp_path / "odd.py")
    jobs = [here.submit("true") for _ in range(3)]
    if error is None:
        here("wait", *jobs)
        assert here("module", "stats", "sched-odd").json["refused"] >= 1
    else:
        until(lambda: modules(here)["sched-odd"]["status"] == 3)
        found = modules(here)["sched-odd"]["error"]
        assert found.startswith("policy 'odd' raised ")
        assert found.endswith(error)
        assert here("job", "why", jobs[0]).line == "SCHED: no scheduler serves group default"
        here("cancel", *jobs)
    here("module", "remove", "sched-odd")


def test_a_policy_that_never_ends_its_pass(daemon: Any) -> None:
    """The instance answers for it, and a reload gets rid of it."""
    here = daemon("--fake", "1x1", "--scheduler", "none")
    loop = ODD.replace("yield from DECISIONS", "yield Deny(0, '')\n            while True: __import__('time').sleep(1)")
    (here.directory / "odd.py").write_text(loop)
    here("module", "load", "odd.py")
    jobid = here.submit("true")
    found = here("job", "why", jobid).line
    silent = "(its scheduler did not answer within 2 s: see fluxsched module list)"
    assert found == f"SCHED: the scheduler has not decided yet {silent}"
    here("cancel", jobid)
    with here.connect() as handle:
        os.kill(modules(here)["sched-odd"]["pid"], signal.SIGKILL)
        assert handle.rpc("instance.info")["ready"]


CONFIG = """
[resource.groups]
dbg = "2-3"

[queues.batch]
[queues.debug]
group = "dbg"

[policy.jobspec.defaults.system]
queue = "batch"

[[scheduler]]
policy = "fifo"
name = "one"

[[scheduler]]
policy = "firstfit:placement=best-fit"
name = "two"
groups = ["dbg"]
restart = 0
fallback = "none"
"""


def test_several_schedulers_each_serve_their_groups_queues(user: Any, daemon: Any, kill_hard: Any, until: Any) -> None:
    (user.directory / "site.toml").write_text(CONFIG)
    here = daemon("--config", "site.toml", "--fake", "4x2")
    found = modules(here)
    assert (found["one"]["groups"], found["two"]["groups"]) == (["default"], ["dbg"])
    batch, debug = here.submit("-N2", "-x", "sleep", "100"), here.submit("-q", "debug", "-N2", "-x", "sleep", "100")
    until(lambda: here.info(debug)["state"] == here.info(batch)["state"] == "RUN")
    assert (here.info(batch)["ranks"], here.info(debug)["ranks"]) == ("0-1", "2-3")
    kill_hard(found["two"]["pid"])
    until(lambda: modules(here)["two"]["status"] == 3)
    waiting = here.submit("-q", "debug", "true")
    assert here("job", "why", waiting).line == "SCHED: no scheduler serves group dbg"
    assert here("queue", "status", "-q", "debug").out.splitlines()[1] == (
        "debug: Scheduling is stopped: no scheduler serves group dbg"
    )
    here("cancel", batch)
    here("wait", batch, status=None)
    here("run", "true")
    here("module", "reload", "two")
    here("cancel", debug)
    here("wait", waiting)


def test_removing_what_cannot_be_removed(site: Any) -> None:
    found = site("module", "remove", "resource", status=1)
    assert "module 'resource' is part of the instance" in found.err
    assert "module 'nosuch' is not loaded" in site("module", "reload", "nosuch", status=1).err
    assert "module 'nosuch' is not loaded" in site("module", "stats", "nosuch", status=1).err
