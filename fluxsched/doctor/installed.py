"""Checks of the installation: what fluxsched needs or can use, and how to get what is missing.

Law: looking changes nothing and never fails: what cannot be found out is a finding, too. Whatever is not as it should
be comes with what to do about it.
"""

from __future__ import annotations

import re
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

from fluxsched import __version__
from fluxsched.config.discovery import LSTOPO
from fluxsched.executor import usage

CheckState = Literal["ok", "none", "warn", "fail"]
"""As it should be; not there, and not needed unless wanted; works, but; does not work and should."""


class Check(NamedTuple):
    """Finding of one check of the doctor."""

    section: str
    name: str
    state: CheckState
    found: str
    remedy: str = ""


def is_well(checks: list[Check]) -> bool:
    """Return whether no check has failed."""
    return all(check.state != "fail" for check in checks)


# ---- what is installed

SECTION = "Installed"
ASK_S = 10.0
"""Time within which a program has to print its version (seconds)."""
FILES_MIN = 4096
"""Open files that an instance should be allowed: two for each running task."""
PYTHON_MIN = (3, 11)
_WATCHED = "the memory of jobs is sampled instead"
EXTRAS = (
    ("matplotlib", "plots", "`fluxsched sim --plot`"),
    ("msgpack", "client", "the plain example client"),
    ("starlette", "web", "`fluxsched web`"),
    ("textual", "tui", "`fluxsched top`"),
    ("grpcio", "si", "`fluxsched si`"),
    ("protobuf", "si", "`fluxsched si`"),
    ("PyYAML", "si", "`fluxsched si`"),
)
"""Packages of extras, and what needs them."""


def installation() -> Iterator[Check]:
    """Look at all of it."""
    yield _python()
    yield Check(SECTION, "fluxsched", "ok", f"{__version__}, {Path(__file__).parents[1]}")
    yield from map(_dependency, ("click", "msgspec", "pyzmq"))
    yield Check(SECTION, "SQLite", "ok", sqlite3.sqlite_version)
    for package, extra, what in EXTRAS:
        yield _extra(package, extra, what)
    yield _lstopo()
    yield _mpi()
    yield _cgroup()
    yield _open_files()


def version_of(words: Sequence[str], pattern: str) -> str | None:
    """Return the version that a program prints, by a pattern with one group; None if the program is missing or prints
    no match.
    """
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=ASK_S, cwd="/"
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(pattern, done.stdout + done.stderr)
    return None if found is None else found[1]


def _python() -> Check:
    text = f"{'.'.join(map(str, sys.version_info[:3]))}, {sys.executable}"
    if sys.version_info[:2] < PYTHON_MIN:
        return Check(SECTION, "Python", "fail", text, "fluxsched needs Python 3.11 or later")
    return Check(SECTION, "Python", "ok", text)


def _dependency(name: str) -> Check:
    try:
        return Check(SECTION, name, "ok", metadata.version(name))
    except metadata.PackageNotFoundError:
        return Check(SECTION, name, "fail", "not installed", f"pip install {name}")


def _extra(package: str, extra: str, what: str) -> Check:
    try:
        return Check(SECTION, package, "ok", f"{metadata.version(package)}, for {what}")
    except metadata.PackageNotFoundError:
        return Check(SECTION, package, "none", f"not installed; {what} needs it", f"pip install 'fluxsched[{extra}]'")


def _lstopo() -> Check:
    found = version_of([LSTOPO, "--version"], r"(\d+(?:\.\d+)+)")
    if found is None:
        remedy = f"install hwloc ({LSTOPO}: package hwloc-nox or hwloc)"
        return Check(SECTION, "hwloc", "none", "not installed; GPUs cannot be detected", remedy)
    return Check(SECTION, "hwloc", "ok", found)


def _mpi() -> Check:
    if shutil.which("mpiexec") is None and shutil.which("mpichversion") is None:
        return Check(SECTION, "MPI", "none", "not on PATH", "install MPICH (package mpich) to run MPI programs as jobs")
    mpich = version_of(["mpichversion"], r"MPICH Version:\s*(\S+)") or version_of(
        ["mpiexec", "--version"], r"HYDRA build details:\s*Version:\s*(\S+)"
    )
    if mpich is not None:
        return Check(SECTION, "MPI", "ok", f"MPICH {mpich}")
    other = version_of(["mpiexec", "--version"], r"\(?(Open MPI\)? \S+)")
    return Check(SECTION, "MPI", "ok", (other or "unknown library").replace(")", ""))


def _cgroup() -> Check:
    group = usage.group_of()
    if group is None:
        remedy = "boot with the unified hierarchy"
        return Check(SECTION, "cgroup v2", "none", f"not mounted at {usage.ROOT}; {_WATCHED}", remedy)
    lack = usage.shortcoming(group)
    if lack is not None:
        remedy = "run the instance under systemd with Delegate=yes, see examples/fluxsched.service"
        return Check(SECTION, "cgroup v2", "none", f"{lack} ({group}); {_WATCHED}", remedy)
    return Check(
        SECTION, "cgroup v2", "ok", f"delegated to this user ({group}), so the kernel limits the memory of jobs"
    )


def _open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft}, may be raised to {'any number' if hard == resource.RLIM_INFINITY else hard}"
    if hard != resource.RLIM_INFINITY and hard < FILES_MIN:
        return Check(SECTION, "open files", "warn", text, f"allow at least {FILES_MIN} (ulimit -Hn, LimitNOFILE=)")
    return Check(SECTION, "open files", "ok", text)
