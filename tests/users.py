"""Users of their own for tests of root, and what they may do: made for a test, and removed with all that they left."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

_NUMBERS = count()


class Account(NamedTuple):
    """A user with a home that others may not read."""

    name: str
    uid: int
    gid: int
    home: Path

    def run(self, call: Callable[[], object]) -> str:
        """Return what a call returns, or raises, in a process of this user."""
        return as_user(self.uid, self.gid, os.getgrouplist(self.name, self.gid), call)


def as_user(uid: int, gid: int, groups: list[int], call: Callable[[], object]) -> str:
    """Return what a call returns, or raises, in a process of this user."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(groups)
            os.setgid(gid)
            os.setuid(uid)
            said = str(call())
        except BaseException as exc:
            said = f"{type(exc).__name__}: {exc}"
        os.write(write_end, said.encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


def make_account(homes: Path) -> Account:
    """Make a user, in a group of its own and in `users`."""
    name = f"fluxt{os.getpid() % 100_000}x{next(_NUMBERS)}"
    home = homes / name
    words = ["useradd", "-M", "-d", str(home), "-s", "/bin/sh", "-U", "-G", "users", name]
    subprocess.run(words, check=True, capture_output=True)
    found = pwd.getpwnam(name)
    home.mkdir(mode=0o700)
    os.chown(home, found.pw_uid, found.pw_gid)
    return Account(name, found.pw_uid, found.pw_gid, home)


def remove_account(account: Account) -> None:
    """Remove a user, if it is still there."""
    subprocess.run(["userdel", account.name], check=False, capture_output=True)


@pytest.fixture(scope="session")
def homes() -> Iterator[Path]:
    """A directory that all users reach, unlike those of pytest."""
    if os.getuid() != 0:
        pytest.skip("only root can make users")
    if shutil.which("useradd") is None:
        pytest.skip("useradd is not on PATH: without it no users are made")
    with tempfile.TemporaryDirectory(prefix="fluxsched-homes-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.fixture(scope="session")
def ann(homes: Path) -> Iterator[Account]:
    """One user."""
    account = make_account(homes)
    yield account
    remove_account(account)


@pytest.fixture(scope="session")
def admin(homes: Path) -> Iterator[Account]:
    """A user whom a configuration may make an admin."""
    account = make_account(homes)
    yield account
    remove_account(account)


@pytest.fixture(scope="session")
def bob(homes: Path) -> Iterator[Account]:
    """Another user."""
    account = make_account(homes)
    yield account
    remove_account(account)
