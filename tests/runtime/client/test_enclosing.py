"""What an instance inside another one is told by its environment, and tells what runs in it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fluxsched.runtime.client.enclosing import Parent, attributes_of, environment_of, inside, job_variables
from fluxsched.runtime.system.paths import base_directory, level_here

PARENT = Parent("ipc:///run/fluxsched-0-a/instance.sock", "local:///run/fluxsched-0-a/local-0", 1)


def test_an_initial_program_is_not_the_job_that_its_instance_is() -> None:
    """FLUX_JOB_ID of the outer instance was looked up in the inner one: `start` in a `start` in a job failed."""
    job = {"FLUX_JOB_ID": "ƒA", "FLUX_JOB_SIZE": "1", "FLUX_TASK_RANK": "0", "PMI_FD": "5", "FLUX_JOB_CC": "3"}
    kept = {"FLUX_JOB_TMPDIR": "/tmp/x", "PATH": "/bin", "HOME": "/root", "FLUXSCHED_LEVEL": "1"}
    found = inside({**job, **kept, "FLUXSCHED_PARENT_URI": "ipc:///stale"}, {"FLUXSCHED_LEVEL": "2"})
    assert job.keys() & found.keys() == set()
    assert "FLUXSCHED_PARENT_URI" not in found
    assert (found["FLUX_ENCLOSING_ID"], found["FLUXSCHED_LEVEL"], found["HOME"]) == ("ƒA", "2", "/root")


def test_outside_of_our_instances_a_job_id_is_foreign() -> None:
    assert inside({"FLUX_JOB_ID": "ƒA", "PATH": "/bin"}, {})["FLUX_JOB_ID"] == "ƒA"


def test_a_script_finds_our_commands() -> None:
    ours = str(Path(sys.executable).parent)
    assert inside({"PATH": "/nowhere"}, {})["PATH"] == f"/nowhere{os.pathsep}{ours}"
    assert inside({"PATH": ours}, {})["PATH"] == ours


def test_level_and_parent_are_told_to_all_that_runs_inside() -> None:
    assert environment_of("ipc:///x", None) == {"FLUXSCHED_URI": "ipc:///x", "FLUXSCHED_LEVEL": "1"}
    assert environment_of("ipc:///x", PARENT) == {
        "FLUXSCHED_URI": "ipc:///x", "FLUXSCHED_LEVEL": "3", "FLUXSCHED_PARENT_URI": PARENT.uri,
    }  # fmt: skip
    mine = job_variables("ipc:///x", "local:///x", PARENT)
    assert (mine["FLUXSCHED_URI"], mine["FLUX_URI"]) == ("ipc:///x", "local:///x")
    assert attributes_of(None) == {"instance-level": "0"}
    assert attributes_of(PARENT) == {"instance-level": "2", "parent-uri": PARENT.local_uri}
    assert attributes_of(PARENT._replace(local_uri=None)) == {"instance-level": "2"}


@pytest.mark.parametrize(("text", "level"), [("", 0), ("2", 2), ("x", 0), ("-1", 0), ("9" * 5000, 0)])
def test_a_level_that_is_no_number_is_none(text: str, level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUXSCHED_LEVEL", text)
    assert level_here() == level


def test_a_nested_instance_lives_beside_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not below the job's TMPDIR: its socket's path would be too long, and nobody would look there."""
    here = tmp_path / "job"
    here.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(here))
    monkeypatch.setenv("FLUXSCHED_URI", f"ipc://{tmp_path}/fluxsched-0-a/instance.sock")
    monkeypatch.delenv("FLUXSCHED_LEVEL", raising=False)
    assert base_directory() == here
    monkeypatch.setenv("FLUXSCHED_LEVEL", "1")
    assert base_directory() == tmp_path
    monkeypatch.setenv("FLUXSCHED_URI", "tcp://127.0.0.1:5")
    assert base_directory() == here
