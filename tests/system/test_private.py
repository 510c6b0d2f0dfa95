"""What an instance writes is its owner's alone, whatever the umask and whatever stood there."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fluxsched.web.access import write_address

User, Daemons = Any, Any
OTHER_USER = 65534


def open_to_others(*roots: Path) -> Iterator[str]:
    """What somebody else could read, write or enter."""
    for root in roots:
        for path in [root, *root.rglob("*")]:
            mode = path.lstat().st_mode
            if mode & 0o077 and not stat.S_ISLNK(mode):
                yield f"{path} {stat.filemode(mode)}"


@pytest.mark.parametrize("umask", [0o000, 0o277], ids=oct)
def test_all_that_is_written_is_the_owners_alone_under_any_umask(user: User, umask: int) -> None:
    """State, its log and index, spools, logs, locks, sockets, `instance.json`; but not what a job writes."""
    user.environ["XDG_STATE_HOME"] = str(user.directory / "home")
    (user.directory / "home").mkdir()
    script = "fluxsched run --env=SECRET=x echo hello; fluxsched submit --output=mine sh -c 'umask; sleep 60'"
    waits = "; while ! test -s mine; do sleep 0.05; done; ls -lR state fluxsched-* > listed; cp -r -p state copy"
    user.process("start", "--fake", "1x2", "--statedir", "state", "--", "sh", "-c", script + waits, umask=umask)
    state, home = user.directory / "state", user.directory / "home" / "fluxsched"
    assert (state / "state.sqlite").exists()
    assert (user.directory / "copy" / "state.sqlite-wal").exists()
    listed = (user.directory / "listed").read_text()
    assert "instance.json" in listed
    modes = re.findall(r"^[-ds]([-rwxst]{9}) .*", listed, re.MULTILINE)
    assert len(modes) > 8
    assert not [mode for mode in modes if mode[3:] != "------"], listed
    assert not list(open_to_others(state, home, user.directory / "copy"))
    mine = user.directory / "mine"
    assert stat.S_IMODE(mine.stat().st_mode) == 0o666 & ~umask, "a file of the user's choice follows the umask"
    assert int(mine.read_text(), 8) == umask


def test_nothing_in_the_directories_of_an_instance_that_runs_is_open_to_others(user: User) -> None:
    """Jobs with input, output and files, a key of its own, the page, a listener, logs: under an umask of 0."""
    user.environ["XDG_CONFIG_HOME"] = str(user.directory / "config")
    options = ("--statedir", "state", "--web", "--bind", "tcp://127.0.0.1:0", "--fake", "1x4")
    user.process("keygen", "--server", umask=0)
    here = user.at(user.process("start", "--daemon", *options, umask=0).word)
    try:
        (user.directory / "batch.sh").write_text("#!/bin/sh\nfluxsched run echo inside\n")
        here("run", "-n", "2", "echo", "hello")
        here("wait", here("batch", "-n", "1", "batch.sh").word)
        runs = here.running("cat")
        user.process("keygen", "viewer", umask=0)
        here("web", "--address")
        rundir = Path(here("uri").word.removeprefix("ipc://")).parent
        made = [path for root in (user.directory / "state", rundir) for path in root.rglob("*")]
        assert {"state.sqlite", "state.sqlite-wal", "address", "web.address", "instance.json", "log", "lock"} <= {
            path.name for path in made
        }
        assert [path for path in made if runs in path.parts or path.suffix == ".sock"]
        assert not list(open_to_others(user.directory / "state", rundir, user.directory / "config"))
    finally:
        here("stop")


def test_a_state_directory_that_is_open_to_others_is_closed_and_that_is_said(user: User) -> None:
    state = user.directory / "state"
    user.shell("true", "--fake", "1x1", "--statedir", state)
    for path in [state, *state.rglob("*")]:
        path.chmod(0o777)
    done = user.shell("true", "--fake", "1x1", "--statedir", state)
    assert f"state directory {state} was open to others (mode 0777), now it is yours alone (0700)" in done.err
    assert not [name for name in ("state.sqlite", "logs", "jobs") if (state / name).stat().st_mode & 0o077]
    assert stat.S_IMODE(state.stat().st_mode) == 0o700


def test_an_empty_directory_becomes_a_state_directory_and_a_daemon_says_so(user: User, daemon: Daemons) -> None:
    state = user.directory / "state"
    state.mkdir()
    state.chmod(0o755)
    done = user.process("start", "--daemon", "--fake", "1x1", "--statedir", state)
    user.at(done.word)("stop")
    assert "was open to others (mode 0755)" in done.err
    assert not list(open_to_others(state))


def test_a_directory_with_other_things_in_it_is_refused_and_left_alone(user: User) -> None:
    """`--statedir /tmp` as root must not take /tmp from everybody."""
    shared = user.directory / "shared"
    shared.mkdir()
    (shared / "thesis.txt").write_text("x")
    shared.chmod(0o1777)
    done = user.process("start", "--fake", "1x1", "--statedir", shared, "--", "true", status=1)
    assert f"state directory {shared} is open to others (mode 1777) and has other files in it" in done.err
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1777
    assert os.listdir(shared) == ["thesis.txt"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory to somebody else")
def test_a_state_directory_of_another_user_is_refused(user: User) -> None:
    state = user.directory / "state"
    state.mkdir(mode=0o700)
    os.chown(state, OTHER_USER, OTHER_USER)
    done = user.process("start", "--fake", "1x1", "--statedir", state, "--", "true", status=1)
    assert f"state directory {state} belongs to nobody, who could read and change its contents" in done.err
    assert not os.listdir(state)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory to somebody else")
def test_logs_are_not_kept_in_a_directory_of_another_user(user: User) -> None:
    home = user.directory / "home" / "fluxsched"
    (home / "logs").mkdir(parents=True, mode=0o777)
    for path in (home, home / "logs"):
        os.chown(path, OTHER_USER, OTHER_USER)
    user.environ["XDG_STATE_HOME"] = str(home.parent)
    done = user.shell("true", "--fake", "1x1")
    assert "the log cannot be kept" in done.err
    assert not os.listdir(home / "logs")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link to another user")
def test_a_directory_behind_a_link_of_another_user_is_refused_and_left_alone(user: User) -> None:
    mine, link = user.directory / "mine", user.directory / "link"
    mine.mkdir()
    mine.chmod(0o755)
    link.symlink_to(mine)
    os.chown(link, OTHER_USER, OTHER_USER, follow_symlinks=False)
    done = user.process("start", "--fake", "1x1", "--statedir", link, "--", "true", status=1)
    assert f"state directory {link} is a symbolic link of" in done.err
    assert (stat.S_IMODE(mine.stat().st_mode), os.listdir(mine)) == (0o755, [])
    os.chown(link, 0, 0, follow_symlinks=False)
    user.shell("true", "--fake", "1x1", "--statedir", link)
    assert (mine / "state.sqlite").exists(), "a link of one's own is followed"


def test_a_draft_is_not_written_through_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("x")
    (tmp_path / ".address").symlink_to(precious)
    write_address(tmp_path / "address", "http://localhost/?token=t")
    assert (tmp_path / "address").read_text() == "http://localhost/?token=t\n"
    assert stat.S_IMODE((tmp_path / "address").stat().st_mode) == 0o600
    assert precious.read_text() == "x"
