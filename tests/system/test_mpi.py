"""Programs of real MPI libraries: MPICH finds its ranks by PMI-1, Open MPI runs alone or under its own mpirun."""

from __future__ import annotations

import shutil
import subprocess
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
