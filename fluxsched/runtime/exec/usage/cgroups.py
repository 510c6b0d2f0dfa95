"""Memory limits by the kernel: a control group (v2) for each job that asked for memory, where one was delegated to us.

Law: only below a group that systemd has delegated (`Delegate=yes`) anything is made or moved; groups of others are
never touched. The kernel lets a group with groups below it have no processes of its own, so what is in it, instance and
keeper, is moved into one of them first. Whatever goes wrong here is an OSError, and the job is watched instead.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from fluxsched.core.jobid import format_f58

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
INSTANCE_NAME = "instance"
DELEGATED = ("user.delegate", "trusted.delegate")
"""How systemd marks a group that it has delegated."""


class Cgroups:
    """The groups of jobs below one delegated group."""

    def __init__(self, group: Path) -> None:
        self.group = group
        self._begun = False

    @classmethod
    def find(cls, root: Path = ROOT, own: Path = OWN) -> Cgroups | None:
        """Those of this process; None where no group with the memory controller is delegated to it."""
        group = group_of(root, own)
        return cls(group) if group is not None and shortcoming(group) is None else None

    def limit(self, jobid: int, pids: Iterable[int], limit_bytes: int) -> None:
        """Have these processes, and what they start, use no more in all. Raises OSError, with nothing limited."""
        self._begin()
        group = self._of(jobid)
        group.mkdir()
        try:
            (group / "memory.max").write_text(str(limit_bytes))
            (group / "memory.oom.group").write_text("1")
            with contextlib.suppress(OSError):  # there is no swap
                (group / "memory.swap.max").write_text("0")
            for pid in pids:
                (group / "cgroup.procs").write_text(str(pid))
        except OSError:
            with contextlib.suppress(OSError):
                for pid in pids:
                    (self.group / INSTANCE_NAME / "cgroup.procs").write_text(str(pid))
                group.rmdir()
            raise

    def change(self, jobid: int, pids: Iterable[int], limit_bytes: int) -> None:
        """Have a job that is limited use so much from now on, with these processes, too. Raises OSError."""
        group = self._of(jobid)
        (group / "memory.max").write_text(str(limit_bytes))
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))

    def end(self, jobid: int) -> int | None:
        """Remove the group of a job that has ended; its peak (bytes) if the kernel has ended it, else None."""
        group, peak = self._of(jobid), None
        with contextlib.suppress(OSError, ValueError):
            events = dict(line.split() for line in (group / "memory.events").read_text().splitlines())
            if int(events.get("oom_kill", 0)) or int(events.get("oom_group_kill", 0)):
                peak = _number(group / "memory.peak") or _number(group / "memory.max") or 0
        with contextlib.suppress(OSError):
            group.rmdir()
        return peak

    def _of(self, jobid: int) -> Path:
        return self.group / f"job-{format_f58(jobid, ascii=True)}"

    def _begin(self) -> None:
        if self._begun:
            return
        inside = self.group / INSTANCE_NAME
        inside.mkdir(exist_ok=True)
        for pid in (self.group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (inside / "cgroup.procs").write_text(pid)
        (self.group / "cgroup.subtree_control").write_text("+memory")
        self._begun = True


def group_of(root: Path = ROOT, own: Path = OWN) -> Path | None:
    """The control group (v2) of this process; None where there are none."""
    try:
        path = next(line[3:] for line in own.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return None
    group = root / path.strip("/")
    if group.name == INSTANCE_NAME and _is_delegated(group.parent):  # where a process of ours has put us all
        group = group.parent
    return group if (group / "cgroup.controllers").exists() else None


def shortcoming(group: Path) -> str | None:
    """Why no job's memory can be limited below a group; None if it can."""
    if not _is_delegated(group):
        return "not delegated to us"
    if not all(os.access(file, os.W_OK) for file in (group, group / "cgroup.procs", group / "cgroup.subtree_control")):
        return "delegated, but not writable"
    try:
        controllers = (group / "cgroup.controllers").read_text().split()
    except OSError as fault:
        return f"delegated, but not readable: {fault.strerror}"
    return None if "memory" in controllers else "delegated without the memory controller"


def _is_delegated(group: Path) -> bool:
    for name in DELEGATED:
        with contextlib.suppress(OSError):
            if os.getxattr(group, name) == b"1":
                return True
    return False


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
