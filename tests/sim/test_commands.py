"""`fluxsched sim` as typed: what it prints and writes; `tests/cli/golden/sim.txt` has how it fails."""

import csv
import io
import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from fluxsched.cli.main import main
from fluxsched.cli.output import SHOWN_EVERY_S, ProgressLine, line_text
from fluxsched.sim.report import PARTS_MIN, folded, over_time, scale_of

TRACE = """\
; MaxProcs: 4
1 0 -1 10 4 -1 -1 4 20 -1 1 1 1 -1 1 -1 -1 -1
2 1 -1 10 2 -1 -1 2 20 -1 1 2 1 -1 1 -1 -1 -1
oops
3 2 -1 -1 2 -1 -1 2 20 -1 1 2 1 -1 1 -1 -1 -1
4 2 -1 10 9 -1 -1 9 20 -1 1 2 1 -1 2 -1 -1 -1
"""

GOLDEN = """\
t.swf: 3 jobs on 4 targets, 4 cores
1 bad line, 1 left out:
  t.swf:4: 1 fields, not 18: oops
  t.swf:5: run not known: 3 2 -1 -1 2 -1 -1 2 20 -1 1 2 1 -1 1 -1 -1 -1

                           fifo  firstfit
jobs completed                2         2
jobs denied                   1         1
wait mean [s]             4.500     4.500
wait median [s]           4.500     4.500
wait p95 [s]              8.550     8.550
wait max [s]              9.000     9.000
bounded slowdown mean     1.450     1.450
bounded slowdown median   1.450     1.450
bounded slowdown p95      1.855     1.855
bounded slowdown max      1.900     1.900
utilisation [%]          75.000    75.000
makespan [s]             20.000    20.000
queue length mean         0.450     0.450
queue length max              1         1
fairness over users       0.912     0.912
passes                        3         3

1 denied: needs 9 slots of 1 core; the group has only 4 such slots (job 4)

in 48 parts  utilisation, 0 to 100 %  queue length, 0 to 1.0
fifo      ████████████████████████▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅  ▁▁▅█████████████████████▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁
firstfit  ████████████████████████▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅  ▁▁▅█████████████████████▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁
"""


@pytest.fixture
def sim(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.swf").write_text(TRACE)

    def run(*args):
        return CliRunner().invoke(main, ["sim", *args], prog_name="fluxsched")

    return run


def test_policies_side_by_side(sim):
    done = sim("t.swf", "--policy", "fifo", "--policy", "firstfit")
    assert done.exit_code == 0, done.output
    costs = ("pass mean", "pass p99", "pass max", "simulated")
    lines = [line for line in done.stdout.splitlines() if not line.startswith(costs)]
    titles = [line.split("  ")[0] for line in GOLDEN.splitlines()]
    assert [line.split("  ")[0] for line in lines] == titles
    assert [" ".join(line.split()) for line in lines] == [" ".join(line.split()) for line in GOLDEN.splitlines()]
    assert sum(line.startswith(costs) for line in done.stdout.splitlines()) == 4


def test_run_may_be_left_out_and_help_is_found(sim):
    assert sim("run", "t.swf", "--until", "5s", "--policy", "fifo").exit_code == 0
    helped = sim("--help").stdout
    for words in ("--jobs-out F.csv", "`sim gen`", "`sim export`"):
        assert words in helped
    assert sim("gen", "--help").stdout.startswith("Usage: fluxsched sim gen ")
    assert sim().exit_code == 2


def test_the_table_of_jobs(sim, tmp_path):
    assert sim("t.swf", "--policy", "fifo", "--policy", "firstfit", "--jobs-out", "j.csv").exit_code == 0
    rows = list(csv.DictReader((tmp_path / "j.csv").read_text().splitlines()))
    assert list(rows[0])[:6] == ["job", "submit", "start", "end", "procs", "policy"]
    assert [list(row.values())[:6] for row in rows] == [
        [*cells, policy]
        for policy in ("fifo", "firstfit")
        for cells in (["1", "0", "0", "10", "4"], ["2", "1", "10", "20", "2"], ["4", "2", "", "", "9"])
    ]


def test_json(sim):
    done = sim("t.swf", "--policy", "fifo", "--json", "--nodes", "1", "--cores", "10")
    answer = json.loads(done.stdout)
    assert answer["trace"] | {"faults": None} == {
        "name": "t.swf", "jobs": 3, "bad": 1, "left_out": 1, "faults": None,
    }  # fmt: skip
    assert answer["machine"] == {"targets": 1, "cores": 10}
    (one,) = answer["policies"]
    assert (one["policy"], one["states"], one["wait_s"]["max"]) == ("fifo", {"completed": 3}, 9.0)
    assert [share["name"] for share in one["users"]] == [2, 1]
    assert (one["over_time"]["part_s"], len(one["over_time"]["utilisation"])) == (21 / 48, 48)
    assert one["cost"]["pass_max_s"] >= one["cost"]["pass_p99_s"] > 0


def test_jobs_without_a_limit_are_pointed_out(sim, tmp_path):
    (tmp_path / "e.jsonl").write_text('{"submit": 0, "run": 1}\n{"submit": 0, "run": 1, "duration": 5}\n')
    assert "\n1 job without a limit: " in sim("e.jsonl", "--procs", "1", "--policy", "fifo").stdout
    assert "without a limit" not in sim("t.swf", "--policy", "fifo").stdout


def test_who_has_not_been_submitted_by_then_does_not_wait(sim):
    text = sim("t.swf", "--policy", "fifo", "--until", "0.5s").stdout
    lines = [line.split() for line in text.splitlines()]
    assert ["jobs", "unsubmitted", "2"] in lines
    assert ["queue", "length", "max", "0"] in lines
    assert "queue length, 0 throughout" in text
    assert "jobs waiting" not in text


@pytest.mark.parametrize(
    ("longest", "text"), [(0.0, "0 throughout"), (0.043, "0 to 0.04"), (1.0, "0 to 1.0"), (2345.67, "0 to 2,345.7")]
)
def test_the_scale_of_a_queue_is_never_nothing(longest, text):
    assert scale_of(longest) == text


def test_the_bars_over_time_fit_the_terminal():
    course = SimpleNamespace(utilisation=(0.0, None, 1.0, *[0.5] * 45), queue=(4.0,) * 48)
    result = SimpleNamespace(title="easy-backfill", summary=SimpleNamespace(over_time=course))
    for columns in (200, 110, 80, 64):
        lines = list(over_time([result], columns))
        assert max(map(len, lines)) <= columns
        assert len(lines[1].split()[-1]) == min(48, (columns - 17) // 2)
    assert len(list(over_time([result], 20))[1].split()[-1]) == PARTS_MIN
    assert folded((0.0, None, 1.0, None, None, 0.5), 3) == [0.0, 1.0, 0.5]
    assert folded((None, None, 1.0), 1) == [1.0]


def test_users_and_queues(sim):
    assert "fifo: queue  jobs  core h" in sim("t.swf", "--policy", "fifo", "--by", "queue").stdout
    text = sim("t.swf", "--policy", "fifo", "--by", "user").stdout
    assert [line.split()[0] for line in text.splitlines()[-2:]] == ["1", "2"]


def test_accounts(sim, tmp_path):
    words = ["--policy", "fifo", "--policy", "fair", "--by", "bank", "--bank", "user", "--accounts-out", "a.csv"]
    text = sim("t.swf", *words).stdout
    assert [line.split()[1] for line in text.splitlines() if ": account " in line] == ["account", "account"]
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert {tuple(line.split(",")[:2]) for line in lines[1:]} >= {("fifo", "1/1"), ("fair", "1/1"), ("fair", "2/2")}


QUEUES = """\
; MaxProcs: 2
1 0 -1 10 2 -1 -1 2 20 -1 1 1 1 -1 1 -1 -1 -1
2 1 -1 10 2 -1 -1 2 90 -1 1 2 1 -1 1 -1 -1 -1
3 1 -1 10 2 -1 -1 2 30 -1 1 2 1 -1 1 -1 -1 -1
4 1 -1 10 2 -1 -1 2 90 -1 1 2 1 -1 3 -1 -1 -1
5 1 -1 10 2 -1 -1 2 30 -1 1 2 1 -1 3 -1 -1 -1
"""
CONFIG = '[queues.1]\n[queues.3]\npolicy = "firstfit:order=sjf"\n[policy.jobspec.defaults.system]\nqueue = "1"\n'


@pytest.mark.parametrize("words", [["--policy", "fifo;3=firstfit:order=sjf"], ["--policy", "fifo", "--config=c.toml"]])
def test_a_queue_with_a_policy_of_its_own(sim, tmp_path, words):
    """Queue 3 is served first, shortest limits first; queue 1 in the order of submission."""
    (tmp_path / "q.swf").write_text(QUEUES)
    (tmp_path / "c.toml").write_text(CONFIG)
    done = sim("q.swf", *words, "--jobs-out", "j.csv")
    assert done.exit_code == 0, done.stderr
    rows = list(csv.DictReader((tmp_path / "j.csv").read_text().splitlines()))
    assert [row["job"] for row in sorted(rows, key=lambda row: float(row["start"]))] == ["1", "5", "4", "2", "3"]
    assert {row["policy"] for row in rows} == {words[1]}


@pytest.mark.parametrize(("said", "state"), [("", "completed"), ('[policy]\nunsatisfiable = "deny"\n', "denied")])
def test_who_no_longer_fits_waits_unless_the_configuration_denies(sim, tmp_path, said, state):
    machine = '[[resource.config]]\nhosts = "n[0-3]"\ncores = "0"\n'
    (tmp_path / "c.toml").write_text(said + '[resource.groups]\nlab = ""\n' + machine)
    (tmp_path / "t.jsonl").write_text(
        '{"job": 1, "submit": 0, "run": 10, "nslots": 4}\n{"job": 2, "submit": 1, "run": 10, "nslots": 4}\n'
    )
    moves = [{"at": at, "do": "assign", "targets": "2-3", "group": to} for at, to in ((5, "lab"), (30, "default"))]
    (tmp_path / "site.jsonl").write_text("".join(f"{json.dumps(move)}\n" for move in moves))
    done = sim("t.jsonl", "--config=c.toml", "--site=site.jsonl", "--policy=fifo", "--jobs-out", "j.csv")
    assert done.exit_code == 0, done.stderr
    [_, second] = csv.DictReader((tmp_path / "j.csv").read_text().splitlines())
    assert (second["state"], second["start"]) == (state, "30" if not said else "")


def test_a_page_is_written_before_the_report_is_printed(sim, tmp_path):
    done = sim("t.swf", "--procs", "2", "--policy", "fifo", "--policy", "easy", "--html", "x.html")
    assert done.exit_code == 0, done.stderr
    page = (tmp_path / "x.html").read_text()
    assert page.startswith("<!doctype html>")
    assert '<th scope="col">fifo</th><th scope="col">easy</th>' in page
    assert "wait mean [s]" in done.stdout


@pytest.mark.parametrize(("args", "name"), [([], "t.jsonl"), (["--swf"], "t.swf"), (["-o", "u.swf.gz"], "u.swf.gz")])
def test_a_made_up_trace_runs(sim, tmp_path, args, name):
    made = sim("gen", "--jobs", "20", "--procs", "8", "--seed", "4", "--load", "0.5", *args)
    assert made.exit_code == 0
    if made.stdout:
        (tmp_path / name).write_text(made.stdout)
    assert "20 jobs on 8 targets, 8 cores" in sim(name, "--policy", "fifo").stdout


def test_the_progress_line():
    assert line_text("easy", 50, 100, 0.5) == f"easy [{'#' * 15}{'.' * 15}]  50% 50/100 jobs, 100 jobs/s, ETA 0:00"
    assert line_text("x", 1, 7201, 1.0).endswith("ETA 2:00:00")
    assert line_text("x", 0, 0, 0.0).endswith("ETA -")
    ticks = iter([0.0, SHOWN_EVERY_S / 2, 1.0, 2.0])
    file = io.StringIO()
    line = ProgressLine("p", lambda: next(ticks), file)
    line(1, 4, 0.0)
    assert file.getvalue() == ""
    line(2, 4, 0.0)
    line(4, 4, 0.0)
    assert file.getvalue().startswith(f"\rp [{'#' * 15}")
    line.clear()
    assert file.getvalue().endswith(" \r")


def test_reasons_of_denied_jobs_are_told_and_in_the_csv(sim, tmp_path):
    done = sim("t.swf", "--policy", "fifo", "--policy", "easy", "--jobs-out", "j.csv")
    why = "needs 9 slots of 1 core; the group has only 4 such slots"
    assert done.stdout.count(why) == 1  # the same under both
    assert f"1 denied: {why} (job 4)" in done.stdout
    assert (tmp_path / "j.csv").read_text().count(f",{why},,,\n") == 2
    shown = json.loads(sim("t.swf", "--json").stdout)
    assert shown["policies"][0]["notes"] == [{"state": "denied", "reason": why, "jobs": 1}]


def test_the_reason_of_a_denied_job_is_not_that_of_another_of_its_name(sim, tmp_path):
    jobs = [{"job": 1, "submit": 0, "run": 1}, {"job": 1, "submit": 1, "run": 1, "nslots": 9}]
    (tmp_path / "two.jsonl").write_text("".join(json.dumps(job) + "\n" for job in jobs))
    sim("two.jsonl", "--procs", "1", "--jobs-out", "j.csv")
    rows = list(csv.DictReader((tmp_path / "j.csv").read_text().splitlines()))
    assert [(row["state"], bool(row["note"])) for row in rows] == [("completed", False), ("denied", True)]


def test_what_is_wrong_in_a_trace_is_named_with_file_and_line(sim, tmp_path):
    good = '{"submit": 0, "run": 1}'
    bad = '{"submit": 0, "run": 1, "urgency": 77}'
    (tmp_path / "own.jsonl").write_text(f"{good}\n{bad}\n")
    assert (
        f"  own.jsonl:2: urgency 77 is not 0 (held) to 31 (expedited): leave it out for 16: {bad}"
        in sim("own.jsonl", "--procs", "1").stdout.splitlines()
    )


def test_labels_are_what_tables_call_the_policies(sim, tmp_path):
    words = ("--policy", "fifo", "--policy", "easy", "--label", "strict", "--label", "back fill")
    done = sim("t.swf", *words, "--jobs-out", "j.csv")
    assert "strict  back fill" in done.stdout
    assert ",strict," in (tmp_path / "j.csv").read_text()
    shown = json.loads(sim("t.swf", *words, "--json").stdout)["policies"]
    assert [(each["policy"], each["label"]) for each in shown] == [("fifo", "strict"), ("easy", "back fill")]


def test_a_label_has_a_limit(sim):
    done = sim("t.swf", "--policy", "fifo", "--policy", "easy", "--label", "a", "--label", "x" * 41)
    assert done.exit_code == 2
    assert "is not 1 to 40 printable" in done.stderr
