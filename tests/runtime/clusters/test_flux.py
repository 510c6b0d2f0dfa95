"""Leases in a real Flux, where there is one on PATH."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from fluxsched.runtime.clusters.flux import FluxLink

from .conftest import job

pytestmark = pytest.mark.flux


@pytest.fixture
def flux(tmp_path):
    """A Flux of four made-up nodes of two cores: its uri, and `command(words...)`."""
    if shutil.which("flux") is None:
        pytest.skip("no flux on PATH: put flux-core 0.88 or later there")
    script = "flux getattr local-uri; read end || exit 0"  # it ends with its input, and Flux with it
    fake = ["--conf=fake-resources.nnodes=4", "--conf=fake-resources.cores-per-node=2"]
    words = ["flux", "start", "-s1", *fake, "bash", "-c", script]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, text=True, cwd=tmp_path, **pipes) as process:
        uri = process.stdout.readline().strip()

        def command(*arguments):
            return subprocess.check_output(["flux", "proxy", uri, "flux", *arguments], text=True)

        yield uri, command
        process.stdin.close()


async def test_jobs_run_in_a_real_flux_and_others_do_not_get_in_their_way(pair, flux, monkeypatch):
    uri, command = flux
    await pair.open(uri, more='return-after = "2s"')
    found = await pair.cluster()
    assert (found["kind"], found["state"], found["targets"], found["online"]) == ("flux", "connected", 4, 4)
    jobid = await pair.submit(job("sh", "-c", "echo hello; exit 3"))
    answer = await pair.wait(jobid)
    assert (answer["success"], answer["status"]) == (False, 3 << 8)
    stream, printed = pair.near.open("job-manager.output", {"id": jobid, "follow": True}), b""
    while (piece := await pair.near.next(stream)).errnum == 0:
        printed += piece.payload["data"]
    assert printed == b"hello\n"
    running = await pair.submit(job("sleep", "100", nodes=1, exclusive=True))
    here = await pair.info(running)
    await pair.begun()
    assert here["name"] == "sleep"
    await pair.near.ok("job-manager.cancel", {"id": running})
    assert (await pair.wait(running))["errstr"] == "exception cancel"
    monkeypatch.setattr(FluxLink, "_queue_status", lambda *_: None)  # or nothing would be sent
    command("queue", "stop")
    jobid = await pair.submit(job("true"))

    async def is_returned():
        return [one for one in await pair.jobs(pair.near) if one.get("requeue_of") == jobid]

    assert await pair.until(is_returned)
    monkeypatch.undo()

    async def is_stopped():
        return "its queue is stopped" in (await pair.cluster())["note"]

    assert await pair.until(is_stopped)
    bounded = await pair.wait(await pair.submit(job(nodes=2, exclusive=True, max_hops=2)))
    assert "no [topology]" in bounded["errstr"], "Flux tells of no switches"
    command("queue", "start")
    assert (await pair.wait(jobid))["success"]
    names = command("jobs", "-a", "--no-header", "--format={result}").split("\n")
    assert len([line for line in names if "COMPLETED" in line]) == 1
    assert len([line for line in names if line]) == 4
