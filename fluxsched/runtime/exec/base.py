"""What every executor is given and what it reports.

An executor never touches job state: it starts, signals and reports. It reports `finished` only when no process of the
job is left, because the resources count as free from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec


class JobLaunch(msgspec.Struct, frozen=True, gc=False):
    """A job that is to run now."""

    jobid: int
    jobspec: Jobspec
    R: Mapping[str, Any]
    """The job's resources as JSON (RFC 20)."""
    environment: Mapping[str, str]
    """Variables that the instance adds (FLUXSCHED_URI and the like)."""
    spool: Path
    """Directory with one directory a job for what its tasks print."""
    cores: Sequence[Idset] | None
    """The processing units of each core id of this machine; None runs tasks unpinned."""
    scratch: Path | None = None
    """Directory with one temporary directory a job; None gives jobs none."""


@dataclass(frozen=True, slots=True)
class Reports:
    """The callbacks to which an executor reports; each is called in a turn."""

    started: Callable[[int], None]
    finished: Callable[[int, int, dict[str, Any] | None], None]
    """(jobid, wait status, what it used if that was measured): no process of the job is left."""
    failed: Callable[[int, str], None]
    """(jobid, note): the job could not be started; it has no process."""
    record: Callable[[int, object | None, Callable[[], None]], None]
    """(jobid, processes or None, then): keep what identifies the processes, call `then` once it is on disk."""
    raised: Callable[[int, str, str], None]
    """(jobid, type, note): a running job must end for this reason; its `kill` follows."""


class Executor(Protocol):
    """Runs jobs in one particular way."""

    def start(self, job: JobLaunch) -> None:
        """Begin; FluxschedError when it cannot even be tried."""
        ...

    def kill(self, jobid: int, signum: int, grace_s: float | None = None) -> None:
        """Signal all tasks of the job; a terminating signal is followed by SIGKILL after `grace_s` (None: as
        configured for all jobs). Of several grace times the one that is over first counts.
        """
        ...

    def close(self) -> None:
        """Kill what runs and wait for it."""
        ...


def spool_directory(spool: Path, jobid: int) -> Path:
    """Where a job's stdout and stderr go when the jobspec names no file."""
    return spool / format_f58(jobid, ascii=True)


def spool_name(stream: str, task: int | None) -> str:
    """The file in a job's spool directory for one stream: of the task of this number, or (None) of its only task."""
    return stream if task is None else f"{stream}.{task}"
