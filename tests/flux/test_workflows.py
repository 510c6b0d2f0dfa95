"""Programs of rfc/workflows.md: ours, and those of other tools where Flux's Python bindings are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "rfc" / "workflows.md"
TOOLS_PYTHON = os.environ.get("FLUXSCHED_TOOLS_PYTHON", sys.executable)
"""An interpreter that has Flux's bindings and the tools."""
PRINTED = {"executorlib": "[0, 1, 4, 9]", "psij": "[1, 2]", "parsl": "[0, 1, 4, 9]"}


def blocks():
    return {
        re.search(r"(?:import|from) (\w+)", text)[1]: text
        for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    }


def run_inside(tmp_path, python, text, ntasks=1, status=0):
    path = tmp_path / "program.py"
    path.write_text(text)
    return started(tmp_path, sys.executable, "-m", "fluxsched", "run", f"-n{ntasks}", python, path, status=status)


def started(tmp_path, *words, status=0):
    start = [sys.executable, "-m", "fluxsched", "start", "--fake", "1x4", "--", *words]
    beside = {**os.environ, "PATH": f"{Path(TOOLS_PYTHON).parent}:{os.environ['PATH']}"}
    done = subprocess.run(start, cwd=tmp_path, env=beside, capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def skip_unless(condition):
    found = subprocess.run([TOOLS_PYTHON, "-c", condition], capture_output=True, text=True)
    if found.returncode != 0:
        pytest.skip(f"{TOOLS_PYTHON}: {found.stderr.splitlines()[-1]}; FLUXSCHED_TOOLS_PYTHON names another one")


@pytest.mark.slow
def test_the_executor_runs_calls_and_commands(tmp_path):
    text = blocks()["fluxsched"].replace("map(square, range(4))", "map(pow, range(4), [2] * 4)")
    squares, status = run_inside(tmp_path, sys.executable, text).splitlines()
    assert squares == "[0, 1, 4, 9]"
    assert status.startswith("3 ƒ")


def test_the_executor_runs_functions_of_the_program_by_cloudpickle(tmp_path):
    skip_unless("import cloudpickle, fluxsched")
    squares, status = run_inside(tmp_path, TOOLS_PYTHON, blocks()["fluxsched"]).splitlines()
    assert (squares, status[:3]) == ("[0, 1, 4, 9]", "3 ƒ")


@pytest.mark.flux
@pytest.mark.parametrize("tool", PRINTED)
def test_the_tool_runs_unchanged(tmp_path, tool):
    skip_unless(f"import flux, {tool}")
    assert PRINTED[tool] in run_inside(tmp_path, TOOLS_PYTHON, blocks()[tool])


SNAKEFILE = """
rule second:
    input: "one.txt"
    output: "two.txt"
    shell: "cat {input} >{output}; echo $FLUX_JOB_ID >>{output}"
rule first:
    output: "one.txt"
    shell: "echo one >{output}"
"""


@pytest.mark.flux
def test_snakemake_runs_its_rules_as_jobs(tmp_path):
    skip_unless("import flux, snakemake, snakemake_executor_plugin_flux")
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    (command,) = re.findall(r"^    (snakemake .*)", PAGE.read_text(), re.M)
    started(tmp_path, *command.split())
    one, jobid = (tmp_path / "two.txt").read_text().split()
    assert one == "one"
    assert jobid.startswith("ƒ")


@pytest.mark.flux
def test_maestro_runs_the_steps_of_a_study_as_jobs(tmp_path):
    skip_unless("import flux, maestrowf")
    (study,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.S)
    (tmp_path / "study.yaml").write_text(study)
    started(tmp_path, "maestro", "run", "-y", "-fg", "-s", "1", "-o", "out", "study.yaml")
    assert (tmp_path / "out" / "second" / "two.txt").read_text() == "one\n"


def test_psij_has_an_executor_of_ours(tmp_path):
    skip_unless("import psij; assert 'fluxsched' in psij.JobExecutor.get_executor_names(), 'PSI/J knows no fluxsched'")
    text = blocks()["psij"].replace('"flux"', '"fluxsched"')
    assert PRINTED["psij"] in run_inside(tmp_path, TOOLS_PYTHON, text)


PSIJ_HOSTS = """
from psij import Job, JobExecutor, JobSpec, ResourceSpecV1

command = ["-c", "test $FLUX_TASK_RANK = 0 || wc -l <$PSIJ_NODEFILE"]
spec = JobSpec(executable="/bin/sh", arguments=command, resources=ResourceSpecV1(process_count=2), stdout_path="lines")
job = Job(spec)
JobExecutor.get_instance("fluxsched").submit(job)
print(job.wait().state, open("lines").read())
"""


def test_a_job_of_psij_has_a_file_with_its_hosts(tmp_path):
    skip_unless("import psij; assert 'fluxsched' in psij.JobExecutor.get_executor_names(), 'PSI/J knows no fluxsched'")
    assert run_inside(tmp_path, TOOLS_PYTHON, PSIJ_HOSTS).split() == ["COMPLETED", "2"]


def test_the_tasks_of_a_job_are_a_dask_cluster(tmp_path):
    skip_unless("import dask_jobqueue, fluxsched")
    text = blocks()["distributed"]
    assert run_inside(tmp_path, TOOLS_PYTHON, text, ntasks=4) == "[0, 1, 4, 9]\n"
    few = run_inside(tmp_path, TOOLS_PYTHON, text, ntasks=2, status=1)
    assert "Dask needs a job of 3 tasks or more, not 2: run this program by `fluxsched run -n 3`" in few


def test_every_tool_on_the_page_is_tried():
    assert set(blocks()) == {"distributed", "fluxsched", *PRINTED}
