"""`fluxsched policy`: what people see of it; the suite itself is tested in tests/sim."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BROKEN = """\
class Broken:
    name = "broken"
    def schedule(self, view, now_s):
        for job in view.queue:
            yield 7
"""
TYPE_ERROR = "TypeError: it yielded 7: a policy yields Start, Pending, Deny, Reserve or Pause"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_list(cli) -> None:
    done = cli("policy", "list")
    heading, *lines = done.out.splitlines()
    assert heading.split() == ["POLICY", "OPTIONS", "WHAT", "IT", "DOES"]
    assert [line.split()[0] for line in lines] == ["conservative", "easy", "fifo", "firstfit", "hybrid"]
    assert lines[2].split(None, 2) == [
        "fifo", "placement=worst-fit", "Strict order: the first that cannot start holds back everyone behind it.",
    ]  # fmt: skip
    answer = json.loads(cli("policy", "list", "--json").out)["policies"]
    assert answer[1]["options"] == "order=fifo placement=worst-fit"
    assert "instance" not in cli("policy", "list", "--help").out  # none is asked


def test_the_list_is_made_without_simulator_and_instance() -> None:
    """Both take longer to import than the rest of the command."""
    program = (
        "import sys, contextlib\nfrom fluxsched.cli.main import main\n"
        "with contextlib.suppress(SystemExit): main(['policy', 'list'])\n"
        "heavy = {'fluxsched.sim', 'fluxsched.runtime.instance', 'fluxsched.runtime.config', 'asyncio', 'zmq'}\n"
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
    assert again.err == (
        "fluxsched: policy new: night-shift is there already: give another --directory, or move it away\n"
    )
    done = cli("policy", "new", "../x")
    assert (done.code, "is no name for a policy" in done.err) == (1, True)
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
    assert "there are conservative, easy, fifo" in done.err
    assert cli("policy", "check", "easy:order=best").code == 2
    assert cli("policy", "check", "./no.py").code == 2
