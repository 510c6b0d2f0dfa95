"""Output of tasks on another host: its keeper sends what they write into its spool, and the instance stores it.

Law: a byte is sent from the file in which the task wrote it, at its offset, until the instance has answered that it is
stored; so a connection that ends, on either side, loses nothing and repeats nothing. Only so many bytes may be
unanswered (the credit), of one job and of all: neither side keeps more in memory, and jobs and tasks take turns. An
instance whose disk is full stores nothing and answers with the size that the file has; the keeper tries again later,
and the tasks never wait. A job's end is reported when all that it has written is stored.

A file of the user's choice that tasks of several hosts share is written by the instance alone, since appending over NFS
is not atomic: keepers spool what their tasks write there under a reserved name, and send it in whole lines. How much of
each is in the user's file is on disk before every append, with the size that the file had: so an instance that was
killed between the two knows by the file's size.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import structs

from fluxsched.core.idset import EMPTY
from fluxsched.core.jobid import format_f58
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import FluxschedError, Refused
from fluxsched.executor import layout
from fluxsched.executor import wire as msg
from fluxsched.executor.base import JobLaunch, spool_directory, spool_name
from fluxsched.executor.io import FILE_MODE, SHARED, SPOOL_FLAGS, SPOOL_MODE, USER_FLAGS, refused, shared_files
from fluxsched.executor.layout import system_bytes
from fluxsched.system.log import logger, of_job
from fluxsched.system.loop import PIECE_ITEMS, Timer, Turns

log = logger("output")


@dataclass(frozen=True, slots=True)
class ForwardLimits:
    """Limits of output that is sent before the instance has answered."""

    piece_bytes: int = 64 << 10
    """Bytes of output in one message, at the most."""
    job_credit_bytes: int = 1 << 20
    """Bytes of one job that the instance has not answered: 20 MB/s at an instance that takes 50 ms to answer."""
    credit_bytes: int = 4 << 20
    """Bytes of all jobs that the instance has not answered, which it may have to hold for each host."""
    look_s: float = 0.1
    """Interval of looking for new output (seconds)."""
    looks: int = 1024
    """Files looked at in one interval (some 2 ms): two a task, so 512 tasks on a host are read within it."""
    turn_pieces: int = 32
    """Messages sent in one turn."""
    free_bytes: int = 1 << 20
    """Stored bytes of a file whose space on the host is given back together: its disk, often memory, holds only what is
    to be sent.
    """
    retry_s: float = 1.0
    """Time after which a piece that was not stored is sent again (seconds)."""


FORWARD_LIMITS = ForwardLimits()


class _File:
    """One file in the spool directory of a job, and how much of it was sent and stored."""

    __slots__ = ("ends", "freed", "is_closed", "is_ready", "is_short", "name", "sent", "stored")

    def __init__(self, name: str) -> None:
        self.name = name
        self.sent = 0
        self.stored = 0
        self.freed = 0
        """Bytes whose space was given back: a multiple of `free_bytes`."""
        self.ends: deque[tuple[int, int]] = deque()
        """End and size of the pieces that are not answered."""
        self.is_ready = False
        """True if it is known to have bytes that were not sent."""
        self.is_closed = False
        """True if no task writes into it any more."""
        self.is_short = False
        """True if a piece was not stored, so that all from there on is sent again."""


class _Job:
    """A job whose output is followed."""

    __slots__ = (
        "at", "directory", "files", "is_full", "is_queued", "is_seen", "jobid", "left", "ready", "retry", "short",
        "then", "unanswered_bytes",
    )  # fmt: skip

    def __init__(self, jobid: int, directory: str) -> None:
        self.jobid = jobid
        self.directory = directory
        self.files: dict[str, _File] = {}
        self.at: Iterator[_File] = iter(())
        """The files that are looked at next."""
        self.left = 0
        """Files that are not looked at yet in this interval."""
        self.ready: deque[_File] = deque()
        self.short: list[_File] = []
        """Files of which a piece was not stored."""
        self.unanswered_bytes = 0
        self.is_queued = False
        self.is_full = False
        """True if the instance had no room for its last piece: then only one is sent at a time."""
        self.then: Callable[[], None] | None = None
        """Function to be called once the tasks have ended and all that they wrote is stored."""
        self.is_seen = False
        """True if all files were looked at after the tasks had ended."""
        self.retry: Timer | None = None

    def next_file(self) -> _File:
        """Return the file that is to be looked at, all in turn."""
        file = next(self.at, None)
        if file is None:
            self.at = iter(list(self.files.values()))
            file = next(self.at)
        return file


class OutputForwarder:
    """Keeper's side: follows the files of its jobs, and sends what is new in them."""

    def __init__(
        self, turns: Turns, send: Callable[[msg.JobOutput], None], limits: ForwardLimits = FORWARD_LIMITS
    ) -> None:
        self._turns = turns
        self._send = send
        self._limits = limits
        self._jobs: dict[int, _Job] = {}
        self._running: dict[int, _Job] = {}
        """Jobs whose tasks may write, in the order of looking at them."""
        self._queue: deque[_Job] = deque()
        """Jobs with bytes that may be sent."""
        self._unanswered_bytes = 0
        self._is_connected = False
        self._timer: Timer | None = None
        self._is_posted = False

    # -- jobs ---------------------------------------------------------------------------------------------------

    def begin(self, jobid: int, directory: Path) -> None:
        """Prepare for a job with this spool directory, which is removed with the job."""
        self._jobs[jobid] = _Job(jobid, str(directory))

    def follow(self, jobid: int, names: Sequence[str]) -> None:
        """Send what tasks of the job write into these files, too."""
        job = self._jobs.get(jobid)
        if job is not None and names and job.then is None:
            job.files |= {name: _File(name) for name in names if name not in job.files}
            self._running[jobid] = job
            self._look_later()

    def close_files(self, jobid: int, names: Sequence[str]) -> None:
        """Follow these files, which are not written any more, until all that is in them is stored."""
        job = self._jobs.get(jobid)
        if job is not None:
            for name in job.files.keys() & names:
                job.files[name].is_closed = True

    def finish(self, jobid: int, then: Callable[[], None]) -> None:
        """Call `then` once all is stored that the job's tasks, which have ended, have written."""
        job = self._jobs.get(jobid)
        if job is None:
            then()
            return
        self._running.pop(jobid, None)
        job.then = then
        sweep = self._sweep(job)
        if len(job.files) > PIECE_ITEMS:
            self._turns.spread(sweep)
        else:
            for _ in sweep:
                pass

    def _sweep(self, job: _Job) -> Iterator[None]:
        for at, file in enumerate(list(job.files.values()), 1):
            self._look_at(job, file)
            if not at % PIECE_ITEMS:
                yield
        job.is_seen = True
        self._pump()
        self._check_done(job)

    def give_up(self, jobid: int) -> None:
        """Report the end of a job that only waits for room at the instance, without the rest of its output."""
        job = self._jobs.get(jobid)
        if job is not None and job.is_full and job.then is not None:
            log.error("job %s: output is lost, for which the instance had no room", format_f58(jobid))
            self._done(job, job.then)

    def remove(self, jobid: int) -> None:
        """Remove a job, and its spool directory: its end is stored."""
        job = self._jobs.pop(jobid, None)
        if job is not None:
            self._running.pop(jobid, None)
            self._clear(job)
            layout.remove(job.directory)

    def _clear(self, job: _Job) -> None:
        """Send nothing more of a job."""
        self._unanswered_bytes -= job.unanswered_bytes
        job.unanswered_bytes = 0
        job.files.clear()
        job.ready.clear()
        job.short.clear()
        if job.retry is not None:
            job.retry.cancel()

    def _check_done(self, job: _Job) -> None:
        if job.then is not None and job.is_seen and not (job.ready or job.short or job.unanswered_bytes):
            self._done(job, job.then)

    def _done(self, job: _Job, then: Callable[[], None]) -> None:
        job.then = None
        self._clear(job)
        then()

    # -- the connection -----------------------------------------------------------------------------------------

    def connected(self) -> None:
        """Send on a new connection, from what is known to be stored on."""
        self.disconnected()
        self._is_connected = True
        for job in self._jobs.values():
            self._enqueue(job)
        self._look_later(0.0)
        self._pump()

    def disconnected(self) -> None:
        """Take the end of the connection: nothing is answered any more."""
        self._is_connected = False
        self._unanswered_bytes = 0
        for job in self._jobs.values():
            job.unanswered_bytes, job.is_full = 0, False
            job.short.clear()
            for file in job.files.values():
                if file.ends or file.is_short:
                    self._rewind(job, file, file.stored)

    def answered(self, one: msg.OutputStored) -> None:
        """Take the instance's answer to the oldest unanswered piece of this file."""
        job = self._jobs.get(one.jobid)
        file = None if job is None else job.files.get(one.name)
        if job is None or file is None or not file.ends:
            return
        end, size = file.ends.popleft()
        job.unanswered_bytes -= size
        self._unanswered_bytes -= size
        if one.offset >= end:
            file.stored = max(file.stored, one.offset)
            file.sent = max(file.sent, file.stored)
            job.is_full = False
            self._free(job, file)
        elif not file.is_short:
            job.is_full = file.is_short = True
            job.short.append(file)
            if job.retry is None:
                job.retry = self._turns.after(self._limits.retry_s, self._retry, job)
        if file.is_short:
            file.stored = one.offset
        self._enqueue(job)
        self._pump()
        self._check_done(job)

    def _free(self, job: _Job, file: _File) -> None:
        """Give back the space of what is stored; the file keeps its size, since tasks append to it."""
        until = file.stored - file.stored % self._limits.free_bytes
        if until > file.freed:
            with contextlib.suppress(OSError):
                give_back_space(f"{job.directory}/{file.name}", file.freed, until)
            file.freed = until

    def _retry(self, job: _Job) -> None:
        """Send again what was not stored, unless pieces behind it are not answered yet."""
        job.retry = None
        waiting, job.short = job.short, []
        for file in waiting:
            if file.ends:
                job.short.append(file)
            else:
                self._rewind(job, file, file.stored)
        if job.short:
            job.retry = self._turns.after(self._limits.retry_s, self._retry, job)
        self._enqueue(job)
        self._pump()

    def _rewind(self, job: _Job, file: _File, offset: int) -> None:
        file.sent = file.stored = offset
        file.ends.clear()
        file.is_short = False
        self._ready(job, file)

    # -- new output ---------------------------------------------------------------------------------------------

    def _look_later(self, delay_s: float | None = None) -> None:
        if self._timer is None and self._running and self._is_connected:
            self._timer = self._turns.after(self._limits.look_s if delay_s is None else delay_s, self._look)

    def _look(self) -> None:
        """Look at files of all jobs in turn; where there are too many, jobs that were passed over are next."""
        self._timer = None
        if not self._is_connected:
            return
        todo, done = deque([job for job in self._running.values() if job.files]), list[_Job]()
        for job in todo:
            job.left = len(job.files)
        for _ in range(self._limits.looks):
            if not todo:
                break
            job = todo.popleft()
            self._look_at(job, job.next_file())
            job.left -= 1
            (todo if job.left else done).append(job)
        if todo:
            self._running |= {job.jobid: self._running.pop(job.jobid) for job in done}
        self._pump()
        self._look_later()

    def _look_at(self, job: _Job, file: _File) -> None:
        if not (file.is_ready or file.is_short):
            try:
                size = os.stat(f"{job.directory}/{file.name}").st_size
            except OSError:  # removed by a task
                return
            if size > file.sent:
                self._ready(job, file)
            elif file.is_closed and not file.ends:
                job.files.pop(file.name, None)

    def _ready(self, job: _Job, file: _File) -> None:
        if not file.is_ready:
            file.is_ready = True
            job.ready.append(file)
            self._enqueue(job)

    def _enqueue(self, job: _Job) -> None:
        if job.ready and not job.is_queued and self._has_room(job):
            job.is_queued = True
            self._queue.append(job)

    def _has_room(self, job: _Job) -> bool:
        piece_bytes = self._limits.piece_bytes
        credit_bytes = piece_bytes if job.is_full else self._limits.job_credit_bytes
        return job.unanswered_bytes + piece_bytes <= credit_bytes

    def _pump(self) -> None:
        """Send a piece of each job in turn, as long as there is credit."""
        if not self._is_connected:
            return
        limits = self._limits
        for _ in range(limits.turn_pieces):
            if not self._queue or self._unanswered_bytes + limits.piece_bytes > limits.credit_bytes:
                return
            job = self._queue.popleft()
            job.is_queued = False
            if job.ready and self._has_room(job):
                self._send_piece(job)
                self._enqueue(job)
                self._check_done(job)
        if self._queue and not self._is_posted:
            self._is_posted = True
            self._turns.post(self._go_on)

    def _go_on(self) -> None:
        self._is_posted = False
        self._pump()

    def _send_piece(self, job: _Job) -> None:
        file = job.ready.popleft()
        if file.is_short:  # `_retry` begins with what is missing
            file.is_ready = False
            return
        data = self._read(job, file)
        is_last = len(data) < self._limits.piece_bytes
        if file.name.startswith(SHARED) and not (is_last and job.then is not None):
            lines = data[: data.rfind(b"\n") + 1]
            data = lines if is_last else lines or data
        if is_last or not data:
            file.is_ready = False
        else:
            job.ready.append(file)
        if data:
            offset = file.sent
            file.sent += len(data)
            file.ends.append((file.sent, len(data)))
            job.unanswered_bytes += len(data)
            self._unanswered_bytes += len(data)
            self._send(msg.JobOutput(job.jobid, file.name, offset, data))

    def _read(self, job: _Job, file: _File) -> bytes:
        try:
            with open(f"{job.directory}/{file.name}", "rb", buffering=0) as opened:
                opened.seek(file.sent)
                return opened.read(self._limits.piece_bytes)
        except OSError as fault:
            text = "job %s: what is written into %s from byte %d on is lost: %s"
            log.error(text, format_f58(job.jobid), file.name, file.sent, fault.strerror, extra=of_job(job.jobid))
            return b""


FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE = 1, 2
"""fallocate(2); since Linux 2.6.38, on most file systems of local disks and in memory."""


def give_back_space(path: str, begin: int, end: int) -> None:
    """Give back the space of these bytes of a file, which are read as zeros then. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        span = ctypes.c_int64(begin), ctypes.c_int64(end - begin)
        if _libc().fallocate(fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, *span) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(fd)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


# ---- the instance's side

TASK_NUMBER_MAX = 65_535
"""Largest number of a task whose output is stored: files of tasks with lower numbers are made with the first one, since
readers find all in the order of their numbers.
"""
NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE))
"""Errors that end by themselves, or once somebody has made room."""
_NAME = re.compile(rf"({SHARED})?(stdout|stderr)(?:\.(0|[1-9][0-9]{{0,8}}))?", re.ASCII)


class OutputReceiver:
    """Instance's side: stores what keepers send in the spool directories of the jobs, and in files that hosts share."""

    def __init__(self, task_number_max: int = TASK_NUMBER_MAX) -> None:
        self.task_number_max = task_number_max
        self._shared: dict[int, dict[str, _SharedFile]] = {}
        self._is_full = False

    def begin(self, job: JobLaunch) -> None:
        """Open the files that a job of several hosts shares, before any of its tasks runs. Raises Refused."""
        try:
            for stream in shared_files(job.jobspec):
                self._shared_file(job, stream)
        except BaseException:
            self.end(job.jobid)
            raise

    def end(self, jobid: int) -> None:
        """Close the files that a job's hosts share."""
        for file in self._shared.pop(jobid, {}).values():
            file.close()

    def close(self) -> None:
        for jobid in list(self._shared):
            self.end(jobid)

    def received(self, job: JobLaunch, name: str, offset: int, data: bytes) -> int:
        """Store bytes of a file at a keeper, and return how many of the file are stored then: fewer than up to the last
        of these if there is no room, or if bytes before them are missing. Bytes that can never be stored count as
        stored.
        """
        end = offset + len(data)
        try:
            stored = self._store(job, name, offset, data)
        except FluxschedError as error:
            if error.errnum in NO_ROOM:
                self._note_full(job, str(error))
                return 0
            log.error("job %s: output is lost: %s", format_f58(job.jobid), error, extra=of_job(job.jobid))
            return end
        self._is_full = self._is_full and stored < end
        return stored

    def _store(self, job: JobLaunch, name: str, offset: int, data: bytes) -> int:
        found = _NAME.fullmatch(name)
        number = None if found is None or found[3] is None else int(found[3])
        if found is None or (number or 0) > self.task_number_max:
            raise Refused(f"{name[:40]!r} is no name of a spool file")
        stored = 0
        try:
            if found[1]:
                file = self._shared_file(job, found[2])
                stored = file.stored(name)
                return file.append(name, offset, data)
            directory = spool_directory(job.settings.spool, job.jobid)
            stored = _size(directory / name)
            fresh = _fresh(stored, offset, data)
            return stored + _append(directory, found[2], number, fresh) if fresh else stored
        except OSError as fault:
            if fault.errno not in NO_ROOM:
                raise refused("write", name, fault) from fault
            self._note_full(job, fault.strerror or str(fault))
            return stored

    def _note_full(self, job: JobLaunch, why: str) -> None:
        if not self._is_full:
            self._is_full = True
            text = "job %s: its output waits on its host for room here: %s"
            log.error(text, format_f58(job.jobid), why, extra=of_job(job.jobid))

    def _shared_file(self, job: JobLaunch, stream: str) -> _SharedFile:
        files = self._shared.setdefault(job.jobid, {})
        if stream not in files:
            template = shared_files(job.jobspec).get(stream)
            if template is None:
                raise Refused(f"the job's {stream} goes into no file that its hosts share")
            files[stream] = _SharedFile(job, stream, template)
        return files[stream]


class _SharedFile:
    """File of the user's choice into which tasks of several hosts print, and the account of what is stored in it."""

    __slots__ = ("_account", "_fd", "_path", "_stored")

    def __init__(self, job: JobLaunch, stream: str, template: str) -> None:
        """Open the file; it is emptied when it is opened for the first time. Raises Refused."""
        directory = spool_directory(job.settings.spool, job.jobid)
        account = directory / f"{SHARED}{stream}"
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            self._account = os.open(account, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, SPOOL_MODE)
        except OSError as exc:
            raise refused("open", str(account), exc) from exc
        line, is_known, _ = os.pread(self._account, os.fstat(self._account).st_size, 0).partition(b"\n")
        known: dict[str, Any] = json.loads(line) if is_known else {}
        self._stored: dict[str, int] = known.get("stored", {})
        """Bytes by the name of the keeper's file."""
        self._path: str = known.get("path") or os.path.join(job.jobspec.cwd or "", _filled(job, template))
        try:
            flags = USER_FLAGS if is_known else USER_FLAGS | os.O_TRUNC
            self._fd = os.open(system_bytes(self._path), flags, FILE_MODE)
        except OSError as exc:
            os.close(self._account)
            raise refused("open", self._path, exc) from exc
        if "appends" in known:  # it may have been done in part or as a whole
            name, nbytes = known["appends"]
            done = os.fstat(self._fd).st_size - known["size"]
            self._stored[name] = self._stored.get(name, 0) + min(max(0, done), nbytes)
        self._note({})

    def _note(self, more: dict[str, Any]) -> None:
        """Put on disk what is stored, and `more`."""
        account = {"path": self._path, "stored": self._stored, **more}
        os.pwrite(self._account, json.dumps(account).encode() + b"\n", 0)

    def stored(self, name: str) -> int:
        """Return how many bytes of this file of a keeper are stored."""
        return self._stored.get(name, 0)

    def append(self, name: str, offset: int, data: bytes) -> int:
        """Append what is new of these bytes; return how many are stored then. Raises OSError."""
        stored = self.stored(name)
        fresh = _fresh(stored, offset, data)
        if fresh:
            self._note({"appends": [name, len(fresh)], "size": os.fstat(self._fd).st_size})
            self._stored[name] = stored + os.write(self._fd, fresh)
        return self.stored(name)

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._account)


def _filled(job: JobLaunch, template: str) -> str:
    if "{{" not in template:
        return template
    tasks = layout.program_of(structs.replace(job, ranks=EMPTY), ResourceSet.parse(job.R))  # none of them runs here
    return layout.Tags(job.jobid, job.jobspec, tasks.blocks, job.R).fill(template)


def _fresh(stored: int, offset: int, data: bytes) -> bytes:
    """Return the bytes that follow those that are stored; none if there are bytes missing in between."""
    return data[stored - offset :] if offset <= stored else b""


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _append(directory: Path, stream: str, number: int | None, data: bytes) -> int:
    """Append to the file of a task, and return how many bytes there was room for. Raises OSError."""
    fd = _opened(directory, stream, number)
    try:
        return os.write(fd, data)
    finally:
        os.close(fd)


def _opened(directory: Path, stream: str, number: int | None) -> int:
    """Open the file of a task; the first time it is made, together with those of tasks with lower numbers."""
    path = directory / spool_name(stream, number)
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, SPOOL_FLAGS & ~os.O_CREAT)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    missing = number or 0
    while missing and not os.path.exists(directory / spool_name(stream, missing - 1)):
        missing -= 1
    for each in range(missing, number or 0):  # upwards, so that there is never a gap
        os.close(os.open(directory / spool_name(stream, each), SPOOL_FLAGS, SPOOL_MODE))
    return os.open(path, SPOOL_FLAGS, SPOOL_MODE)
