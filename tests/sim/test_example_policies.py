"""The policies of examples/: a cap on power that holds jobs on purpose, and backfill by predicted run times."""

import csv
import json
from pathlib import Path

from click.testing import CliRunner

from fluxsched.cli.main import main
from fluxsched.sched.loading import parse_spec
from fluxsched.sched.registry import make
from fluxsched.sim import examine
from tests.generated.share import examples

EXAMPLES = Path(__file__).parents[2] / "examples"
CASES = 8
"""Of each rule; `policy check` tries more."""


def waits(directory, policy, *jobs):
    """When each job starts on one node of four cores; a job is its user, submit, run and limit (seconds), and slots."""
    keys = ("user", "submit", "run", "duration", "nslots")
    lines = [json.dumps({"job": f"j{at}", **dict(zip(keys, job, strict=True))}) for at, job in enumerate(jobs)]
    (directory / "trace.jsonl").write_text("\n".join(lines))
    words = ["sim", f"{directory}/trace.jsonl", "--policy", policy, "--nodes", "1", "--cores", "4"]
    done = CliRunner().invoke(main, [*words, "--jobs-out", f"{directory}/jobs.csv"])
    assert done.exit_code == 0, done.output
    with (directory / "jobs.csv").open() as file:
        return {row["job"]: float(row["start"]) for row in csv.DictReader(file)}


def test_a_job_is_planned_for_as_long_as_the_last_two_of_its_user_ran(tmp_path):
    known = [("ann", 0.0, 10.0, 1000.0, 1), ("ann", 0.0, 20.0, 1000.0, 1)]
    jobs = [*known, ("bob", 50.0, 200.0, 200.0, 3), ("bob", 90.0, 5.0, 5.0, 4), ("ann", 100.0, 15.0, 1000.0, 1)]
    assert waits(tmp_path, "easy", *jobs)["j4"] == 255.0
    assert waits(tmp_path, f"{EXAMPLES}/policy_predicted.py", *jobs)["j4"] == 100.0


def test_jobs_wait_for_power_and_the_check_knows_that_it_is_on_purpose(tmp_path):
    jobs = [("ann", 0.0, 10.0, 10.0, 2), ("ann", 0.0, 10.0, 10.0, 1)]
    assert waits(tmp_path, f"{EXAMPLES}/policy_power.py:watts=20", *jobs) == {"j0": 0.0, "j1": 10.0}
    assert waits(tmp_path, f"{EXAMPLES}/policy_power.py:watts=30", *jobs) == {"j0": 0.0, "j1": 0.0}
    text = (EXAMPLES / "policy_power.py").read_text()
    (tmp_path / "careless.py").write_text(text.replace("HOLDS = True", "HOLDS = False"))
    careful, careless = (make(*parse_spec(f"{path}:watts=40")) for path in
                         (EXAMPLES / "policy_power.py", tmp_path / "careless.py"))  # fmt: skip
    verdicts = [one.verdict for one in examine(careful, cases=examples(CASES))]
    assert "broken" not in verdicts, verdicts
    found = {one.rule: one.verdict for one in examine(careless, cases=1, rules=["ordinary"])}
    assert found["progress"] == "broken", found
