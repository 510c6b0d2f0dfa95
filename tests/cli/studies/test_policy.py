"""`fluxsched policy`: what people see of it; the suite itself is tested in tests/sim."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from fluxsched.cli import policy_check
from fluxsched.config.policies import policies

BROKEN = """\
class RuleBroken:
    name = "broken"
    def schedule(self, view, now_s):
        for job in view.queue:
            yield 7
"""
TYPE_ERROR = (
    "TypeError: it yielded 7: a policy yields Start, Pending, Deny, Reserve, Preempt, Shrink, Grow, Withhold, Wake or "
    "Pause"
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_list(cli) -> None:
    done = cli("policy", "list")
    heading, *lines = done.out.splitlines()
    assert heading.split() == ["POLICY", "OPTIONS", "WHAT", "IT", "DOES"]
    assert [line.split()[0] for line in lines] == ["conservative", "easy", "fair", "fifo", "firstfit", "hybrid", "tree"]
    assert lines[3].split(None, 2) == [
        "fifo", "placement=worst-fit", "Strict order: the first job that cannot start holds back all others.",
    ]  # fmt: skip
    assert lines[2].split()[1:4] == ["backfill=easy", "signal", "half-life"], "of the latter the configuration decides"
    answer = json.loads(cli("policy", "list", "--json").out)["policies"]
    assert answer[1]["options"] == "order=fifo placement=worst-fit"
    assert "instance" not in cli("policy", "list", "--help").out  # none is asked


def test_the_list_is_made_without_simulator_and_instance() -> None:
    """Both take longer to import than the rest of the command."""
    program = (
        "import sys, contextlib\nfrom fluxsched.cli.main import main\n"
        "with contextlib.suppress(SystemExit): main(['policy', 'list'])\n"
        "heavy = {'fluxsched.sim', 'fluxsched.instance', 'fluxsched.config.reader', 'asyncio', 'zmq'}\n"
        "sys.exit(', '.join(sorted(heavy & sys.modules.keys())) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "conservative" in done.stdout


def test_new(cli, here: Path) -> None:
    done = cli("policy", "new", "night-shift")
    assert done.out == (
        "night-shift/pyproject.toml\nnight-shift/README.md\nnight-shift/fluxsched_night_shift.py\n"
        "night-shift/test_fluxsched_night_shift.py\n\n"
        "Try it:  fluxsched policy check night-shift/fluxsched_night_shift.py\n"
    )
    again = cli("policy", "new", "night-shift")
    assert (again.code, again.out) == (1, "")
    assert again.err == ("fluxsched: policy new: night-shift already exists: give another --directory, or remove it\n")
    done = cli("policy", "new", "../x")
    assert (done.code, "is not a valid policy name" in done.err) == (1, True)
    assert cli("policy", "new", "day", "--directory", str(here / "elsewhere")).code == 0
    assert [path.name for path in sorted(here.iterdir())] == ["elsewhere", "night-shift"]


def test_check_says_what_is_broken_where(cli, here: Path) -> None:
    (here / "broken.py").write_text(BROKEN)
    done = cli("policy", "check", "./broken.py", "--seed", "3")
    assert done.code == 1
    lines = done.out.splitlines()
    assert lines[0].split() == ["RULE", "VERDICT", "CASES", "WHAT"]
    (head,) = [line for line in lines if line.startswith("head ")]
    assert head.split(None, 3) == ["head", "broken", "10", f"seed 3, broken.py:5: {TYPE_ERROR}"]
    (found,) = [
        one for one in json.loads(cli("policy", "check", "./broken.py", "--json").out)["rules"] if one["rule"] == "head"
    ]
    assert found["finding"] == {"seed": 0, "what": TYPE_ERROR, "line": "broken.py:5"}


def test_check_of_what_is_none(cli) -> None:
    done = cli("policy", "check", "nosuch")
    assert (done.code, done.out) == (2, "")
    assert "there are conservative, easy, fair, fifo" in done.err
    assert cli("policy", "check", "easy:order=best").code == 2
    assert cli("policy", "check", "./no.py").code == 2


GOES = """\
import os, sys
class Goes:
    name = "goes"
    def schedule(self, view, now_s):
        for job in view.queue:
            WHAT
            yield
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import sys\nsys.exit(3)\n", "ended the process with status 3 while it was imported (goes.py:2)"),
        ("import sys\nsys.exit()\n", "ended the process with status 0 while it was imported (goes.py:2)"),
        ("import os\nos._exit(0)\n", "ended the process with status 0 while it was imported"),
        ("import os\nos.kill(os.getpid(), 11)\n", "died by SIGSEGV while it was imported"),
        ("import os\nos.kill(os.getpid(), 40)\n", "died by signal 40 while it was imported"),
        ("import time\nwhile True: time.sleep(1)\n", "was still importing after 1 s"),
    ],
)
def test_check_of_a_policy_that_exits_crashes_or_loops_at_import(
    cli, here: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    assert policy_check.IMPORT_S == 10.0
    apart = policy_check.check_apart
    if "while True" in text:
        monkeypatch.setattr(policy_check, "check_apart", partial(apart, import_s=1.0))
    (here / "goes.py").write_text(text)
    done = cli("policy", "check", "./goes.py")
    assert (done.code, done.out) == (1, "")
    assert done.err == f"fluxsched: policy check: policy ./goes.py {words}\n"


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ("sys.exit(3)", "seed 0, goes.py:6: ended the process with status 3"),
        ("os._exit(0)", "seed 0: the policy ended the process with status 0"),
        ("os.kill(os.getpid(), 11)", "seed 0: the policy died by SIGSEGV"),
    ],
)
def test_check_of_a_policy_that_ends_the_process_in_a_case(cli, here: Path, what: str, found: str) -> None:
    (here / "goes.py").write_text(GOES.replace("WHAT", what))
    done = cli("policy", "check", "./goes.py")
    assert done.code == 1
    (line,) = [line for line in done.out.splitlines() if line.startswith("ordinary ")]
    assert line.split(None, 3)[1::2] == ["broken", found]


def test_check_of_a_policy_that_deals_with_signals_itself(here: Path) -> None:
    """The child cannot end its case then; the parent does."""
    text = GOES.replace("WHAT", "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM]); time.sleep(100)")
    (here / "goes.py").write_text(text.replace("import os, sys", "import signal, time"))
    verdicts = {one.rule: one for one in policy_check.check_apart("./goes.py", 4, import_s=30.0, silent_s=0.3)}
    assert (verdicts["ordinary"].verdict, verdicts["head"].verdict) == ("broken", "unclear")
    assert str(verdicts["ordinary"].finding) == "seed 4: the policy did not come back within 0.3 s"


@pytest.mark.parametrize(
    ("text", "words", "import_s"),
    [
        ("import sys; sys.exit(3)", "cannot be loaded: it ended the process with status 3 while it was imported", 30.0),
        ("1 / 0", "cannot be loaded: ZeroDivisionError: division by zero (goes_policy.py:1)", 30.0),
        ("while True: pass", "cannot be loaded: it did not come back within 0.3 s while it was imported", 0.3),
    ],
)
def test_a_list_is_made_whatever_a_package_does(
    here: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str, import_s: float
) -> None:
    info = here / "goes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: goes\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fluxsched.policies]\ngoes = goes_policy:Goes\n")
    (here / "goes_policy.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(here))
    monkeypatch.syspath_prepend(str(here))
    found = {one.name: one.says for one in policies(import_s)}
    assert found["goes"] == words
    assert list(found) == ["conservative", "easy", "fair", "fifo", "firstfit", "goes", "hybrid", "tree"]
