"""Programs of real MPI libraries: MPICH finds its ranks by PMI-1, Open MPI runs alone or under its own mpirun."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).with_name("mpi") / "sums.c"


def compiled(name: str, directory: Path, library: str) -> str:
    """The program built against this library; skips the test where there is none."""
    compiler = shutil.which(f"mpicc.{name}") or shutil.which("mpicc")
    version = "" if compiler is None else subprocess.run([compiler, "-show"], capture_output=True, text=True).stdout
    if compiler is None or library not in version:
        pytest.skip(f"no compiler of {name}: apt-get install {'libmpich-dev' if name == 'mpich' else 'libopenmpi-dev'}")
    program = directory / name
    subprocess.run([compiler, SOURCE, "-o", program], check=True, capture_output=True)
    return str(program)


@pytest.fixture(scope="module")
def mpich(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled("mpich", tmp_path_factory.mktemp("mpich"), "mpich")


@pytest.fixture(scope="module")
def openmpi(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled("openmpi", tmp_path_factory.mktemp("openmpi"), "openmpi")


SUMS = [f"rank {rank} of 4: sum 10" for rank in range(4)]


def test_cpi_and_an_allreduce_of_four_ranks_run_with_mpich(site: Any, mpich: str) -> None:
    done = site("run", "-N2", "-n4", mpich)
    assert sorted(done.out.splitlines()) == ["pi is about 3.141593", *SUMS]


def test_mpi_abort_ends_the_job_and_says_who(site: Any, mpich: str) -> None:
    done = site("run", "-n4", mpich, "abort", status=None)
    assert done.status == 7
    assert "exception exec: task 1 called MPI_Abort with exit code 7" in done.err


PMI = 'printf "cmd=init pmi_version=1 pmi_subversion=1\\n" >&30; read -r answer <&30; '


@pytest.mark.parametrize(
    ("failing", "status", "said"),
    [
        ('printf "cmd=abort exitcode=7\\n" >&30; sleep 100', 7, "task 1 called MPI_Abort with exit code 7"),
        ("kill -SEGV $$", 139, "task 1 (killed by SIGSEGV)"),
        ("exit 3", 3, "task 1 (exited 3)"),
    ],
)
def test_a_job_has_the_status_of_the_task_that_failed_not_of_those_killed_for_it(
    site: Any, failing: str, status: int, said: str
) -> None:
    script = f'{PMI} if [ "$PMI_RANK" = 1 ]; then {failing}; else exec sleep 100; fi'
    done = site("run", "-n4", "bash", "-c", script, status=status)
    assert said in done.err
    assert site("jobs", "-an", "-c1", "-o", "{contextual_info}").word.startswith(f"exec: {said}")


def test_four_ranks_run_in_an_instance_inside_a_job(site: Any, mpich: str) -> None:
    done = site("run", "-n1", "-c4", "fluxsched", "start", "--", "fluxsched", "run", "-n4", mpich)
    assert sorted(done.out.splitlines()) == ["pi is about 3.141593", *SUMS]


def test_mpich_runs_alone_without_a_server(site: Any, mpich: str) -> None:
    assert site("run", mpich).out.splitlines()[0] == "rank 0 of 1: sum 1"
    done = site("run", "-n2", "-o", "pmi=off", mpich)
    assert done.out.splitlines().count("rank 0 of 1: sum 1") == 2


def test_open_mpi_runs_alone_and_under_its_own_mpirun(site: Any, openmpi: str) -> None:
    root = ("--env=OMPI_ALLOW_RUN_AS_ROOT=1", "--env=OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
    assert site("run", *root, openmpi).out.splitlines()[0] == "rank 0 of 1: sum 1"
    mpirun = shutil.which("mpirun.openmpi") or "mpirun"
    done = site("run", *root, "-c2", mpirun, "--oversubscribe", "-n", "4", openmpi)
    assert sorted(done.out.splitlines()) == ["pi is about 3.141593", *SUMS]


def test_an_unknown_pmi_is_refused_when_the_job_is_submitted(site: Any) -> None:
    done = site("submit", "-o", "pmi=pmix", "true", status=1)
    assert "attributes.system.shell.options.pmi: 'pmix' is not simple, off or none" in done.err


@pytest.fixture(scope="module")
def hosts(users: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An instance of four hosts, each of which is a process that costs as much as ten instances on one."""
    make_user, daemons = users
    with ExitStack() as stack:
        yield daemons(stack, make_user(tmp_path_factory.mktemp("hosts")))("--engine", "processes:4")


def test_four_ranks_on_each_of_four_hosts_run_with_mpich(hosts: Any, mpich: str) -> None:
    jobspec = hosts("run", "-N4", "-n4", "--dry-run", mpich).json
    jobspec["tasks"][0]["count"] = {"total": 16}
    file = hosts.directory / "jobspec.json"
    file.write_text(json.dumps(jobspec))
    done = hosts("job", "attach", hosts("job", "submit", file).word)
    sums = [f"rank {rank} of 16: sum 136" for rank in range(16)]
    assert sorted(done.out.splitlines()) == sorted(["pi is about 3.141593", *sums])


def test_a_program_on_several_hosts_ends_with_the_task_that_failed(hosts: Any) -> None:
    script = f'{PMI} if [ "$PMI_RANK" = 3 ]; then exit 3; else exec sleep 100; fi'
    done = hosts("run", "-N4", "-n4", "bash", "-c", script, status=3)
    said = done.err.replace(" (exited 3)", "")  # it may end after we look
    assert "task 3 left the MPI program without MPI_Finalize" in said


def test_tasks_do_not_wait_in_a_barrier_for_a_host_whose_tasks_have_left(hosts: Any) -> None:
    script = f'[ "$PMI_RANK" = 3 ] && exit 3; {PMI} printf "cmd=barrier_in\\n" >&30; read -r answer <&30'
    done = hosts("run", "-N4", "-n4", "bash", "-c", script, status=3)
    said = done.err.replace(" (exited 3)", "")
    assert "task 3 has left the MPI program, and task" in said


BARRIER = f"""
{PMI} printf "cmd=get_my_kvsname\\n" >&30; read -r answer <&30; space=${{answer##*=}}
put="cmd=put kvsname=$space key=of-$PMI_RANK value=$PMI_RANK"; printf "$put\\n" >&30; read -r answer <&30
if [ $PMI_RANK = 3 ]; then while [ ! -e go ]; do sleep .02; done; fi
printf "cmd=barrier_in\\n" >&30; [ $PMI_RANK != 0 ] || touch waits; read -r answer <&30
for rank in 0 1 2 3; do printf "cmd=get kvsname=$space key=of-$rank\\n" >&30; read -r answer <&30; echo ${{answer##*=}}
done; printf "cmd=finalize\\n" >&30; read -r answer <&30
"""


def test_a_barrier_of_several_hosts_outlives_an_instance_that_is_killed(
    user: Any, daemon: Any, kill_hard: Any, until: Any
) -> None:
    options = ("--engine", "processes:4", "--statedir", "state")
    site = daemon(*options)
    job = site.running("-N4", "-n4", "bash", "-c", BARRIER)
    until((user.directory / "waits").exists)
    kill_hard(site.pid())
    here = daemon(*options)
    (user.directory / "go").touch()
    here("wait", job)
    assert sorted(here("job", "attach", job).out.split()) == sorted("0123" * 4)


# Commands on the other hosts of a job, by which launchers of MPI programs start theirs.


def in_job(hosts: Any, script: str, status: int | None = 0) -> Any:
    """A shell script that is the first task of a job on all hosts; the others end at once."""
    script = f"[ $FLUX_TASK_RANK = 0 ] || exit 0; {script}"
    return hosts("run", "-N4", "-n4", "-o", "pmi=off", "bash", "-c", script, status=status)


@pytest.mark.parametrize(
    ("script", "status", "out"),
    [
        ("fluxsched rsh p1 'echo $FLUX_JOB_ID; exit 3'; echo $? $FLUX_JOB_ID", 0, None),
        ("echo words | fluxsched rsh p2 tr a-z A-Z", 0, "WORDS\n"),
        ("echo words | fluxsched rsh -n p2 'cat; echo end'", 0, "end\n"),
        ("head -c 3000000 /dev/zero | fluxsched rsh p3 cat | wc -c", 0, "3000000\n"),
        ("fluxsched rsh -x p1 'echo aside >&2; kill $$' 2>&1; exit $?", 143, "aside\n"),
        ("fluxsched rsh p1 'sleep 1000 & exec sleep 1000' & sleep 0.3; exit 0", 0, ""),
    ],
)
def test_a_command_runs_on_another_host_of_its_job(hosts: Any, script: str, status: int, out: str | None) -> None:
    found = in_job(hosts, script, status=status)
    if out is None:
        first, last = found.out.splitlines()
        assert last == f"3 {first}"
    else:
        assert found.out == out


def test_commands_on_other_hosts_are_refused_where_there_are_none(user: Any, hosts: Any) -> None:
    found = in_job(hosts, "fluxsched rsh p7 true", status=1)
    assert "has nothing on host 'p7', but on p[0-3]" in found.err
    script = "fluxsched run fluxsched rsh localhost true"
    found = user.process("start", "--fake", "1x1", "--", "sh", "-c", script, status=1)
    assert "commands run beside jobs of an instance with an engine" in found.err
    assert "Missing option '--job'" in user.process("rsh", "p1", "true", status=2).err


def test_mpiexec_of_mpich_starts_its_proxies_by_rsh(hosts: Any, mpich: str) -> None:
    launcher = shutil.which("mpiexec.hydra")
    if launcher is None:
        pytest.skip("no launcher of mpich: apt-get install mpich")
    agent = hosts.directory / "agent"
    agent.write_text('#!/bin/sh\nexec fluxsched rsh "$@"\n')
    agent.chmod(0o755)
    words = f"-launcher ssh -launcher-exec {agent} -hosts p0,p1,p2,p3 -ppn 1 -n 4"
    done = in_job(hosts, f"{launcher} {words} {mpich}")
    assert sorted(done.out.splitlines()) == ["pi is about 3.141593", *SUMS]


def test_mpirun_of_open_mpi_starts_its_daemons_by_rsh(hosts: Any, openmpi: str) -> None:
    mpirun = shutil.which("mpirun.openmpi") or "mpirun"
    root = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
    options = "--mca plm rsh --mca plm_rsh_agent 'fluxsched rsh' --mca btl tcp,self"  # one machine has one /dev/shm
    done = in_job(hosts, f"{root} {mpirun} {options} -H p0,p1,p2,p3 -n 4 {openmpi}")
    assert sorted(done.out.splitlines()) == ["pi is about 3.141593", *SUMS]
