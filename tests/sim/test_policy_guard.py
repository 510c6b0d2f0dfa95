"""Somebody else's policy in `fluxsched sim`: whatever it does is said in one line that names it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fluxsched.cli.main import main

TRACE = """\
; MaxProcs: 2
1 0 -1 10 2 -1 -1 2 20 -1 1 1 1 -1 1 -1 -1 -1
2 1 -1 10 1 -1 -1 1 20 -1 1 2 1 -1 1 -1 -1 -1
"""
POLICY = """\
import sys
from fluxsched.sched.policy import Start
{top}
class Mine:
    name = "mine"
    OPTIONS = {{}}
    def __init__(self):
        {init}
    def schedule(self, view, now_s):
        {schedule}
"""


@pytest.fixture
def sim(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("t.swf").write_text(TRACE)

    def run(*words, top="", init="pass", schedule="yield from ()"):
        Path("mine.py").write_text(POLICY.format(top=top, init=init, schedule=schedule))
        return CliRunner().invoke(main, ["sim", "t.swf", "--policy", "./mine.py", *words], prog_name="fluxsched")

    return run


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"top": "sys.exit(0)"}, "ended the process with status 0 (mine.py:3)"),
        ({"init": "sys.exit(7)"}, "ended the process with status 7 (mine.py:8)"),
        ({"schedule": "sys.exit('bye')"}, "ended the process with status 1 (mine.py:10)"),
        ({"top": "1 / 0"}, "raised ZeroDivisionError: division by zero (mine.py:3)"),
        ({"top": "raise MemoryError"}, "raised MemoryError (mine.py:3)"),
        ({"schedule": "yield 42"}, "raised TypeError: it yielded 42: a policy yields"),
        ({"schedule": "return None"}, "raised TypeError: schedule returned None: it should be a generator"),
    ],
)
def test_what_a_policy_raises_or_that_it_exits_is_one_line_that_names_it(sim, parts, said):
    done = sim(**parts)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(f"fluxsched: sim run: policy ./mine.py {said}")
    assert done.stderr.count("\n") == 1


def test_refused_decisions_are_counted(sim):
    twice = "\n        ".join(
        ["for job in list(view.queue):", "    fit = view.find(job)", "    if fit:"]
        + ["        yield Start(job.jobid, fit)"] * 2
    )
    done = sim(schedule=twice)
    assert ["decisions", "refused", "2"] in [line.split() for line in done.stdout.splitlines()]
    (one,) = json.loads(sim("--json", schedule=twice).stdout)["policies"]
    assert one["cost"]["refused"] == 2


def test_what_terminals_obey_is_escaped_in_the_report(sim, tmp_path):
    Path("o.jsonl").write_text(json.dumps({"submit": 0, "run": 1, "duration": 5, "user": "\x1b[31mann"}) + "\n")
    words = ["sim", "o.jsonl", "--procs", "1", "--policy", "fifo", "--by", "user"]
    text = CliRunner().invoke(main, words, prog_name="fluxsched").stdout
    assert "\x1b" not in text
    assert r"\x1b[31mann" in text
