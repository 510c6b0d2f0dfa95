"""A job's temporary directory: its own, of mode 0700, gone with it, and nothing else gone."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest

from fluxsched.errors import Refused
from fluxsched.runtime.exec.tasks import temporary_directory as tmpdir


@pytest.fixture
def scratch(shop: Any, tmp_path: Path) -> Path:
    shop.scratch = tmp_path / "scratch"
    shop.scratch.mkdir(mode=0o700)
    return shop.scratch


async def test_a_job_has_a_tmpdir_that_goes_with_it(shop: Any, scratch: Path) -> None:
    assert await shop.run('echo $TMPDIR $FLUX_JOB_TMPDIR; stat -c %a $TMPDIR; mktemp; echo x >$TMPDIR/file') == 0
    own, mode, made = shop.text().splitlines()
    assert own == f"{scratch}/f2 {scratch}/f2"
    assert mode == "700"
    assert made.startswith(f"{scratch}/f2/")
    assert os.listdir(scratch) == []


async def test_what_is_linked_from_it_stays(shop: Any, scratch: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    (kept / "inside").mkdir(parents=True)
    script = f"cd $TMPDIR; ln -s {kept} link; mkdir -p a/b; ln -s {kept} a/b/link; touch a/b/c; chmod 0 a/b; chmod 0 a"
    before = os.listdir("/proc/self/fd")
    assert await shop.run(script) == 0
    await shop.until(lambda: os.listdir("/proc/self/fd") == before)
    assert os.listdir(scratch) == []
    assert list(kept.iterdir()) == [kept / "inside"]


@pytest.mark.parametrize("more", [0, 1])
async def test_few_files_are_removed_at_once_and_many_by_a_process(
    shop: Any, scratch: Path, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    meanwhile: list[str] = []
    monkeypatch.setattr(tmpdir, "_remove_in_background", meanwhile.append)
    count = tmpdir.INLINE_MAX + more
    assert await shop.run(f"cd $TMPDIR; for n in $(seq {count}); do : > $n; done") == 0
    assert meanwhile == [f"{scratch}/f2"] * more
    assert os.listdir(scratch) == ["f2"] * more


async def test_a_tmpdir_that_is_a_link_by_now_is_only_unlinked(shop: Any, scratch: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    before = os.listdir("/proc/self/fd")
    assert await shop.run(f"rmdir $TMPDIR; ln -s {kept} $TMPDIR") == 0
    await shop.until(lambda: os.listdir("/proc/self/fd") == before)
    assert os.listdir(scratch) == []
    assert (kept / "file").exists()


async def test_a_job_that_cannot_start_leaves_none(shop: Any, scratch: Path) -> None:
    with pytest.raises(Refused):
        shop.start("true", cwd="/nowhere")
    assert os.listdir(scratch) == []


def test_what_the_job_wants_for_tmpdir_wins_unless_it_is_inherited() -> None:
    both = {"FLUX_JOB_TMPDIR": "/own", "TMPDIR": "/own"}
    assert tmpdir.variables("/own", {}) == both
    assert tmpdir.variables("/own", {"TMPDIR": tempfile.gettempdir()}) == both
    assert tmpdir.variables("/own", {"TMPDIR": "/submitter", "FLUX_JOB_TMPDIR": "/submitter"}) == both
    assert tmpdir.variables("/own", {"TMPDIR": "/wanted"}) == {"FLUX_JOB_TMPDIR": "/own"}


def test_a_scratch_directory_that_a_cleaner_took_is_made_anew_and_one_of_others_is_not_used(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    assert stat.S_IMODE(os.stat(tmpdir.make(scratch, 1)).st_mode) == 0o700
    scratch.chmod(0o777)
    with pytest.raises(Refused, match="cannot make the job's temporary directory"):
        tmpdir.make(scratch, 2)
