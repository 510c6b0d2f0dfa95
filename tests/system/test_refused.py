"""What a job may not ask for, and why one that may still waits: each reason in words of the user."""

from __future__ import annotations

import json
import re
import resource
from typing import Any

import pytest

from fluxsched.core.jobid import format_f58

CONFIG = """
[[resource.config]]
hosts = "n[0-3]"
cores = "0-3"

[[resource.config]]
hosts = "n[0-1]"
cores = "0-3"
gpus = "0-1"
properties = ["ssd"]

[queues.batch]
[queues.big]
requires = ["ssd"]

[policy.jobspec.defaults.system]
queue = "batch"
"""


TOO_SMALL = "no node is large enough: the largest that matches has 4 cores and 2 gpus"


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory, site: Any) -> Any:
    """Queues of all kinds on made-up targets."""
    config = tmp_path_factory.mktemp("config") / "site.toml"
    config.write_text(CONFIG.split("\n\n", 2)[2])
    uri = site.process("start", "--daemon", "--config", config, "--fake", "4x4+2").word
    here = site.at(uri)
    here("resource", "property", "add", "0-1", "ssd")
    yield here
    here("stop")


@pytest.fixture(autouse=True)
def _leave_nothing_behind(named: Any) -> Any:
    yield
    named("cancel", "--all")


@pytest.mark.parametrize(
    ("words", "want"),
    [
        (["-n17"], "needs 17 slots of 1 core; the group has only 16 such slots"),
        (["-N5"], "needs 5 nodes of 1 core; the group has only 4 such nodes"),
        (["-c5"], f"needs 1 slot of 5 cores; {TOO_SMALL}"),
        (["-g3"], f"needs 1 slot of 1 core, 3 gpus; {TOO_SMALL}"),
        (["-q", "big", "-N3"], "needs 3 nodes of 1 core with ssd; the group has only 2 such nodes"),
        (["--requires", "tape"], "needs 1 slot of 1 core with tape; no node of the group matches"),
        (["--requires", "host:n9"], "needs 1 slot of 1 core with hosts n9; no node of the group matches"),
        (["--setattr", 'system.constraints={"not":[]}'], "; no node of the group matches"),
    ],
)
def test_what_can_never_run_is_denied_with_the_reason(named: Any, words: list[str], want: str) -> None:
    """At submission, unless the job is submitted past that: then the scheduler denies it."""
    found = named("submit", *words, "true", status=1)
    assert re.match(r"fluxsched: submit: can never run(?: in queue big)?: needs ", found.err)
    assert want in found.err
    with named.connect() as handle:
        jobid = format_f58(handle.submit(named("submit", "--dry-run", *words, "true").json))
    found = named("wait", jobid, status=1)
    assert found.err.startswith(f"fluxsched: wait: {jobid}: exception alloc: ")
    assert want in found.err
    assert found.err.count("\n") == 1
    assert want in named("jobs", "-n", "-o", "endreason", jobid).out


def test_why_a_job_waits(named: Any, until: Any) -> None:
    def why(*words: object, want: str) -> None:
        jobid = named.submit(*words, "true")
        until(lambda: named("job", "why", jobid).line == f"SCHED: {want}")
        until(lambda: want in named("jobs", "-n", jobid).out)
        named("cancel", jobid)

    holder = named.running("-N1", "-x", "--requires", "ssd", "sleep", "100")
    named("resource", "drain", "3", "fan")
    why("-N2", "--requires", "ssd", want="needs 2 nodes of 1 core with ssd; 1 node fits now, 1 node is busy")
    why("-N4", want="needs 4 nodes of 1 core; 2 nodes fit now, fake3 is out of service, 1 node is busy")
    named("resource", "undrain", "3")
    named("cancel", holder)


def bombs() -> dict[str, Any]:
    slot = {"type": "slot", "count": 1, "label": "default", "with": [{"type": "core", "count": 1}]}
    deep: dict[str, Any] = slot
    for _ in range(300):
        deep = {"type": "node", "count": 1, "with": [deep]}
    constraint: dict[str, Any] = {"properties": ["x"]}
    for _ in range(200):
        constraint = {"not": [constraint]}
    return {
        "deep": {"resources": [deep]},
        "wide": {"resources": [slot] * 10_000},
        "huge count": {"resources": [slot | {"count": 10**30}]},
        "negative": {"resources": [slot | {"count": -1}]},
        "unknown type": {"resources": [slot | {"with": [{"type": "qubit", "count": 1}]}]},
        "no core": {"resources": [slot | {"with": []}]},
        "deep constraint": {"attributes": {"system": {"duration": 0, "constraints": constraint}}},
        "odd constraint": {"attributes": {"system": {"duration": 0, "constraints": {"xor": []}}}},
        "no command": {"tasks": [{"command": [], "slot": "task", "count": {"per_slot": 1}}]},
        "odd duration": {"attributes": {"system": {"duration": "soon"}}},
        "version": {"version": 9},
    }


@pytest.mark.parametrize("name", list(bombs()))
def test_a_jobspec_bomb_is_refused_politely(named: Any, name: str) -> None:
    """By the command line, and by the instance for those who do not use it; the part is named, the instance lives."""
    good = named("submit", "--dry-run", "true").json
    bomb = good | bombs()[name]
    path = named.directory / "bomb.json"
    path.write_text(json.dumps(bomb))
    found = named("job", "submit", path, status=1)
    assert found.err.startswith("fluxsched: job submit: ")
    assert len(found.err) < 400
    with named.connect() as handle, pytest.raises(Exception, match=r"\w") as refused:
        handle.rpc("job-manager.submit", {"jobspec": bomb})
    assert len(str(refused.value)) < 400
    named("run", "true")


def test_a_file_that_is_no_jobspec(named: Any) -> None:
    path = named.directory / "bomb.json"
    for text in ('{"resources":' * 100_000, "[" * 100_000 + "]" * 100_000, "{", "[]", "", "\0", "9" * 10**6):
        path.write_text(text)
        found = named("job", "submit", path, status=1)
        assert found.err.startswith("fluxsched: job submit: jobspec ")
        assert len(found.err) < 400


def test_more_tasks_than_one_machine_runs(daemon: Any) -> None:
    here = daemon("--fake", "100x64")
    found = here("run", "-n5000", "true", status=1)
    assert "the job has 5000 tasks: one machine runs at most 4096 a job" in found.err
    here("run", "-n64", "true")


@pytest.mark.parametrize("daemon", [(), ("--daemon",)], ids=["here", "daemon"])
def test_too_few_open_files_are_named_before_anything_starts(user: Any, daemon: tuple[str, ...]) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (24, 4096))

    done = user.process("start", "--fake", "1x1", *daemon, status=1, preexec_fn=limit)
    said = "24 open files are allowed, an instance needs 64 at least: allow more (`ulimit -n 64`)"
    assert done.err == f"fluxsched: start: {said}\n"
