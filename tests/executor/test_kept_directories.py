"""Directories that jobs leave as they got them are given to later jobs; all others are not."""

from __future__ import annotations

import os
import signal

import pytest

from fluxsched.executor import kept_directories
from fluxsched.executor.kept_directories import KEPT_NAME, KeptDirectories


@pytest.fixture
def output():
    return KeptDirectories(("stdout", "stderr"))


@pytest.fixture
def used(tmp_path):
    """The output of a job that has printed nothing."""
    directory = tmp_path / "a"
    directory.mkdir(mode=0o700)
    for name in ("stdout", "stderr"):
        (directory / name).touch(mode=0o600)
    return directory


def test_what_one_job_leaves_unused_is_of_the_next_and_nothing_is_left_under_its_name(output, used, tmp_path):
    inode = used.stat().st_ino
    assert output.keep(str(used))
    assert os.listdir(tmp_path) == [KEPT_NAME]
    assert output.take(str(tmp_path / "b"))
    assert (tmp_path / "b").stat().st_ino == inode
    assert sorted(os.listdir(tmp_path / "b")) == ["stderr", "stdout"]
    assert not output.take(str(tmp_path / "c"))
    assert not (tmp_path / "c").exists()


CHANGES = {
    "printed": lambda path: (path / "stdout").write_text("x"),
    "more files": lambda path: (path / "other").touch(),
    "a file is gone": lambda path: (path / "stdout").unlink(),
    "a file is another": lambda path: ((path / "stdout").unlink(), (path / "stdout").symlink_to("/dev/null")),
    "a second name": lambda path: os.link(path / "stdout", path.parent / "other"),
    "mode": lambda path: path.chmod(0o755),
    "mode of a file": lambda path: (path / "stderr").chmod(0o644),
    "gone": lambda path: path.rename(path.parent / "moved"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_was_changed_is_no_others(output, used, tmp_path, change):
    change(used)
    assert not output.keep(str(used))
    assert not output.take(str(tmp_path / "b"))


def test_what_a_process_can_still_write_into_is_no_others(output, used):
    with (used / "stdout").open("ab"):
        assert not output.keep(str(used))
    assert output.keep(str(used))


def test_an_access_list_is_not_handed_on(output, used):
    try:
        os.setxattr(used, "user.job", b"x")
    except OSError as fault:
        pytest.skip(f"no extended attributes here: {fault}")
    assert not output.keep(str(used))


def test_those_of_a_killed_keeper_are_used_and_those_that_a_cleaner_took_are_passed_over(output, used, tmp_path):
    assert output.keep(str(used))
    later, third = KeptDirectories(("stdout", "stderr")), KeptDirectories()
    assert later.take(str(tmp_path / "b"))
    assert not output.take(str(tmp_path / "c"))
    assert not third.take(str(tmp_path / "c"))


def test_no_more_are_kept_than_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_directories, "KEPT_MAX", 2)
    temporary, kept = KeptDirectories(), []
    for name in "abc":
        (tmp_path / name).mkdir(mode=0o700)
        kept.append(temporary.keep(str(tmp_path / name)))
    assert kept == [True, True, False]


def test_opening_a_file_that_is_looked_at_does_not_end_the_keeper(output):
    assert signal.getsignal(signal.SIGIO) is signal.SIG_IGN


async def test_jobs_in_turn_have_one_directory_until_one_prints(make_shop, tmp_path):
    shop = make_shop(tmp_path, output=KeptDirectories(("stdout", "stderr")))
    try:
        for jobid in (1, 2):
            shop.start("true", jobid=jobid)
            assert await shop.finished(jobid) == 0
            assert os.listdir(shop.spool) == [KEPT_NAME]
            assert len(os.listdir(shop.spool / KEPT_NAME)) == 1, "job 2 got the directory of job 1"
        shop.start("echo printed", jobid=3)
        assert await shop.finished(3) == 0
        assert shop.text(jobid=3) == "printed\n"
        assert os.listdir(shop.spool / KEPT_NAME) == []
    finally:
        shop.executor.close()
        shop.turns.stop()


async def test_a_temporary_directory_is_no_others_while_a_process_that_is_no_task_is_there(make_shop, tmp_path):
    shop = make_shop(tmp_path, temporary=KeptDirectories())
    shop.scratch = tmp_path / "scratch"
    shop.scratch.mkdir(mode=0o700)
    pid = os.posix_spawn("/bin/sleep", ["sleep", "600"], {})
    try:
        assert await shop.run("true") == 0
        assert os.listdir(shop.scratch) == []
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        shop.executor.close()
        shop.turns.stop()
