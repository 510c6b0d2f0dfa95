"""Input and output of tasks: files of the user's choice, what is sent while the job runs, the spool, the terminal.

Law: files are opened before any task runs, so one that cannot be opened fails the job with a reason. The keeper opens
them, or a process of the job's user, where that is not the keeper's. They are opened for appending, so that tasks that
share one do not overwrite each other, and opening never blocks. Files of a task are open only while it is spawned, so a
job of many tasks costs no more descriptors than one. A task that does not read blocks only its senders: what is sent
waits in memory, up to HELD_BYTES_MAX for each job, and a sender is answered once little is waiting. The task's end of a
pseudo-terminal stays open in the keeper as long as the job runs, so that what was written last can still be read when
all processes have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import stat
import termios
from collections import deque
from collections.abc import Callable, Mapping

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobfields import Pty
from fluxsched.core.jobid import is_shared
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import FluxschedError, LimitExceeded, Refused
from fluxsched.executor.base import JobLaunch, Window, spool_directory, spool_name
from fluxsched.executor.layout import Tags, system_bytes
from fluxsched.system.loop import Turns

READ_BYTES = 64 * 1024
END_OF_INPUT = b"\x04\x04"
"""End of input for a terminal; the first character only completes a line that has begun."""


class Terminal:
    """Both ends of a pseudo-terminal, and the file that keeps what is printed on it."""

    __slots__ = ("_loop", "_main", "_output", "_tasks", "path")

    def __init__(self, size: Pty) -> None:
        """Open a terminal. Raises Refused if the system has none left."""
        try:
            self._main, self._tasks = os.openpty()
        except OSError as exc:
            raise Refused(f"cannot open a pseudo-terminal: {os.strerror(exc.errno or 0)}", exc.errno) from exc
        os.set_blocking(self._main, False)
        self.path = os.ttyname(self._tasks).encode()
        self._output = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        self.resize(*size)

    def give_to(self, userid: int) -> None:
        """Make a user the owner of the tasks' end, who opens it by its path."""
        os.fchown(self._tasks, userid, -1)

    def keep_output(self, fd: int) -> None:
        """Copy the output to this file through a duplicated descriptor."""
        self._output = os.dup(fd)

    def opened(self) -> int:
        """Read the output of the task, which runs. Returns a descriptor for its input, which is the caller's."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._main, self._copy)
        return os.dup(self._main)

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the terminal's window; the kernel notifies the task."""
        termios.tcsetwinsize(self._main, (rows, columns))

    def close(self) -> None:
        """Read the remaining output and close the terminal; its processes are hung up. Idempotent."""
        if self._main < 0:
            return
        if self._loop is not None:
            self._loop.remove_reader(self._main)
        while self._output >= 0 and self._copy():
            pass
        for fd in (self._main, self._tasks, self._output):
            if fd >= 0:
                os.close(fd)
        self._main = self._tasks = self._output = -1

    def _copy(self) -> bool:
        """Copy a piece; False if there was none."""
        try:
            data = os.read(self._main, READ_BYTES)
        except OSError:  # nothing at present
            return False
        with contextlib.suppress(OSError):  # the disk is full
            os.write(self._output, data)
        return bool(data)


# ---- input of tasks

INPUT_TASKS_MAX = 256
"""Tasks of a job that are sent input: each costs this process a descriptor as long as the job runs."""
HELD_BYTES_MAX = 32 << 20
"""Input of one job that waits to be read; Flux takes 10 MiB of a job in all."""
ROOM_BYTES = 1 << 20
"""Size of waiting input below which senders are answered: as much as a pipe takes at most."""
PIPE_BYTES = 1 << 20
"""Room of the pipe of a task that is sent much, where the system grants it: what any user may have."""
WRITES_MAX = 16
"""Consecutive writes to one task: one that reads as fast as we write must not starve the others."""
NOTHING = b"/dev/null"


def source_of(jobspec: Jobspec, cwd: str | None, ntasks: int) -> bytes | None:
    """Return the file that all tasks read, None if they are sent their input."""
    if jobspec.input is None:
        return NOTHING if ntasks > INPUT_TASKS_MAX else None
    return system_bytes(os.path.join(cwd or "", jobspec.input))


def check_source(name: str, path: bytes | None) -> None:
    """Raise Refused for a file that cannot be read, which the jobspec calls `name`."""
    assert path is not None, "a file that is named has a path"
    try:
        fault = errno.EISDIR if stat.S_ISDIR(os.stat(path).st_mode) else 0
    except OSError as exc:
        fault = exc.errno or errno.EIO
    if not fault and not os.access(path, os.R_OK):
        fault = errno.EACCES
    if fault:
        raise Refused(f"cannot open {name!r} for the job's input: {os.strerror(fault)}", fault)


class _Chunk:
    """A piece of input and how many tasks have not read it yet."""

    __slots__ = ("data", "readers")

    def __init__(self, data: bytes, readers: int) -> None:
        self.data = data
        self.readers = readers


class _Task:
    """The pipe of one task (`fd` is -1 once it is closed) and what is still to go into it."""

    __slots__ = ("chunks", "ending", "fd", "grown", "sent_bytes", "watched")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.chunks: deque[_Chunk] = deque()
        self.sent_bytes = 0  # of the first chunk
        self.ending = self.watched = self.grown = False


class JobInput:
    """Sends input to the tasks of a running job, through pipes whose writing ends it owns."""

    def __init__(self, turns: Turns, fds: Mapping[int, int], terminal: Terminal | None = None) -> None:
        """`fds` are the descriptors by the numbers of the tasks, which may be any: those of a job's other tasks may be
        on other hosts. `terminal` is that of the only task, if it has one: its descriptor takes the input.
        """
        self._turns = turns
        self._terminal = terminal
        self._loop = asyncio.get_running_loop()
        self._open = EMPTY  # tasks whose input has not ended
        self._ended = False
        self._held_bytes = 0
        self._waiting: list[Callable[[], None]] = []
        self._closed = False
        self._tasks: dict[int, _Task] = {}
        self.add(fds)

    def add(self, fds: Mapping[int, int]) -> None:
        """Add tasks of the job, which are sent later input; none if all input has ended."""
        for number, fd in fds.items():
            os.set_blocking(fd, False)
            self._tasks[number] = _Task(fd)
        if self._ended or self._closed:
            for number in fds:
                self._shut(self._tasks[number])
        else:
            self._open |= Idset.of(fds)

    def remove(self, tasks: Idset) -> None:
        """Remove tasks of the job; later input for all is sent to the others."""
        self._open -= tasks
        for task in self._named(tasks):
            self._shut(task)

    def send(
        self, data: bytes, tasks: Idset | None, *, eof: bool, taken: Callable[[], None], window: Window | None = None
    ) -> None:
        """Send data, and with `eof` its end, to these tasks or to all; `taken` is called once there is room for more.

        A `window` is the new size of the terminal's, if the task has one.

        Raises Refused (EPIPE) for data behind an end, LimitExceeded if too much waits: the input is over then, since
        what follows would be behind a hole.
        """
        wanted = self._open if tasks is None else tasks
        if self._terminal is not None and not self._closed:
            if window is not None:
                self._terminal.resize(*window)
            if eof and wanted and wanted <= self._open:
                data += END_OF_INPUT
        if data and not self._closed:
            self._queue(data, wanted)
        if eof:
            self._ended |= tasks is None
            self._open -= wanted
            for task in self._named(wanted):
                task.ending = True
                self._watch(task)
        if self._held_bytes < ROOM_BYTES:
            taken()
        else:
            self._waiting.append(taken)

    def close(self) -> None:
        """Discard waiting and later input, since no task reads any more. Idempotent."""
        self._closed = True
        for task in self._tasks.values():
            self._shut(task)

    def _named(self, tasks: Idset) -> list[_Task]:
        return [task for number, task in self._tasks.items() if number in tasks and task.fd >= 0]

    def _queue(self, data: bytes, wanted: Idset) -> None:
        if not wanted or not wanted <= self._open:
            which = f"task {wanted - self._open}" if wanted else "all tasks"
            raise Refused(f"the input of {which} has ended", errno.EPIPE)
        if self._held_bytes + len(data) > HELD_BYTES_MAX:
            self._open, self._ended = EMPTY, True
            raise LimitExceeded(
                f"more than {HELD_BYTES_MAX >> 20} MiB of input wait to be read: give a file instead (--input)"
            )
        readers = self._named(wanted)
        chunk = _Chunk(data, len(readers))
        self._held_bytes += len(data) if readers else 0
        for task in readers:
            task.chunks.append(chunk)
            self._watch(task)

    def _watch(self, task: _Task) -> None:
        """Continue with this task as soon as its pipe has room or has no reader any more."""
        if not task.watched and task.fd >= 0:
            task.watched = True
            self._loop.add_writer(task.fd, self._ready, task)

    def _ready(self, task: _Task) -> None:
        self._loop.remove_writer(task.fd)
        self._turns.post(lambda: self._go_on(task))

    def _go_on(self, task: _Task) -> None:
        task.watched = False
        if task.fd < 0:
            return
        try:
            for _ in range(WRITES_MAX):
                if task.chunks:
                    self._write(task)
        except BlockingIOError:
            self._grow(task)
        except OSError:  # it has closed its input, or ended
            self._shut(task)
        if task.chunks:
            self._watch(task)
        elif task.ending:
            self._shut(task)

    def _write(self, task: _Task) -> None:
        chunk = task.chunks[0]
        task.sent_bytes += os.write(task.fd, memoryview(chunk.data)[task.sent_bytes :])
        if task.sent_bytes == len(chunk.data):
            task.sent_bytes = 0
            self._release(task.chunks.popleft())

    def _grow(self, task: _Task) -> None:
        """Fewer turns for much input; a system that has no more room for pipes does without."""
        if not task.grown:
            task.grown = True
            with contextlib.suppress(OSError):
                fcntl.fcntl(task.fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def _release(self, chunk: _Chunk) -> None:
        chunk.readers -= 1
        if chunk.readers:
            return
        self._held_bytes -= len(chunk.data)
        if self._held_bytes < ROOM_BYTES:
            waiting, self._waiting = self._waiting, []
            for taken in waiting:
                taken()

    def _shut(self, task: _Task) -> None:
        if task.fd < 0:
            return
        if task.watched:
            self._loop.remove_writer(task.fd)
        os.close(task.fd)
        task.fd = -1
        while task.chunks:
            self._release(task.chunks.popleft())


# ---- output of tasks

FILE_MODE = 0o666
SPOOL_MODE = 0o600
SPOOL_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
USER_FLAGS = SPOOL_FLAGS | os.O_NONBLOCK
"""Flags for files of users: not blocking, since a fifo without a reader would stop the keeper."""


SHARED = "shared-"
"""Prefix of names in a job's spool directory: files whose content is to be in one that its hosts share."""


def shared_files(spec: Jobspec) -> dict[str, str]:
    """Return the templates of the files into which all tasks of a job print, by stream; stderr is not named where it
    goes where stdout goes.
    """
    error = None if spec.error == spec.output else spec.error
    found = {"stdout": spec.output, "stderr": error}
    return {stream: template for stream, template in found.items() if template is not None and is_shared(template)}


class Streams:
    """The files that one job's tasks print into. Owns their descriptors; `close` is idempotent."""

    __slots__ = (
        "_cwd", "_directory", "_first", "_flags", "_has_hosts", "_named", "_own", "_shared", "_single", "_tags",
        "_userid", "spooled",
    )  # fmt: skip

    def __init__(
        self, job: JobLaunch, cwd: str | None, tags: Tags, first: int, *, is_single: bool, is_first: bool
    ) -> None:
        """Open the files of the user's choice. Raises Refused naming the file that cannot be opened.

        A file for stdout takes stderr too unless that has a file of its own, as in Flux. It is emptied, as by a shell's
        `>`, by the first tasks of a job. `first` is the first task of the job on this host. `is_single`: the job has
        one task and never another.
        """
        spec = job.jobspec
        self._directory = str(spool_directory(job.settings.spool, job.jobid))
        self._single = is_single
        self._first = first
        self._has_hosts = job.is_shared
        self.spooled: dict[str, None] = {}
        """Names of the files in the spool directory that were opened."""
        self._flags = USER_FLAGS | (os.O_TRUNC if is_first and job.first == 0 else 0)
        self._own: list[int] = []
        self._shared: dict[str, int] = {}
        self._named = {"stdout": spec.output, "stderr": spec.output if spec.error is None else spec.error}
        self._cwd = cwd or ""
        self._tags = tags
        self._userid = job.userid
        try:
            for stream, template in self._named.items():
                if template is not None and is_shared(template) and job.userid is None:
                    self._shared[stream] = self._open(stream, template, first, self._shared.get("stdout"))
        except BaseException:
            self.close()
            raise

    def descriptors_of(self, task: int) -> tuple[int, int]:
        """Return descriptors for stdout and stderr of the task of this number, good until the next call; -1 for a file
        of a user's choice, which `open_named` opens.
        """
        self._close_own()
        stdout = self._descriptor("stdout", task, None)
        return stdout, self._descriptor("stderr", task, stdout)

    def open_named(self, task: int, stdout: int, stderr: int) -> tuple[int, int]:
        """Return the descriptors of `descriptors_of` with those of the files of the user's choice; to be called as the
        user.
        """
        if stdout < 0:
            stdout = self._open("stdout", str(self._named["stdout"]), task, None)
        if stderr < 0:
            stderr = self._open("stderr", str(self._named["stderr"]), task, stdout)
        return stdout, stderr

    def write_note(self, text: str) -> None:
        """Write a message of the instance to the stderr of the first task here; what is in a file of another user goes
        to the spool directory.
        """
        self._flags &= ~os.O_TRUNC  # the tasks may have written since their files were opened
        with contextlib.suppress(OSError, FluxschedError):
            fd = self.descriptors_of(self._first)[1]
            if fd < 0:
                self._own.append(self._spool(spool_name("stderr", None if self._single else self._first)))
                fd = self._own[-1]
            os.write(fd, f"fluxsched: {text}\n".encode())

    def close(self) -> None:
        self._close_own()
        for fd in self._shared.values():
            os.close(fd)
        self._shared.clear()

    def _descriptor(self, stream: str, task: int, stdout: int | None) -> int:
        if stream in self._shared:
            return self._shared[stream]
        template = self._named[stream]
        if template is not None and self._userid is not None:
            return -1
        if template is not None:
            self._own.append(self._open(stream, template, task, stdout))
            return self._own[-1]
        self._own.append(self._spool(spool_name(stream, None if self._single else task)))
        return self._own[-1]

    def _spool(self, name: str) -> int:
        """Open a file in the spool directory, which is made for its first one, and return its descriptor."""
        path = f"{self._directory}/{name}"
        try:
            try:
                fd = os.open(path, SPOOL_FLAGS, SPOOL_MODE)
            except FileNotFoundError:
                os.makedirs(self._directory, mode=0o700, exist_ok=True)
                fd = os.open(path, SPOOL_FLAGS, SPOOL_MODE)
            if self._userid is not None:
                os.fchown(fd, self._userid, -1)  # so that /dev/stdout can be opened
        except OSError as exc:
            raise refused("open", path, exc) from exc
        self.spooled[name] = None
        return fd

    def _open(self, stream: str, template: str, task: int, stdout: int | None) -> int:
        """Open a file of the user's choice and return its descriptor; `stdout` is taken for stderr, too, where both
        have one name. One that hosts share is written by the instance.
        """
        if stream == "stderr" and stdout is not None and template == self._named["stdout"]:
            return os.dup(stdout)
        if self._has_hosts and is_shared(template):
            return self._spool(spool_name(f"{SHARED}{stream}", self._first))
        path = self._tags.fill(template, task)
        try:
            fd = os.open(system_bytes(os.path.join(self._cwd, path)), self._flags, FILE_MODE)
            os.set_blocking(fd, True)
        except OSError as exc:
            raise refused("open", path, exc) from exc
        return fd

    def _close_own(self) -> None:
        while self._own:
            os.close(self._own.pop())


def refused(what: str, path: str, exc: OSError) -> Refused:
    """Return the error of a job whose output cannot be put into this file."""
    return Refused(f"cannot {what} {path!r} for the job's output: {os.strerror(exc.errno or 0)}", exc.errno)
