"""Tasks of real jobs and their PMI server: who gets one, what goes over it, and what ends a job."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from fluxsched.runtime.exec.tasks.pmi import PMI_FD

CLIENT = [sys.executable, "-S", str(Path(__file__).with_name("pmi_client.py"))]
SAY = 'echo "${PMI_FD-none} ${PMI_RANK-none} ${PMI_SIZE-none} $([ -S /proc/self/fd/30 ] && echo socket)"'


async def test_four_ranks_exchange_what_they_put(shop: Any) -> None:
    assert await shop.run([*CLIENT, "exchange"], ntasks=4, ranks=2) == 0
    cards = " ".join(f"of={rank}" for rank in range(4))
    assert shop.lines() == [f"{rank} {cards} (vector,(0,2,2))" for rank in range(4)]


async def test_tasks_of_a_job_of_several_have_a_server_and_only_their_own_end(
    shop: Any,
) -> None:
    stale = {"PMI_RANK": "7", "PMI_FD": "3", "PMI_PORT": "h:1", "PMIX_NAMESPACE": "n", "PATH": os.environ["PATH"]}
    assert await shop.run(f"{SAY}; echo ${{PMI_PORT-no}} ${{PMIX_NAMESPACE-no}}; ls /proc/self/fd | wc -l",
                          ntasks=2, environment=stale) == 0  # fmt: skip
    assert shop.lines() == sorted([f"{PMI_FD} 0 2 socket", f"{PMI_FD} 1 2 socket", "no no", "no no", "5", "5"])


async def test_a_job_of_one_task_and_one_with_pmi_off_have_none(shop: Any) -> None:
    stale = {"PMI_RANK": "7", "PMI_FD": "3", "PATH": os.environ["PATH"]}
    assert await shop.run(SAY, environment=stale) == 0
    assert shop.text() == "none none none \n"
    shop.start(SAY, jobid=2, ntasks=2, pmi=False)
    await shop.finished(2)
    assert set(shop.lines(jobid=2)) == {"none none none "}
    shop.start(SAY, jobid=3, pmi=True)
    await shop.finished(3)
    assert shop.text(jobid=3) == f"{PMI_FD} 0 1 socket\n"


@pytest.mark.parametrize(
    ("what", "note"),
    [
        ("die", "task 1 (killed by SIGSEGV) left the MPI program without MPI_Finalize"),
        ("abort", "task 1 called MPI_Abort with exit code 5"),
        ("flood", "task 1 left the MPI program without MPI_Finalize"),
        ("deaf", "task 1 left the MPI program without MPI_Finalize"),
    ],
)
async def test_a_program_that_cannot_go_on_ends_its_job(shop: Any, what: str, note: str) -> None:
    shop.start([*CLIENT, what], ntasks=3)
    await shop.until(lambda: len(shop.said) > 1)
    (raised,) = shop.said[1:]
    assert raised[:3] == ("raised", 1, "exec")
    assert raised[3].replace(" (exited 1)", "") == note, "cut off, a client may end before we look"
    shop.executor.kill(1, signal.SIGKILL)
    await shop.until(lambda: shop.said[-1][0] == "finished")


async def test_tasks_that_are_told_to_end_fail_nothing(shop: Any) -> None:
    shop.start([*CLIENT, "wait"], ntasks=2)
    await shop.until(lambda: shop.lines() == ["0 is here", "1 is here"])
    shop.executor.kill(1, signal.SIGTERM)
    assert await shop.finished() == signal.SIGTERM
