"""Nested instances: `batch`, `alloc`, what stock Flux's batch hands in, and how one finds the other.

Each costs the start of an instance, so a test asks much of one.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from fluxsched.core.jobspec import Jobspec

EXAMPLE = Path(__file__).parents[2] / "examples/batch.sh"
FLUX_BATCH = "#!/bin/sh\necho $0 $*\nfluxsched resource list -n -o '{state} {nnodes} {ncores}'\nexit 7\n"


def flux_jobspec(user: Any, script: str, *args: str, **resources: Any) -> dict[str, Any]:
    """The jobspec that `flux batch` 0.88 hands in."""
    jobspec = Jobspec.from_command(
        ["flux", "broker", "{{tmpdir}}/script", *args],
        cwd=str(user.directory), environment=user.environment, output="flux-{{id}}.out", name="job.sh", **resources,
    ).to_json()  # fmt: skip
    system = jobspec["attributes"]["system"]
    system["shell"]["options"] |= {"per-resource": {"type": "node"}, "mpi": "none", "exit-timeout": "none"}
    system["files"] = {
        "script": {"mode": 0o100700, "size": len(script), "encoding": "utf-8", "data": script},
    }
    return jobspec


def script(user: Any, text: str) -> str:
    (user.directory / "job.sh").write_text(f"#!/bin/sh\n{text}")
    return "job.sh"


def table(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_a_jobspec_of_flux_batch_runs_as_a_nested_instance(site: Any) -> None:
    with site.connect() as handle:
        jobid = handle.submit(flux_jobspec(site, FLUX_BATCH, "one", ntasks=4, nodes=2))
        assert handle.wait(jobid)["status"] == 7 << 8
    [output] = site.directory.glob("flux-*.out")
    first, *rest = table(output.read_text())
    output.unlink()
    assert first[0].endswith("/script")
    assert first[1:] == ["one"]
    assert rest == [["free", "2", "4"], ["allocated", "0", "0"], ["down", "0", "0"]]
    assert not Path(first[0]).exists()


def test_the_example_script_runs_as_under_real_flux(user: Any) -> None:
    """What is expected is what flux-core 0.88 wrote for the same script."""
    user.shell(f"fluxsched batch --quiet --wait {EXAMPLE} a b", "--test-size", "2", status=4)
    assert (user.directory / "example.out").read_text().splitlines() == [
        "hello, world: a b",
        "1 node, 2 cores",
        "task 0 of 2",
        "task 1 of 2",
        "a task failed with 3",
        "the first is done",
        "first 1 CD",
        "second 1 CD",
    ]


def test_what_runs_in_batch_finds_its_instance_and_the_parent(site: Any) -> None:
    text = """#flux: -n2 --output=kvs
fluxsched jobs -n -o '{name}' -a | wc -l
fluxsched --parent jobs -n -o '{name} {state}'
fluxsched --parent uri; fluxsched uri --parent; echo $FLUXSCHED_PARENT_URI
fluxsched instances -n -o '{level} {size}'
echo $FLUXSCHED_LEVEL $FLUX_ENCLOSING_ID ${FLUX_JOB_ID-none} ${FLUX_URI%%:*}
fluxsched run sh -c 'fluxsched uri; echo $FLUXSCHED_URI; echo $FLUXSCHED_LEVEL; echo ${FLUX_URI%%:*}'
"""
    jobid = site("batch", script(site, text)).word
    site("wait", jobid)
    lines = site("job", "output", jobid).out.splitlines()
    assert lines[:2] == ["0", "job.sh RUN"]
    assert lines[2:5] == [site.uri] * 3
    assert table("\n".join(lines[5:7])) == [["0", "4"], ["1", "1"]]
    assert lines[7] == f"2 {jobid} none local"
    assert lines[8] == lines[9] != site.uri
    assert lines[10:12] == ["2", "local"]


@pytest.mark.usefixtures("real")
def test_modules_of_the_directory_are_not_ours(user: Any) -> None:
    """A scheduler imported json.py of the directory that its instance was started in, which may be that of a job."""
    (user.directory / "json.py").write_text("raise SystemExit('not the json that was meant')\n")
    found = user.shell("fluxsched batch -n1 --quiet --wait --output=out --wrap fluxsched run echo ran", "--fake", "1x1")
    assert found.err == ""
    assert (user.directory / "out").read_text() == "ran\n"


def test_a_script_is_stored_when_it_is_submitted(site: Any) -> None:
    assert site("run", "sh", "-c", "test {{tmpdir}} = $FLUX_JOB_TMPDIR").status == 0
    name = script(site, "echo as submitted\n")
    jobid = site("batch", "-n1", "--urgency=hold", "--output=none", name).word
    script(site, "echo edited\n")
    site("urgency", jobid, "default")
    site("wait", jobid)
    assert site("job", "output", jobid).out == "as submitted\n"


@pytest.mark.usefixtures("real")
def test_everything_inside_ends_with_the_job(daemon: Any, until: Any, alive: Any) -> None:
    """Nested in nested; one leaves its process group. Canceled here; a time limit and a failure end the same way."""
    site = daemon("--fake", "1x4")
    text = """fluxsched batch -n1 --output=none --wrap 'echo $$ >b; exec sleep 600'
setsid sh -c 'echo $$ >c; exec sleep 600' &
fluxsched submit sh -c 'echo $$ >a; exec sleep 600'
sleep 600
"""
    jobid = site("batch", "-n2", "--output=none", script(site, text)).word
    files = [site.directory / name for name in "abc"]
    until(lambda: all(file.exists() and file.read_text().strip() for file in files))
    pids = [int(file.read_text()) for file in files]
    assert all(map(alive, pids))
    levels = [row["level"] for row in site("instances", "--json").json["instances"]]
    assert levels == [0, 1, 2]
    site("cancel", jobid)
    site("wait", jobid, status=128 + signal.SIGTERM)
    assert not any(map(alive, pids))


def test_a_batch_job_ends_when_its_time_is_over(site: Any) -> None:
    jobid = site("batch", "-n1", "-t", "1.5s", "--output=none", script(site, "sleep 600\n")).word
    site("wait", jobid, status=None)
    assert site.info(jobid)["exception"]["type"] == "timeout"


def test_alloc_runs_a_command_here_in_an_instance_of_its_own(daemon: Any, tmp_path: Path) -> None:
    config = tmp_path / "site.toml"
    config.write_text('[[resource.config]]\nhosts = "fake[0-1]"\ncores = "0-3"\namounts = { disk = 64 }\n')
    user = daemon("--fake", "2x4+1", "--config", config)
    inner = "fluxsched resource R; echo $PPID $FLUX_ENCLOSING_ID; fluxsched run -n2 -g0 echo task; exit 4"
    found = user.process("alloc", "-n2", "-N1", "-g0", "--request", "disk=16", "sh", "-c", inner, status=4)
    resources, identity, *tasks = found.out.splitlines()
    assert '"children": {"core": "0-1"}' in resources
    assert '"disk": 32' in resources
    assert tasks == ["task", "task"]
    [row] = user("jobs", "-a", "--json").json["jobs"]
    assert (row["success"], row["name"]) == (True, "sh")
    assert identity.split()[1] == user("jobs", "-a", "-n", "-o", "{id.f58}").word
    assert user.process("alloc", "-n1", "no-such-command", status=127).err.endswith("No such file or directory\n")


def test_the_command_of_alloc_ends_with_its_job_and_the_job_with_alloc(site: Any) -> None:
    found = site.process("alloc", "-n1", "-t", "2.5s", "sleep", "600", status=None)
    assert found.status in (1, 128 + signal.SIGTERM, 128 + signal.SIGHUP)  # 1: it was over before it was up
    assert "exception timeout" in found.err
    with site.popen("alloc", "-n1", "sh", "-c", "echo $FLUX_ENCLOSING_ID; exec sleep 600") as process:
        jobid = process.stdout.readline().strip()
        assert jobid, process.communicate(timeout=60)
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, said
    site("wait", jobid, status=None)
    assert site.info(jobid)["exception"]["note"] == "alloc was interrupted"


def test_alloc_in_the_background_and_how_to_get_in(site: Any) -> None:
    jobid = site("alloc", "-n2", "--bg").word
    inner = site("uri", jobid).word
    with site.at(inner).connect() as handle:
        info = handle.rpc("instance.info")
        assert (info["level"], info["parent"], info["size"]) == (1, site.uri, 1)
        local = handle.rpc("attr.get", {"name": "local-uri"})["value"]
        assert handle.rpc("attr.get", {"name": "instance-level"})["value"] == "1"
        assert handle.rpc("attr.get", {"name": "parent-uri"})["value"] == site("uri", "--local").word
    assert site("uri", "--local", jobid).word == local
    assert site("jobs", "-n", "-o", "{uri}", jobid).word == inner
    assert site.info(jobid)["annotations"]["user"] == {"uri": local, "fluxsched_uri": inner}
    assert site.process("proxy", jobid, "fluxsched", "uri").word == inner
    assert site.process("proxy", jobid, "sh", "-c", "exit 5", status=5).err == ""
    site("stop", "--uri", inner)
    site("wait", jobid)
    assert "is not a running instance" in site("uri", jobid, status=1).err


def test_a_nested_instance_is_never_the_default(user: Any, daemon: Any) -> None:
    outer = daemon("--fake", "1x2")
    jobid = outer("alloc", "-n1", "--bg").word
    assert user("uri").word == outer.uri
    assert user("stop").word == f"stopped {outer.uri}"
    assert jobid


def test_instances_says_which_one_does_not_answer(daemon: Any) -> None:
    user = daemon("--fake", "3x1", "--scheduler", "none")
    pid = user.pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        [row] = user("instances", "--json").json["instances"]
        assert (row["pid"], row["state"], row["size"]) == (pid, "silent", 3)
    finally:
        os.kill(pid, signal.SIGCONT)
    [line] = table(user("instances", "-n").out)
    assert line[:3] == [str(pid), "0", "3"]
    assert line[4:] == ["run", user.uri]
