"""A real Flux's own commands at our socket, where there is one on PATH: they work, and print what they print there."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.flux

Run = Any
PYTHON = """
import flux, flux.job
handle = flux.Flux()
spec = flux.job.JobspecV1.from_command(["echo", "hi"], num_tasks=1)
jobid = flux.job.submit(handle, spec, waitable=True)
print(flux.job.wait(handle, jobid).success, flux.job.result(handle, jobid).result)
print(*[event.name for event in flux.job.event_watch(handle, jobid)])
print(*flux.job.output_watch(handle, jobid))
with flux.job.FluxExecutor() as executor:
    print([future.result() for future in [executor.submit(spec) for _ in range(3)]])
"""


@pytest.fixture
async def run(flux_commands: Any) -> Run:
    """run("jobs -a", status=0): what `flux jobs -a` prints, stderr after stdout."""
    path, environment = await flux_commands("1x2")

    async def command(line: str, *more: str, status: int = 0, piped: str = "") -> str:
        done = await asyncio.to_thread(
            subprocess.run, [path, *line.split(), *more],
            env=environment, input=piped, capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert done.returncode == status, (line, done.stdout, done.stderr)
        return str(done.stdout + done.stderr)

    return command


async def test_run_prints_and_leaves_with_the_status(run: Run) -> None:
    assert await run("run echo hello world") == "hello world\n"
    said = await run("run -n2 -l", "sh", "-c", "echo out; exit 3", status=3)
    assert sorted(said.splitlines()) == ["0: out", "1: out", "flux-job: task(s) exited with exit code 3"]
    assert await run("run", "sh", "-c", "kill -SEGV $$", status=139) == "flux-job: task(s) Segmentation fault\n"
    assert "needs 1000 slots" in await run("run -n1000 true", status=1)


async def test_what_is_piped_in_is_read_and_so_is_a_file(run: Run, tmp_path: Path) -> None:
    assert await run("run cat", piped="to run\n") == "to run\n"
    found = await run("run -n2 -l cat", piped="to all\n")
    assert sorted(found.splitlines()) == ["0: to all", "1: to all"]
    assert await run("run -n2 -l --input=1 cat", piped="to one\n") == "1: to one\n"
    jobid = (await run("submit cat")).strip()
    assert await run(f"job attach {jobid}", piped="to attach\n") == "to attach\n"
    (tmp_path / "file").write_text("from a file\n")
    assert await run(f"run --input={tmp_path}/file cat", piped="") == "from a file\n"


async def test_submit_and_look_at_it(run: Run) -> None:
    jobid = (await run("submit --wait --job-name=mine", "sh", "-c", "echo written")).strip()
    listed = await run("jobs -a")
    assert " ".join(listed.splitlines()[0].split()) == "JOBID USER NAME ST NTASKS NNODES TIME INFO"
    assert re.search(rf"{jobid} +\S+ +mine +CD +1 +1 +\S+s fake0", listed)
    assert await run(f"jobs -no {{result}}:{{returncode}}:{{nodelist}} {jobid}") == "COMPLETED:0:fake0\n"
    assert await run(f"job attach {jobid}") == "written\n"
    names = " ".join(line.split()[1] for line in (await run(f"job eventlog {jobid}")).splitlines())
    assert names == "submit validate depend priority alloc start finish release free clean"
    assert '"echo written"' in await run(f"job info {jobid} jobspec")
    assert "fake0" in await run(f"job info {jobid} R")
    assert (await run("job last")).strip() == jobid
    assert (await run(f"job taskmap {jobid}")).strip() == "[[0,1,1,1]]"


async def test_queues_hold_jobs_and_urgencies_move_them(run: Run) -> None:
    assert (await run("queue stop")).startswith("Scheduling is stopped")
    jobid = (await run("submit true")).strip()
    assert re.search(rf"{jobid} .* S ", await run("jobs"))
    await run(f"job urgency {jobid} hold")
    assert "held" in await run("jobs")
    await run(f"job urgency {jobid} default")
    assert "1 alloc requests" in await run("queue status -v")
    assert await run("queue start") == "Scheduling is started\n"
    assert (await run(f"job wait-event {jobid} clean")).split()[1] == "clean"
    assert await run("queue disable -m maintenance") == "Job submission is disabled: maintenance\n"
    assert "maintenance" in await run("submit true", status=1)
    await run("queue enable")
    assert "cannot disable queue 'nope', which does not exist" in await run("queue disable -a nope", status=1)
    await run("queue drain")
    assert await run("queue idle") == "0 jobs\n"


async def test_jobs_are_canceled_signalled_and_waited_for(run: Run) -> None:
    jobid = (await run("submit --flags=waitable sleep 60")).strip()
    assert (await run("pgrep sleep")).strip() == jobid
    await run(f"job wait-event {jobid} start")
    await run(f"job raise -s 1 -t hint {jobid} a note")
    await run(f"job kill -s SIGTERM {jobid}")
    assert await run(f"job wait {jobid}", status=1) == "flux-job: task(s) Terminated\n"
    others = [(await run("submit --urgency=hold true")).strip() for _ in range(2)]
    await run(f"cancel {others[0]}")
    assert "Canceled 1 job" in await run("cancel --all")
    assert re.findall(r" (CA|F) ", await run("jobs -a")) == ["CA", "CA", "F"]
    assert '"canceled":2' in await run("job stats")


async def test_what_is_not_there_is_said(run: Run) -> None:
    assert "unknown" in await run("job info f1 jobspec", status=1)
    assert "No such job" in await run("job attach f1", status=1)
    assert "JobID f1 unknown" in await run("jobs f1", status=1)
    assert "forgets ended jobs by itself" in await run("job purge", status=1)


async def test_python_clients_submit_wait_and_follow(run: Run) -> None:
    said = (await run("python -c", PYTHON)).splitlines()
    assert said[0] == "True COMPLETED"
    assert said[1].split()[-1] == "clean"
    assert said[2:] == ["('stdout', 'hi\\n')", "[0, 0, 0]"]


async def test_batch_and_alloc_run_in_an_instance_of_ours(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#flux: -n2 --output=none\nflux getattr instance-level\nflux run -n2 echo in\nexit 3")
    jobid = (await run("batch", str(script))).strip()
    said = await run(f"job attach {jobid}", status=3)
    assert said.splitlines() == ["1", "in", "in", "flux-job: task(s) exited with exit code 3"]
    jobid = (await run("alloc -n1 --bg")).strip()
    assert re.fullmatch(r"local:///.*/local-0\n", await run(f"uri {jobid}"))
    inside = await run(f"proxy --force {jobid} flux resource list -s free -n -o", "{ncores}")
    assert inside.split()[0] == "1"
    await run(f"job memo {jobid} note=mine")
    assert await run(f"jobs -n -o {{user.note}} {jobid}") == "mine\n"
    await run(f"cancel {jobid}")
