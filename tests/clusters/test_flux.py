"""Leases in a real Flux, where there is one on PATH."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from fluxsched.clusters.links import FluxLink
from fluxsched.core.jobspec import PartAsked, with_parts
from tests.clusters.conftest import job

pytestmark = pytest.mark.flux


AMEND = """
def amend(R, hwloc_xml=None):
    R["execution"]["properties"] = {"slow": "0-1", "fast": "2-3"}
    return R
"""


@pytest.fixture(params=[()])
def flux(tmp_path, request):
    """A Flux of four made-up nodes of two cores: its uri, and `command(words...)`. Parameter: options of its start."""
    if shutil.which("flux") is None:
        pytest.skip("no flux on PATH: put flux-core 0.88 or later there")
    script = "flux getattr local-uri; read end || exit 0"  # it ends with its input, and Flux with it
    amend = tmp_path / "amend.py"
    amend.write_text(AMEND)
    fake = ["nnodes=4", "cores-per-node=2", f"amend-r={amend}"]
    fake = [f"--conf=fake-resources.{each}" for each in fake]
    words = ["flux", "start", "-s1", *fake, *request.param, "bash", "-c", script]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, text=True, cwd=tmp_path, **pipes) as process:
        uri = process.stdout.readline().strip()

        def command(*arguments):
            return subprocess.check_output(["flux", "proxy", uri, "flux", *arguments], text=True)

        yield uri, command
        process.stdin.close()


async def test_jobs_run_in_a_real_flux_and_others_do_not_get_in_their_way(pair, flux, monkeypatch):
    uri, command = flux
    await pair.open(uri)
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
    await pair.granted(jobid)
    pair.make_late()

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
    pair.forget_returned()
    assert (await pair.wait(jobid))["success"]
    names = command("jobs", "-a", "--no-header", "--format={result}").split()
    assert sorted(names) == ["CANCELED", "CANCELED", "COMPLETED", "FAILED"], "each was sent once, but the returned one"


QUEUES = ('--conf=queues.batch.requires=["slow"]', '--conf=queues.debug.requires=["fast"]')


@pytest.mark.parametrize(
    ("flux", "more"),
    [
        (QUEUES, 'queue = "batch"'),
        ((*QUEUES, "--conf=policy.jobspec.defaults.system.queue=debug"), ""),
    ],
    indirect=["flux"],
)
async def test_the_targets_of_the_queue_there_are_mirrored_and_no_others(pair, flux, more):
    uri, command = flux
    command("queue", "start", "--all")
    await pair.open(uri, more=more)
    found = await pair.cluster()
    assert (found["targets"], found["online"]) == (2, 2)
    fits, larger = [job(nodes=count, exclusive=True, test_run_duration_s=0.01) for count in (2, 3)]
    assert (await pair.wait(await pair.submit(fits)))["success"]
    denied = await pair.wait(await pair.submit(larger))
    assert denied["errstr"].endswith("needs 3 exclusive nodes of 1 core; the group has only 2 such nodes")
    assert command("jobs", "-ano", "{nnodes}").split() == ["2"], "the larger one was sent there"


async def test_a_job_of_parts_does_not_go_to_a_real_flux(pair, flux):
    uri, command = flux
    await pair.open(uri)
    await pair.cluster()
    parts = [PartAsked("a", 1, ["true"]), PartAsked("b", 1, ["true"])]
    denied = await pair.wait(await pair.submit(with_parts(job(nodes=1, exclusive=True), parts)))
    assert "a and b need 2 nodes, the group has no node for any of them" in denied["errstr"], denied
    assert command("jobs", "-ano", "{id}") == ""


async def test_ended_leases_are_listed_on_the_hosts_that_they_had(pair, flux):
    uri, command = flux
    await pair.open(uri)
    await pair.cluster()
    jobs = [await pair.submit(job(test_run_duration_s=0.001)) for _ in range(12)]
    for jobid in jobs:
        assert (await pair.wait(jobid))["success"]
    there = dict(line.split(":") for line in command("jobs", "-a", "-n", "-o", "{id.dec}:{nodelist}").split())
    for jobid in jobs:
        place = (await pair.info(jobid))["annotations"]["lease"]
        assert place.get("nodelist") == there[str(place["id"])], await pair.info(jobid)
