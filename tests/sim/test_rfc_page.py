"""rfc/simulator.md: every example in it is read by the readers, every key and word is in it."""

import io
import json
import re
from pathlib import Path

import pytest

from fluxsched.config.inventory import fake_resources
from fluxsched.sim import Machine, Trace, run
from fluxsched.sim.result import COLUMNS
from fluxsched.sim.site import _PLAIN, parse_site
from fluxsched.sim.traces import KEYS, read_lines

PAGE = (Path(__file__).parents[2] / "rfc" / "simulator.md").read_text()


def examples(kind):
    found = re.findall(rf"<!-- {kind} -->\n```\w*\n(.*?)```", PAGE, re.DOTALL)
    assert found, kind
    return [" ".join(text.split()) if kind != "csv" else text for text in found]


def test_traces_read_and_run():
    trace = read_lines([*examples("trace: header"), *examples("trace: job")], "page")
    assert (len(trace.jobs), trace.bad, trace.left_out) == (4, 0, 0)
    assert trace.machine == Machine(16, 64, 4)
    result = run(trace, "fifo", check=True)
    assert result.jobs.state == ["completed", "denied", "completed", "completed"]


@pytest.mark.parametrize("line", examples("site: step"))
def test_site_steps_read(line):
    assert parse_site([line], "page", fake_resources("8x2"))


def test_the_site_file_of_the_page_runs(trace_of):
    steps = parse_site(examples("site: step"), "page", fake_resources("8x2"))
    result = run(trace_of((0, 86400 * 5, None, 9)), nodes=8, cores=2, site=steps, check=True)
    assert result.jobs.state == ["failed"]


def test_the_table_has_these_columns(trace_of):
    (text,) = examples("csv")
    assert text.splitlines()[0].split(",") == list(COLUMNS)
    file = io.StringIO()
    jobs = [job._replace(user=at) for at, job in enumerate(trace_of((0, 97225, None, 56), (327952, 1, 1, 480)).jobs, 1)]
    result = run(Trace.of(jobs), procs=100)
    result.policy = "easy"
    result.to_csv(file)
    assert file.getvalue() == text


def test_every_key_and_every_change_is_explained():
    for key in KEYS:
        assert re.search(rf"^\|.*`{key}`", PAGE, re.MULTILINE), key
    for do in _PLAIN:
        assert re.search(rf"^\|.*`{do}`.*\|", PAGE, re.MULTILINE), do
        assert any(json.loads(line)["do"] == do for line in examples("site: step")) or do in ("offline", "online")
