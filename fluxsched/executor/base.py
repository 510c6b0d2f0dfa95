"""The interface of executors, and process groups, by which tasks are signaled together.

Law: an executor never touches job state: it starts, signals and reports. It reports `finished` only when no process of
the job is left, because the resources count as free from then on. The tasks of a group are reaped once, the first one
last, since its process id is the number of their group until then. A job has one group; an elastic job has one for each
target, since what a target's tasks leave behind must end with them when it is given back.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.quantities import format_duration
from fluxsched.errors import FluxschedError
from fluxsched.executor.wire import PmiFence
from fluxsched.system.loop import ExitWatch, ended_status

EXPIRED = "resource allocation expired"
"""Beginning of the exception note of a job that has exceeded its time limit: Flux's whole note."""


def expired_note(limit_s: float) -> str:
    """Return the note of a job whose time is up, with its limit if that is known (else 0)."""
    return f"{EXPIRED}: its time limit was {format_duration(round(limit_s, 3))}" if limit_s > 0.0 else EXPIRED


ENDING = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGQUIT))
"""Signals that ask a task to end; SIGKILL follows if it does not."""
TERMINATING = ENDING | {signal.SIGKILL}
"""Signals with which a job is to end."""


class TaskSettings(msgspec.Struct, frozen=True, gc=False):
    """Settings that all jobs of an executor share."""

    environment: Mapping[str, str]
    """Variables that the instance adds (FLUXSCHED_URI and the like)."""
    spool: Path
    """Directory with one directory a job for what its tasks print."""
    cores: Sequence[Idset] | None = None
    """The processing units of each core id of this machine; None runs tasks unpinned."""
    scratch: Path | None = None
    """Directory with one temporary directory a job; None gives jobs none."""
    run_as_user: bool = False
    """True if tasks run as the users of their jobs, at keepers of root."""

    def user_of(self, userid: int) -> int | None:
        """Return the user as whom tasks of this user's jobs run; None: as the keeper's."""
        return userid if self.run_as_user and userid != os.geteuid() else None


class JobLaunch(msgspec.Struct, frozen=True, gc=False):
    """Job that is to run now: the facts of `wire.StartJob`, and the settings that go before it."""

    jobid: int
    jobspec: Jobspec
    R: Mapping[str, Any]
    """Resources of the job as JSON (RFC 20)."""
    settings: TaskSettings
    attempt: int = 0
    """Number of times that the job was preempted before, under other ids."""
    expiration_s: float = 0.0
    """Wall time at which the job expires, 0 if never: for an executor that outlives the instance and ends the job
    itself.
    """
    ranks: Idset | None = None
    """The targets of R whose tasks are to run here; None if all are."""
    first: int = 0
    """Number of its first task: not 0 for targets that a running job gets."""
    is_shared: bool = False
    """True if other hosts run tasks of the job: no task runs before the processes of all are on record."""
    beside: int = 0
    """Job beside whose tasks this command runs (`executor.hosts`), so that it has that id; 0 for a job."""
    userid: int | None = None
    """User as whom its tasks run, another one than root; None: the keeper's own."""


class ResumedJob(NamedTuple):
    """Job that was to run when the previous instance ended."""

    launch: JobLaunch
    record: object | None
    """Identification of the job's processes; None if the job never ran, since the record is stored before it runs."""
    begun_s: float | None
    """Wall time at which the job was started, None if not stored."""
    is_ending: bool = False
    """True if the job was to be ended."""
    grace_s: float | None = None
    """Time within which a job that was to be ended must end (seconds; None: as configured for all jobs)."""
    going: Idset = EMPTY
    """Targets that it was to give back, whose release is not stored; its R may have them or not."""
    perilog: str = ""
    """The last event about programs before and after it; empty if there was none."""
    freed: Idset = EMPTY
    """Targets of its R that it has released, and that others may have."""


StoreOutput = Callable[[JobLaunch, str, int, bytes], int]
"""Function of (job, name, offset, data) that stores bytes of a file in the job's spool directory on another host, and
returns how many bytes of it are stored then.
"""
Window = tuple[int, int]
"""Rows and columns of a terminal."""


class InputPlace(Protocol):
    """Destination of input for the tasks of a running job."""

    def send(
        self, data: bytes, tasks: Idset | None, *, eof: bool, answered: InputAnswer, window: Window | None = None
    ) -> None:
        """Send data, and with `eof` its end, to these tasks or to all, and to a terminal the size of its window;
        `answered` is called once there is room for more, or with the reason why there is none. Raises FluxschedError
        for input that cannot be sent at all.
        """
        ...


InputAnswer = Callable[[FluxschedError | None], None]


Measured = Callable[[dict[str, Any] | None], None]
"""Function of the usage of a job as `Reports.finished` has it; None where it is not known."""


def no_op(*report: object) -> None:
    """Do nothing with a report, or after it."""


def _at_once(then: Callable[[], None]) -> None:
    then()


@dataclass(frozen=True, slots=True)
class PerilogReports:
    """The callbacks for jobs before and after which programs of the site run."""

    noted: Callable[[int, str, dict[str, Any]], None]
    """(jobid, name, context): log this event, which is about a program."""
    unprepared: Callable[[int, str], None]
    """(jobid, note): a program before the job has failed; the job has no process, and waits again."""
    ended: Callable[[int, int, dict[str, Any] | None], None]
    """As `finished`, but its resources are in use until `freed`."""
    failed: Callable[[int, str, bool], None]
    """As `failed`, or with True as `node_failed`, but its resources are in use until `freed`."""
    freed: Callable[[int], None]
    """(jobid): nothing is left to do for a job that has ended."""
    drain: Callable[[str, str, str], None]
    """(host, reason, what): a program, such as `prolog`, has failed there."""


@dataclass(frozen=True, slots=True)
class Reports:
    """The callbacks to which an executor reports; each is called in a turn."""

    started: Callable[[int], None]
    finished: Callable[[int, int, dict[str, Any] | None], None]
    """(jobid, wait status, what it used if that was measured): no process of the job is left."""
    failed: Callable[[int, str], None]
    """(jobid, note): the job could not be started; it has no process."""
    record: Callable[[int, object | None, Callable[[], None] | None], None]
    """(jobid, processes or None, then): keep what identifies the processes; `then`, if given, is called once that is on
    disk.
    """
    raised: Callable[[int, str, str], None]
    """(jobid, type, note): a running job must end for this reason; its `kill` follows."""
    opened: Callable[[int], None] = no_op
    """(jobid): the job's tasks take input from now on."""
    stored: Callable[[Callable[[], None]], None] = _at_once
    """(then): call `then` once all that was reported before is on disk."""
    released: Callable[[int, Idset], None] = no_op
    """(jobid, ranks): a running job that was to shrink has no process on these targets any more."""
    lost: Callable[[int, Idset, str], None] = no_op
    """(jobid, ranks, note): a running job goes on, though its tasks on these targets have failed and none is left."""
    fence: Callable[[PmiFence], None] = no_op
    """(fence): news of the job's tasks here for those of its other hosts; repeated until the job has ended."""
    spooled: Callable[[int, Sequence[str]], None] = no_op
    """(jobid, names): tasks that are about to run print into these files of the job's spool directory."""
    node_failed: Callable[[int, str], None] = no_op
    """(jobid, note): as `failed`, since a machine on which the job ran was lost."""
    closed: Callable[[int, Sequence[str]], None] = no_op
    """(jobid, names): of these files, as far as there are such, tasks of a running job print into none any more."""
    perilog: PerilogReports | None = None
    """Reports of an executor that runs programs before and after jobs."""


class Executor(Protocol):
    """Runs jobs in one particular way."""

    def resume(self, jobs: Sequence[ResumedJob], records: Mapping[int, object], settled: Callable[[], None]) -> None:
        """Take up the jobs of the instance before; called once, before all else, in the first turn.

        `records` are all that it left, by job id: nothing of them is left, or it is one of the jobs, when `settled` is
        called.
        """
        ...

    def start(self, job: JobLaunch) -> None:
        """Begin; FluxschedError when it cannot even be tried."""
        ...

    def limit(self, jobid: int, expiration_s: float) -> None:
        """Change the time at which the job expires."""
        ...

    def input_of(self, jobid: int) -> InputPlace | None:
        """Return the destination of input for the job's tasks; None unless they run.

        Raises Refused if they accept none.
        """
        ...

    def kill(self, jobid: int, signum: int, grace_s: float | None = None) -> None:
        """Signal all tasks of the job; a terminating signal is followed by SIGKILL after `grace_s` (None: as
        configured for all jobs). Of several grace times the one that is over first counts.
        """
        ...

    def measure(self, jobid: int, measured: Measured) -> None:
        """Find what the tasks of a running job have used so far, and call `measured` with it once."""
        ...

    def grow(self, jobid: int, r: Mapping[str, Any]) -> None:
        """Give a running job these targets too (`r`, R of them alone): the tasks of their part are started there, under
        new task ids. Idempotent: targets that it has are passed over. A job that has ended meanwhile is no error.
        """
        ...

    def shrink(self, jobid: int, ranks: Idset, grace_s: float | None = None) -> None:
        """Ask the tasks on these targets of a running job to end, which does not fail it, and kill them after
        `grace_s` (None: as configured for all jobs). `released` is reported of each target once nothing of the job is
        left there, unless `finished` is reported before. Idempotent.
        """
        ...

    def give_back(self, jobid: int, ranks: Idset) -> None:
        """Release targets on which a job that is an instance, and was shrunk by them, reports no remaining use.

        Raises Refused for a job that is none.
        """
        ...

    def close(self) -> None:
        """Kill the running processes and wait for their end."""
        ...

    def detach(self, within_s: float) -> None:
        """End without ending the jobs, which the next instance resumes within this time (seconds)."""
        ...


def spool_directory(spool: Path, jobid: int) -> Path:
    """Return the directory of a job's stdout and stderr if the jobspec names no file."""
    return spool / format_f58(jobid, ascii=True)


def spool_name(stream: str, task: int | None) -> str:
    """Return the file in a job's spool directory for one stream: of the task of this number, or (None) of its only
    task.
    """
    return stream if task is None else f"{stream}.{task}"


# ---- process groups


class EndedTask(NamedTuple):
    """Result of wait4(2) for a task."""

    task: int
    pid: int
    status: int
    used: resource.struct_rusage
    counts: bool
    """True if the task's status is part of the job's: not if the task was asked to end because the job was to shrink.
    """


class ProcessGroup:
    """The processes of some tasks, whose numbers follow each other from `first` on."""

    __slots__ = ("_counted", "first", "going", "path", "pgid", "pids", "rank", "reaped", "watch", "watched")

    def __init__(self, rank: int | None, first: int, path: str) -> None:
        """`rank` is the target that they end with, None if that is the job; `path` is in their environment."""
        self.rank = rank
        self.first = first
        self.path = path
        self.pgid = 0
        """The number of the group; 0 before it has a task."""
        self.pids: list[int] = []
        self.watched = 0
        """Tasks that are known to have ended."""
        self.watch: ExitWatch | None = None
        self.going = False
        self.reaped = False
        self._counted: set[int] = set()

    def add(self, pid: int) -> None:
        """Add the process of a task."""
        self.pgid = self.pgid or pid
        self.pids.append(pid)

    def signal(self, signum: int) -> None:
        """Send a signal to the whole group; only while its first task is not reaped."""
        if self.pids and not self.reaped:
            # a process that is gone or not ours to signal is no error: the check for survivors decides
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pgid, signum)

    def first_running(self) -> int | None:
        """Return the first task that has not ended, None if all have."""
        while self.watched < len(self.pids):
            if not _has_ended(self.pids[self.watched]):
                return self.pids[self.watched]
            self.watched += 1
        return None

    def mark_leaving(self) -> None:
        """Mark the group's target as being given back: later ends of its tasks do not affect the job's status."""
        self.going = True
        self._counted = {pid for pid in self.pids if _has_ended(pid)}

    def ended_statuses(self) -> Iterator[int]:
        """Return the wait statuses of tasks that have ended, and are not reaped, for reasons of their own."""
        for pid in self.pids if not self.reaped else ():
            status = ended_status(pid)
            if status is not None and (not self.going or pid in self._counted):
                yield status

    def stop_watching(self) -> None:
        """Close the watch of the processes. Idempotent."""
        if self.watch is not None:
            self.watch.close()
            self.watch = None

    def reap(self, options: int = 0) -> Iterator[EndedTask]:
        """Yield the tasks' wait statuses and usage, the first task's last; nothing the second time."""
        if self.reaped:
            return
        self.reaped = True
        for at in reversed(range(len(self.pids))):
            pid = self.pids[at]
            _, status, used = os.wait4(pid, options)
            yield EndedTask(self.first + at, pid, status, used, not self.going or pid in self._counted)


def kill(groups: list[ProcessGroup]) -> None:
    """End all that is left of these groups."""
    for group in groups:
        group.signal(signal.SIGKILL)


def _has_ended(pid: int) -> bool:
    return ended_status(pid) is not None
