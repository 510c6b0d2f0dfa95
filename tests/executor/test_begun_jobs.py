"""Notes of keepers on jobs that they begin by themselves: what is read of them when a keeper is gone."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from fluxsched.executor.begun_jobs import BegunJobs, ahead_record, begun_jobs
from fluxsched.system.processes import own_identity

OWN = {**own_identity(), "path": "fOuter"}


@pytest.fixture
def begun(tmp_path: Path) -> BegunJobs:
    return BegunJobs(str(tmp_path / "keeper-1"), OWN)


def test_what_was_noted_is_read_by_others(begun: BegunJobs, tmp_path: Path) -> None:
    for jobid in (7, 1 << 63, 10):  # 10 is the byte at which the head ends
        assert begun.note(jobid)
    other = BegunJobs(str(tmp_path / "keeper-2"), {**OWN, "pid": 2})
    other.note(8)
    assert begun_jobs(tmp_path, [7, 8, 9]) == {7: ahead_record(OWN, 7), 8: ahead_record({**OWN, "pid": 2}, 8)}
    assert begun_jobs(tmp_path).keys() == {7, 8, 10, 1 << 63}
    assert begun_jobs(tmp_path)[7] == {**own_identity(), "path": "fOuter/f8", "ahead": True}
    assert sorted(os.listdir(tmp_path)) == ["keeper-1.begun", "keeper-2.begun"]


def test_a_place_is_used_again_when_its_job_is_forgotten(begun: BegunJobs, tmp_path: Path) -> None:
    for jobid in (1, 2, 3):
        begun.note(jobid)
    size = (tmp_path / "keeper-1.begun").stat().st_size
    begun.forget(2)
    begun.forget(9)
    assert begun_jobs(tmp_path).keys() == {1, 2, 3}, "which says nothing of a job that has ended"
    begun.note(4)
    assert begun_jobs(tmp_path).keys() == {1, 3, 4}
    assert (tmp_path / "keeper-1.begun").stat().st_size == size


def test_a_note_that_cannot_be_taken_is_none(begun: BegunJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*written: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        assert not begun.note(1)
    assert begun.note(2)
    assert begun_jobs(tmp_path).keys() == {2}


@pytest.mark.parametrize("place", [b"", b"\0" * 8, b"\1\0"], ids=["lost", "empty", "torn"])
def test_after_a_boot_any_job_may_have_been_begun(tmp_path: Path, place: bytes) -> None:
    before = {**OWN, "boot_id": "an earlier one"}
    (tmp_path / "keeper-1.begun").write_bytes(json.dumps(before).encode() + b"\n" + place)
    assert begun_jobs(tmp_path, [1, 2]) == {jobid: ahead_record(before, jobid) for jobid in (1, 2)}
    assert begun_jobs(tmp_path) == {}, "nothing of them is left to be ended"


@pytest.mark.parametrize("text", [b"", b"[]\n", b"{}\n", b"\xff\n"])
def test_a_file_that_cannot_be_read_may_name_any_job(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "keeper-1.begun").write_bytes(text)
    assert begun_jobs(tmp_path, [1]) == {1: {}}
    assert begun_jobs(tmp_path) == {}


@pytest.mark.parametrize("removes", [True, False])
def test_the_file_is_removed_if_no_job_needs_it(begun: BegunJobs, tmp_path: Path, removes: bool) -> None:
    begun.close(removes=removes)
    assert os.listdir(tmp_path) == ([] if removes else ["keeper-1.begun"])
