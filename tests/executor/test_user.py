"""Tasks of users' jobs: whoever they are and whatever they name, root's processes open nothing for them."""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import stat
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fluxsched.errors import Refused
from fluxsched.executor.layout import make
from fluxsched.executor.user import CAPABILITY_VERSION, KEYCTL, KEYCTL_JOIN_SESSION_KEYRING, become
from fluxsched.system.processes import group_living
from tests.users import Account, make_account, remove_account

pytestmark = pytest.mark.alone

Shop = Any
LIBC = ctypes.CDLL(None)
SKIPPED = 77

SHOWN = (
    "/usr/bin/env; id -u; id -G; umask; grep -E '^(Cap(Inh|Prm|Eff|Amb)|Uid|Gid)' /proc/self/status; "
    "ls -l /proc/self/fd"
)


@pytest.fixture
def site(shop: Shop, homes: Path) -> Shop:
    """An executor whose scratch directory is where users reach it."""
    shop.scratch = homes / f"scratch-{os.urandom(4).hex()}"
    return shop


async def failed(shop: Shop, command: str, **options: Any) -> str:
    """Why a job could not be started: at once, or when its process has said so."""
    jobid = 1
    try:
        shop.start(command, jobid, **options)
    except Refused as fault:
        return str(fault)
    await shop.until(lambda: any(said[:2] == ("failed", jobid) for said in shop.said))
    return next(str(said[2]) for said in shop.said if said[:2] == ("failed", jobid))


async def test_a_task_has_the_user_the_groups_and_no_power(site: Shop, ann: Account) -> None:
    assert await site.run(SHOWN, userid=ann.uid) == 0
    text = site.text()
    groups = " ".join(map(str, os.getgrouplist(ann.name, ann.gid)))
    assert f"\n{ann.uid}\n{groups}\n0022\n" in text
    assert f"Uid:\t{ann.uid}\t{ann.uid}\t{ann.uid}\t{ann.uid}" in text
    assert f"Gid:\t{ann.gid}\t{ann.gid}\t{ann.gid}\t{ann.gid}" in text
    assert text.count("\t0000000000000000") == 4, "it has no capability"
    descriptors = {line.split()[8] for line in text.splitlines() if " -> " in line}
    assert descriptors == {"0", "1", "2", "3"}, "3 is the directory that ls reads"


async def test_roots_environment_is_not_passed_on(site: Shop, ann: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_ROOT", "x")
    assert await site.run("/usr/bin/env", userid=ann.uid, environment={"MINE": "1"}) == 0
    found = dict(line.split("=", 1) for line in site.text().splitlines())
    assert "SECRET_OF_ROOT" not in found
    assert found["MINE"] == "1"
    assert (found["HOME"], found["USER"], found["LOGNAME"]) == (str(ann.home), ann.name, ann.name)


async def test_the_hostfile_is_the_users(site: Shop, ann: Account) -> None:
    command = 'stat -c %u "$HOSTS" && cat "$HOSTS"'
    assert await site.run(command, userid=ann.uid, templates={"HOSTS": "{{hostfile}}"}) == 0
    assert site.text() == f"{ann.uid}\na0\n"


async def test_files_are_opened_as_the_user(site: Shop, ann: Account, homes: Path) -> None:
    (ann.home / "in").write_text("hello\n")
    done = {"cwd": str(ann.home), "input": "in", "output": "out.{{taskid}}", "error": "err", "ntasks": 2}
    assert await site.run("cat; pwd; echo bad >&2", userid=ann.uid, **done) == 0
    for name in ("out.0", "out.1", "err"):
        found = (ann.home / name).stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (ann.uid, ann.gid, 0o644), name
    assert (ann.home / "out.1").read_text() == f"hello\n{ann.home}\n"
    assert (ann.home / "err").read_text() == "bad\nbad\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"output": "{bob}/out"}, "cannot open '{bob}/out' for the job's output: Permission denied"),
        ({"error": "/etc/err"}, "cannot open '/etc/err' for the job's output: Permission denied"),
        ({"input": "{bob}/secret"}, "cannot open '{bob}/secret' for the job's input: Permission denied"),
        ({"input": "/etc/shadow"}, "cannot open '/etc/shadow' for the job's input: Permission denied"),
        ({"cwd": "{bob}"}, "cannot change to the job's working directory '{bob}' as its user: Permission denied"),
        ({"cwd": "/nowhere"}, "working directory '/nowhere' as its user: No such file or directory"),
        ({"output": "{ann}/link"}, "cannot open '{ann}/link' for the job's output: Permission denied"),
    ],
)
async def test_what_the_user_may_not_open_ends_the_job_with_a_reason(
    site: Shop, ann: Account, bob: Account, homes: Path, options: dict[str, str], said: str
) -> None:
    (bob.home / "secret").write_text("secret")
    (bob.home / "secret").chmod(0o644)
    roots = homes / "roots"
    roots.write_text("kept")
    if not (ann.home / "link").is_symlink():
        (ann.home / "link").symlink_to(roots)
    named = {key: value.format(ann=ann.home, bob=bob.home) for key, value in options.items()}
    reason = await failed(site, "echo x > ran", userid=ann.uid, **{"cwd": str(ann.home), **named})
    assert said.format(ann=ann.home, bob=bob.home) in reason
    assert not (ann.home / "ran").exists(), "nothing of it has run"
    assert roots.read_text() == "kept"
    assert not (bob.home / "out").exists()


@pytest.mark.parametrize("userid", [0, 4_000_000_000])
async def test_who_is_unknown_or_root_is_refused(site: Shop, userid: int) -> None:
    reason = await failed(site, "echo ran", userid=userid)
    assert ("has the user or the group of root" if userid == 0 else "has no account on this host") in reason


async def test_a_user_who_is_gone_is_refused(site: Shop, homes: Path) -> None:
    gone = make_account(homes)
    remove_account(gone)
    reason = await failed(site, "echo ran", userid=gone.uid)
    assert f"user {gone.uid}, whose job this is, has no account on this host" in reason


async def test_an_account_in_roots_group_is_refused(site: Shop, homes: Path) -> None:
    account = make_account(homes)
    try:
        subprocess.run(["usermod", "-g", "0", account.name], check=True)
        assert "has the user or the group of root" in await failed(site, "echo ran", userid=account.uid)
    finally:
        remove_account(account)


def test_the_change_is_complete_or_refused(ann: Account) -> None:
    assert ann.run(lambda: become(ann.uid)).startswith("PermissionError"), "only root can change"

    def twice() -> object:
        become(ann.uid)
        return become(0)

    child = os.fork()
    if child == 0:
        try:
            twice()
            os._exit(1)
        except (Refused, PermissionError):
            os._exit(0)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def exit_of(call: Callable[[], bool]) -> int:
    """The status of a process of root that calls this: 0 for True."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(not call())
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_no_capability_is_inherited(ann: Account) -> None:
    def has_none() -> bool:
        everything = (ctypes.c_uint32 * 6)(*[0xFF, 0xFF, 0xFF, 0, 0, 0])
        assert LIBC.capset((ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), everything) == 0
        assert "CapInh:\t00000000000000ff" in Path("/proc/self/status").read_text()
        become(ann.uid)
        return "CapInh:\t0000000000000000" in Path("/proc/self/status").read_text()

    assert exit_of(has_none) == 0


def test_the_keys_of_roots_session_are_not_the_users(ann: Account) -> None:
    keyctl, add_key = KEYCTL[os.uname().machine], {"x86_64": 248, "aarch64": 217}[os.uname().machine]
    session, read = -3, 11

    def is_hidden() -> bool:
        if LIBC.syscall(keyctl, KEYCTL_JOIN_SESSION_KEYRING, None) < 0:
            os._exit(SKIPPED)
        key = LIBC.syscall(add_key, b"user", b"fluxsched-test", b"secret", 6, session)
        assert key > 0
        assert LIBC.syscall(keyctl, read, key, None, 0) == 6
        become(ann.uid)
        return bool(LIBC.syscall(keyctl, read, key, None, 0) < 0)

    status = exit_of(is_hidden)
    if status == SKIPPED:
        pytest.skip("this kernel or container has no keyrings")
    assert status == 0


def test_what_is_not_a_program_yet_has_memory_of_root_and_is_closed_to_its_user(ann: Account) -> None:
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            become(ann.uid)
            os.write(writes, b"x")
            signal.pause()
        finally:
            os._exit(2)
    os.close(writes)
    try:
        assert os.read(reads, 1) == b"x"
        for name in ("environ", "mem"):
            assert ann.run(partial(open, f"/proc/{child}/{name}")).startswith("PermissionError"), name
        assert ann.run(lambda: os.listdir(f"/proc/{child}/fd")).startswith("PermissionError")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reads)


async def test_the_temporary_directory_is_the_users_alone(site: Shop, ann: Account, bob: Account) -> None:
    assert await site.run('cd "$TMPDIR" && echo mine > file && stat -c "%u %a" . && pwd', userid=ann.uid) == 0
    owner, path = site.text().splitlines()
    assert owner == f"{ann.uid} 700"
    assert not Path(path).exists(), "it is gone with the job"
    mine = make(site.scratch, 7, userid=ann.uid)
    assert bob.run(lambda: os.listdir(mine)).startswith("PermissionError")
    assert bob.run(lambda: os.listdir(site.scratch)).startswith("PermissionError")
    assert ann.run(lambda: os.listdir(mine)) == "[]"


async def test_what_root_removes_is_no_file_behind_a_link(site: Shop, ann: Account, homes: Path) -> None:
    kept = homes / f"kept-{os.urandom(4).hex()}"
    kept.mkdir(mode=0o755)
    (kept / "file").write_text("kept")
    descriptors = len(os.listdir("/proc/self/fd"))
    many = "for i in $(seq 40); do mkdir -p d$i/x; chmod 000 d$i/x; done"
    assert await site.run(f'cd "$TMPDIR" && ln -s {kept} link && {many}', userid=ann.uid) == 0
    await site.until(lambda: not list(site.scratch.glob("*")))
    await site.until(lambda: len(os.listdir("/proc/self/fd")) == descriptors)  # rm(1), too, has ended
    assert (kept / "file").read_text() == "kept"


async def test_output_that_is_kept_can_be_reopened_by_its_user_alone(site: Shop, ann: Account, bob: Account) -> None:
    assert await site.run("echo again > /dev/stdout; cat /dev/stdin </dev/stdin & wait", userid=ann.uid) == 0
    assert site.text() == "again\n"
    found = (site.spool / "f2").stat() if (site.spool / "f2").exists() else next(site.spool.glob("*")).stat()
    assert stat.S_IMODE(found.st_mode) == 0o700
    assert found.st_uid == 0


async def test_no_process_of_root_is_left_for_a_users_job(site: Shop, ann: Account) -> None:
    """Figure: 0 root processes started for a user's job after the change of user."""
    site.start("sleep 60 & sleep 60 & sleep 60 & wait", userid=ann.uid, ntasks=4)
    await site.until(lambda: ("started", 1) in site.said)
    group = site.records[1]["pid"]

    def users() -> list[int]:
        found = []
        for pid in group_living(group):
            with suppress(OSError):
                found.append(os.stat(f"/proc/{pid}").st_uid)
        return found

    await site.until(lambda: len(users()) >= 16)  # four shells, each with three programs
    assert set(users()) == {ann.uid}
    site.executor.kill(1, 9)
    await site.finished()


async def test_a_file_that_does_not_open_holds_up_no_other_job(site: Shop, ann: Account, bob: Account) -> None:
    fifo = ann.home / f"fifo-{os.urandom(4).hex()}"
    os.mkfifo(fifo, 0o600)
    os.chown(fifo, ann.uid, ann.gid)
    site.start("cat", jobid=1, userid=ann.uid, input=str(fifo))
    site.start("echo done", jobid=2, userid=bob.uid)
    assert await site.finished(2) == 0
    site.executor.kill(1, 9)
    await site.finished(1)


def test_the_accounts_of_these_tests_are_there(ann: Account) -> None:
    assert pwd.getpwuid(ann.uid).pw_dir == str(ann.home)
