"""Flux's own commands before an instance of ours."""

from __future__ import annotations

import asyncio
import os
import pwd
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

# A real Flux's own commands at our socket, where there is one on PATH: they work, and print what they print there.


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
async def run(flux_commands):
    """run("jobs -a", status=0): what `flux jobs -a` prints, stderr after stdout."""
    path, environment = await flux_commands("1x2")

    async def command(line, *more, status=0, piped=""):
        done = await asyncio.to_thread(
            subprocess.run, [path, *line.split(), *more],
            env=environment, input=piped, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == status, (line, done.stdout, done.stderr)
        return str(done.stdout + done.stderr)

    return command


async def test_run_prints_and_leaves_with_the_status(run):
    assert await run("run echo hello world") == "hello world\n"
    said = await run("run -n2 -l", "sh", "-c", "echo out; exit 3", status=3)
    assert sorted(said.splitlines()) == ["0: out", "1: out", "flux-job: task(s) exited with exit code 3"]
    assert await run("run", "sh", "-c", "kill -SEGV $$", status=139) == "flux-job: task(s) Segmentation fault\n"
    assert "needs 1000 slots" in await run("run -n1000 true", status=1)


async def test_what_is_piped_in_is_read_and_so_is_a_file(run, tmp_path):
    assert await run("run cat", piped="to run\n") == "to run\n"
    found = await run("run -n2 -l cat", piped="to all\n")
    assert sorted(found.splitlines()) == ["0: to all", "1: to all"]
    assert await run("run -n2 -l --input=1 cat", piped="to one\n") == "1: to one\n"
    jobid = (await run("submit cat")).strip()
    assert await run(f"job attach {jobid}", piped="to attach\n") == "to attach\n"
    (tmp_path / "file").write_text("from a file\n")
    assert await run(f"run --input={tmp_path}/file cat", piped="") == "from a file\n"


async def test_submit_and_look_at_it(run):
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


async def test_queues_hold_jobs_and_urgencies_move_them(run):
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


async def test_jobs_are_canceled_signalled_and_waited_for(run):
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


async def test_nextflow_submits_a_script_polls_it_and_reads_its_log(run, tmp_path):
    """Run the lines that Nextflow's executor `flux` makes; it reads a job's id and the two columns of `flux jobs`."""
    (tmp_path / ".command.run").write_text("pwd\n")
    log = tmp_path / ".command.log"
    options = f"--job-name=nf-first --output={log} --cores-per-task=2 --time-limit=05"
    jobid = (await run(f"submit --setattr=cwd={tmp_path} {options} /bin/bash .command.run")).strip()
    assert re.fullmatch("[ƒf].+", jobid)
    await run(f"job wait-event {jobid} clean")
    assert log.read_text() == f"{tmp_path}\n"
    poll = f"jobs --suppress-header --since=-15m --user={pwd.getpwuid(os.getuid()).pw_name}"
    assert await run(poll, "--format={id.f58} {status_abbrev}") == f"{jobid} CD\n"


async def test_what_is_not_there_is_said(run):
    assert "unknown" in await run("job info f1 jobspec", status=1)
    assert "No such job" in await run("job attach f1", status=1)
    assert "JobID f1 unknown" in await run("jobs f1", status=1)
    assert "removes ended jobs by itself" in await run("job purge", status=1)


async def test_python_clients_submit_wait_and_follow(run):
    said = (await run("python -c", PYTHON)).splitlines()
    assert said[0] == "True COMPLETED"
    assert said[1].split()[-1] == "clean"
    assert said[2:] == ["('stdout', 'hi\\n')", "[0, 0, 0]"]


async def test_batch_and_alloc_run_in_an_instance_of_ours(run, tmp_path):
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


# A real Flux's own commands at our socket, where there is one on PATH: they print what they were seen to print there.
#
# recordings/flux_resource_commands.txt is what a flux-core 0.88 of four ranks, fake[0-3] of two cores, made of them,
# in this order; `[1]` is an exit status.


RECORDED = (Path(__file__).parent / "recordings" / "flux_resource_commands.txt").read_text()
FOLLOW = """
import flux
from flux.constants import FLUX_RPC_STREAMING
handle = flux.Flux()
stream = handle.rpc("resource.acquire", flags=FLUX_RPC_STREAMING)
first = stream.get()
print(sorted(first), first["up"])
stream.reset()
for topic in ("resource.drain", "resource.undrain"):
    handle.rpc(topic, {"targets": "2"}).get()
    print(stream.get())
    stream.reset()
"""


@pytest.fixture
async def shell(flux_commands):
    """shell(line): what it prints, and after it an exit status that is not 0."""
    _, environment = await flux_commands("4x2")

    async def run(line):
        done = await asyncio.to_thread(
            subprocess.run, ["sh", "-c", f"exec 2>&1; {line}"],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=120, check=False,
        )  # fmt: skip
        return done.stdout + (f"[{done.returncode}]\n" if done.returncode else "")

    return run


async def test_commands_print_what_they_print_against_flux(shell):
    first, *blocks = re.split(r"^\$ (.*)\n", RECORDED, flags=re.MULTILINE)
    assert not first
    for line, said in zip(blocks[::2], blocks[1::2], strict=True):
        assert await shell(line) == said, line


async def test_a_python_client_follows_what_it_acquired(world, shell):
    await world.stop(world.instances[0])
    bare = await world.bare(fake="4x2")
    said = await shell(f"FLUX_URI={bare.local_uri} flux python {world.write('follow.py', FOLLOW)}")
    assert said == "['resources', 'up'] 0-3\n{'down': '2'}\n{'up': '2'}\n"


async def test_the_rest_of_the_admins_fingers(shell):
    names = re.findall(r" (restart|resource-define|online|drain) ", await shell("flux resource eventlog --color=never"))
    assert names == ["restart", "resource-define", "online"]
    pinged = await shell("flux ping -c1 resource")
    assert re.fullmatch(r"flux-ping any!resource\n0!resource.ping pad=0 seq=0 time=\S+ ms \(\w+\)\n", pinged)
    assert "broker.ping pad=0 seq=0" in await shell("flux ping -c1 0")
    assert re.match(r" \d\d:\d\d:\d\d run \S+,  owner \w+,  depth 0,  size 4\n", await shell("flux uptime"))
    assert re.search(r"^resource +\d+ +R ", await shell("flux module list"), re.MULTILINE)
    assert '"targets": 4' in await shell("flux module stats resource")
    assert (await shell("! flux module load --name=x sched-simple mode=limited")).startswith(
        "flux-module: load sched-simple: modules of Flux are not loaded here: load a scheduler with `fluxsched"
    )
    assert "Request requires owner credentials" in await shell("FLUX_HANDLE_ROLEMASK=0x2 flux resource drain 0")
    assert "fake[0-3]" in await shell("FLUX_HANDLE_ROLEMASK=0x2 flux resource status")
    assert "log.dmesg is registered: fluxsched has no ring buffer of messages; " in await shell("flux dmesg")
    assert "end this instance with `fluxsched stop`" in await shell("flux shutdown")
