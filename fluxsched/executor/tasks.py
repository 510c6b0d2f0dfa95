"""Tasks that are started together, those of a job that begins or of targets that it gets, and the gate before them.

Law: tasks are spawned behind one gate, a few in a turn, and run when what identifies all processes of the job is
stored; no code of the user runs before `open`. Files of the user's choice that have been written to by tasks before are
not emptied again. At the gate each task is a small shell that waits at a pipe. The keeper holds the only writing end,
so that its death, by whatever means, is end-of-file for the waiting shells, and they exit without running anything.
Tasks that read a file wait at one pipe together; else each waits at its own, which is its standard input from then on:
a shell's `read` takes the line that opens the gate and no byte more. What the shell cannot pass on, variables whose
names are no shell names, is handed over by env(1).

A task that is spawned when it may run (`executor.local`) needs no shell, if its program can be found and read without
waiting (`executor.local_programs`); else the gate of its shell is opened at once.

A task of a user's job is forked, and becomes that user (`executor.user`) before any file of the job is looked at: its
files are opened, and the files that the job brings along are written, by the process that will be the shell. The job
has failed if one of them reports why it cannot be the shell.

The sockets between the tasks of one job and its PMI server (`protocol.pmi`, RFC 13).

Law: a task inherits its end as descriptor PMI_FD, and no other process has it; ours never blocks, and a task that does
not read its answers loses its connection. A job of one task has no server: MPI programs start as singletons without
one, and most jobs are such. Tasks that were asked to end may leave in any way; otherwise the loss of a task that the
program cannot do without ends the job.

The tasks of a job on several hosts have a server on each; what these exchange goes over the instance (`PmiFences`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import signal
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.core.jobid import ended_text, format_f58
from fluxsched.errors import Refused
from fluxsched.executor.base import JobLaunch, ProcessGroup
from fluxsched.executor.io import Streams, Terminal, check_source, source_of
from fluxsched.executor.layout import (
    JobTasks,
    Tags,
    TaskBlock,
    in_directory,
    job_environment,
    own_templates,
    processing_units,
    system_bytes,
    task_environment,
    unpack,
)
from fluxsched.executor.local_programs import SHELL, LocalPrograms
from fluxsched.executor.user import TaskProgram, UserTasks
from fluxsched.executor.wire import PmiFence, PmiFenceDone
from fluxsched.protocol.pmi import Failed, Fence, Hangup, PmiEffect, PmiReply, PmiServer
from fluxsched.system.log import logger, of_job
from fluxsched.system.loop import Turns, ended_status
from fluxsched.system.processes import PATH_VARIABLE

log = logger("pmi")

PMI_FD = 30
"""The descriptor of a task's end: above those that shell scripts redirect, below every limit."""
READ_BYTES = 64 * 1024
LEFT_LOOK_S = 0.02
"""A connection ends a moment before its process does (seconds): after this time it is known how that ended."""


class JobPmi:
    """The connections of one job's tasks on this host. Owns our ends; `close` is idempotent."""

    def __init__(
        self, turns: Turns, jobid: int, ntasks: Sequence[int], failed: Callable[[str, int], None],
        own: Idset | None, fence: Callable[[PmiFence], None],
    ) -> None:  # fmt: skip
        """`ntasks` are the tasks of each target, of which `own` are on this host (None: all); `failed` is called once
        with the reason why the program cannot continue, and the exit code that it gave (0: none); `fence` is called
        with news for the other hosts.
        """
        self._turns = turns
        self._server = PmiServer(f"fluxsched-{format_f58(jobid, ascii=True)}", ntasks, own)
        self._failed = failed
        self._fence = fence
        self._jobid = jobid
        self._ends: dict[int, socket.socket] = {}
        self._pids: dict[int, int] = {}
        self._ending = False
        self._effects: list[PmiEffect] = []
        """Effects that are performed in the next turn."""
        self._left: list[Failed | Fence] = []
        """Effects of tasks that have left, which are performed once it is known how these ended."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def connect(self, rank: int) -> socket.socket:
        """Return the end of this task, to be closed once it has been passed on. Raises OSError."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._ends[rank] = ours
        return theirs

    def variables(self, rank: int) -> dict[bytes, bytes]:
        """Return the variables that describe a task's end of the connection (RFC 13)."""
        return {
            b"PMI_FD": str(PMI_FD).encode(),
            b"PMI_RANK": str(rank).encode(),
            b"PMI_SIZE": str(self._server.size).encode(),
        }

    def opened(self, pids: Sequence[int]) -> None:
        """Note that the tasks, in the order in which they were connected, run from now on."""
        self._pids = dict(zip(self._ends, pids, strict=True))
        self._loop = asyncio.get_running_loop()
        for rank, end in self._ends.items():
            self._loop.add_reader(end.fileno(), self._ready, rank)

    def ending(self) -> None:
        """Note that the tasks are asked to end: an exit from now on is no failure."""
        self._ending = True

    def mark_leaving(self, ranks: Idset) -> None:
        """Note that the targets of these tasks are given back: their exit is no failure, but others may wait for
        them.
        """
        for rank in ranks:
            self._server.excuse(rank)

    def fence_done(self, one: PmiFenceDone) -> None:
        """Take the answer of all hosts, or news of another one."""
        server, number = self._server, one.number
        self._perform(server.left_elsewhere(number, one.left) if one.left else server.fence_done(number, one.puts))

    def all_ended(self) -> None:
        """Take what the tasks, all of which have ended, have sent last: other hosts may wait for them."""
        if not self._server.is_shared:
            return
        self._perform_all()
        for rank in list(self._ends):
            self._read(rank)
            if rank in self._ends:
                self._shut(rank)
                self._effects += self._server.ended(rank)
        self._perform_all()
        for effect in list(self._left):
            self._look(effect)

    def close(self) -> None:
        """Close the connections of all tasks."""
        self._ending = True
        self._left.clear()
        for rank in list(self._ends):
            self._shut(rank)

    def _ready(self, rank: int) -> None:
        was_idle = not self._effects
        self._read(rank)
        if was_idle and self._effects:
            self._turns.post(self._perform_all)

    def _read(self, rank: int) -> None:
        try:
            data = self._ends[rank].recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._shut(rank)
        self._effects += self._server.receive(rank, data) if data else self._server.ended(rank)

    def _perform_all(self) -> None:
        effects, self._effects = self._effects, []
        self._perform(effects)

    def _perform(self, effects: list[PmiEffect]) -> None:
        for effect in effects:
            if isinstance(effect, PmiReply):
                self._send(effect.rank, effect.line)
            elif isinstance(effect, Hangup):
                self._hang_up(effect.rank, effect.note)
            elif isinstance(effect, Fence) and effect.left is None:
                self._fence(PmiFence(self._jobid, effect.number, effect.puts))
            elif isinstance(effect, Fence) or (effect.left and effect.rank is not None):
                self._left.append(effect)
                self._turns.after(LEFT_LOOK_S, partial(self._look, effect))
            else:
                self._fail(effect)

    def _look(self, effect: Failed | Fence) -> None:
        """Perform the effect of a task that has left, once."""
        if effect not in self._left:
            return
        self._left.remove(effect)
        if isinstance(effect, Failed):
            self._fail(effect)
        elif not self._ending and effect.left is not None:
            self._fence(PmiFence(self._jobid, effect.number, left=f"task {effect.left}{self._how(effect.left)}"))

    def _send(self, rank: int, line: bytes) -> None:
        end = self._ends.get(rank)
        if end is None:
            return
        try:
            if end.send(line, socket.MSG_NOSIGNAL) == len(line):
                return
        except BlockingIOError:
            pass
        except OSError:  # it has gone: the reader tells
            return
        self._hang_up(rank, "it does not read its answers")

    def _hang_up(self, rank: int, note: str) -> None:
        job = format_f58(self._jobid)
        log.info("job %s: PMI: task %d is cut off: %s", job, rank, note, extra=of_job(self._jobid, rank))
        self._shut(rank)
        self._perform(self._server.ended(rank))

    def _shut(self, rank: int) -> None:
        end = self._ends.pop(rank, None)
        if end is not None:
            if self._loop is not None:
                self._loop.remove_reader(end.fileno())
            end.close()

    def _fail(self, effect: Failed) -> None:
        if not self._ending:
            self._ending = True
            rank, note = effect.rank, effect.note
            how = self._how(rank) if effect.left and rank is not None else ""
            self._failed(note if rank is None else f"task {rank}{how} {note}", effect.exit_code)

    def _how(self, rank: int) -> str:
        """Return a text on how a task has ended; empty while it has not."""
        try:
            status = ended_status(self._pids[rank])
        except ChildProcessError:
            return ""
        return "" if status is None else f" ({ended_text(status)})"


# ---- barriers over several hosts

FenceAnswers = list[tuple[str, PmiFenceDone]]
"""Messages for hosts."""


class PmiFences:
    """Barriers of jobs whose tasks are on several hosts, as the instance has them. No I/O.

    A host may repeat what it has sent, since it does not know what was lost with its connection. So the answer to the
    last complete barrier is kept. An instance that was restarted knows nothing; as the hosts repeat their last two
    barriers, and none is two ahead of another, it can complete what any of them waits for.
    """

    def __init__(self) -> None:
        self._jobs: dict[int, _JobFences] = {}

    def add_job(self, jobid: int, hosts: Iterable[str]) -> None:
        """Add a job whose tasks are on these hosts."""
        self._jobs[jobid] = _JobFences(jobid, tuple(hosts))

    def remove_job(self, jobid: int) -> None:
        """Remove a job that has ended. Idempotent."""
        self._jobs.pop(jobid, None)

    def arrived(self, host: str, one: PmiFence) -> FenceAnswers:
        """Take the message of a host; that of an unknown job or host is passed over."""
        job = self._jobs.get(one.jobid)
        return [] if job is None or host not in job.hosts else job.arrived(host, one)

    def gone(self, jobid: int, host: str) -> FenceAnswers:
        """Record that no task of the job is on this host any more, by an end or a loss of which its tasks may have said
        nothing.
        """
        job = self._jobs.get(jobid)
        return [] if job is None or host not in job.hosts else job.gone(host)


class _JobFences:
    """Barriers of one job."""

    __slots__ = ("_has_any", "_jobid", "_last", "_left", "_puts", "_was_said", "hosts")

    def __init__(self, jobid: int, hosts: tuple[str, ...]) -> None:
        self.hosts = hosts
        self._jobid = jobid
        self._puts: dict[int, dict[str, dict[str, str]]] = {}
        """Values that were put, by number of the barrier and host."""
        self._last = PmiFenceDone(jobid, 0)
        """Answer to the last barrier that all hosts have reached."""
        self._left: PmiFenceDone | None = None
        """Who has left the program, and the first barrier that lacks it."""
        self._has_any = self._was_said = False

    def arrived(self, host: str, one: PmiFence) -> FenceAnswers:
        self._has_any = True
        number, last, answers = one.number, self._last, FenceAnswers()
        if one.left:
            self._note_left(PmiFenceDone(self._jobid, number, left=one.left))
        elif number == last.number:
            answers.append((host, last))
        elif number > last.number:
            puts = self._puts.setdefault(number, {})
            puts[host] = one.puts
            if len(puts) == len(self.hosts):
                answers = self._completed(number, puts)
        if self._was_said and self._left is not None:
            answers.append((host, self._left))
        return answers + self._say_left()

    def gone(self, host: str) -> FenceAnswers:
        reached = max([number for number, puts in self._puts.items() if host in puts], default=self._last.number)
        self._note_left(PmiFenceDone(self._jobid, reached + 1, left=f"host {host}"))
        return self._say_left()

    def _note_left(self, left: PmiFenceDone) -> None:
        if self._left is None or left.number < self._left.number:
            self._left, self._was_said = left, False

    def _completed(self, number: int, puts: dict[str, dict[str, str]]) -> FenceAnswers:
        merged = {key: value for host in self.hosts for key, value in puts[host].items()}
        self._last = PmiFenceDone(self._jobid, number, merged)
        self._puts = {later: some for later, some in self._puts.items() if later > number}
        return [(host, self._last) for host in self.hosts]

    def _say_left(self) -> FenceAnswers:
        """Tell all hosts who has left; none while no host has sent anything, since the job may be no MPI program."""
        if self._left is None or self._was_said or not self._has_any:
            return []
        self._was_said = True
        return [(host, self._left) for host in self.hosts]


# ---- tasks

SPAWN_SLICE = 16
"""Tasks spawned before other events get their turn: some 15 ms of work."""

Environment = Callable[[TaskBlock, int], dict[bytes, bytes]]


class TaskStart:
    """Start of some tasks of a job, until they run. Owns their gate."""

    def __init__(
        self,
        job: JobLaunch,
        tasks: JobTasks,
        new: Sequence[TaskBlock],
        r: Mapping[str, Any],
        path: str,
        tmpdir: str | None,
        pmi: JobPmi | None,
        terminal: Terminal | None,
        limit: int | None,
        spawned: Callable[[ProcessGroup, int], None],
        *,
        is_first: bool,
    ) -> None:
        """Prepare the start.

        `new` are the last of `tasks` that run here, and `is_first` says that none have before; `r` is the job's R,
        `path` its path, `limit` the result of `more_descriptors`.
        Raises FluxschedError, with nothing open, for a file or directory that cannot be opened.
        """
        environment = job_environment(job, path, tasks.current, tmpdir)
        cwd = _directory(job.jobspec.cwd, is_checked=job.userid is None)
        tags = Tags(job.jobid, job.jobspec, tasks.blocks, r, tmpdir, tasks.current)
        if is_first and job.userid is None:
            unpack(job, tags)
        self.is_first = is_first
        """True if these tasks are the first ones of the job here."""
        self._new = new
        self.groups: list[ProcessGroup] = []
        unwanted = made_up_names(environment)
        self.gate = _gate(job, cwd, tasks, tags, terminal, limit, unwanted, is_first=is_first)
        self._elastic = tasks.by_target
        self._path = path
        self._spawned = spawned
        filled = partial(task_environment, environment, own_templates(job, environment), tags)
        self._todo: Iterator[None] = self._spawn(job, new, filled, environment, tmpdir, pmi)
        self.is_spawned = False
        """True if all tasks wait behind the gate, or the only one runs without."""
        self.is_waiting = False
        """True while processes open files as their user, for as long as that takes."""
        self.is_late = False
        """True if the only task is not spawned before it may run."""
        self._programs: LocalPrograms | None = None
        """Programs that need no shell, once the only task may run."""

    @property
    def ranks(self) -> Idset:
        """Return the targets of the new tasks."""
        return Idset.of([block.rank for block in self._new])

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the tasks, in the order of their numbers."""
        return [pid for group in self.groups for pid in group.pids]

    @property
    def numbers(self) -> list[int]:
        """Return the numbers of the tasks that are spawned."""
        return [task for group in self.groups for task in range(group.first, group.first + len(group.pids))]

    def advance(self) -> None:
        """Spawn a slice of the tasks. Raises Refused."""
        try:
            for _ in range(SPAWN_SLICE):
                next(self._todo)
        except StopIteration:
            self.is_waiting = not self.gate.has_all()
            if not self.is_waiting:
                self.is_spawned = True
                self.gate.complete()
        except OSError as exc:
            spawned = self.numbers
            task = spawned[-1] + 1 if spawned else self._new[0].first
            raise Refused(f"cannot start task {task}: {os.strerror(exc.errno or 0)}", exc.errno) from exc

    def run_late(self, programs: LocalPrograms) -> None:
        """Have `advance` spawn the only task so that it runs, since it may, without a shell if it is one of these."""
        self.is_late, self._programs = False, programs

    @property
    def is_ungated(self) -> bool:
        """Return whether the only task is spawned when it may run, with no gate before it."""
        return self._programs is not None

    def cut(self) -> None:
        """Spawn no further task: the job is to end."""
        self._todo = iter(())

    def _spawn(
        self, job: JobLaunch, new: Sequence[TaskBlock], environment: Environment,
        common: Mapping[bytes, bytes], tmpdir: str | None, pmi: JobPmi | None,
    ) -> Iterator[None]:  # fmt: skip
        """Spawn task after task, pinned if the machine's cores are known, one a step."""
        cores, gate, unpinned = job.settings.cores, self.gate, 0
        command: Sequence[str] = ()
        odd = cache(lambda: odd_names(common))
        words: list[bytes] = []
        for block in new:
            units = None if cores is None else processing_units(block.children.cores, cores)
            if block.command is not command:
                command, words = block.command, [system_bytes(word) for word in in_directory(block.command, tmpdir)]
            group = self._group(block)
            for local in range(block.ntasks):
                task, own = block.first + local, environment(block, local)
                if group.rank is not None:
                    own[PATH_VARIABLE.encode()] = system_bytes(group.path)
                ran = None if self._programs is None else gate.run(words, own, task, units, self._programs)
                if ran is not None:
                    pid, is_pinned = ran
                elif pmi is None:
                    pid = gate.spawn(words, own, odd(), task, group.pgid)
                else:
                    with pmi.connect(task) as theirs:
                        own |= pmi.variables(task)
                        pid = gate.spawn(words, own, odd(), task, group.pgid, (theirs.fileno(), PMI_FD))
                group.add(pid)
                self._spawned(group, pid)
                if ran is None:
                    is_pinned = _pin(pid, units)
                unpinned += cores is not None and not is_pinned
                yield
        if unpinned:
            gate.write_note(f"{unpinned} of the tasks run unpinned: this machine does not have all cores of R")

    def _group(self, block: TaskBlock) -> ProcessGroup:
        """Return the group of a target's tasks, which has no gap in their numbers."""
        if self._elastic or not self.groups or block.first != self.groups[-1].first + len(self.groups[-1].pids):
            rank, path = (block.rank, f"{self._path}/{block.rank}") if self._elastic else (None, self._path)
            self.groups.append(ProcessGroup(rank, block.first, path))
        return self.groups[-1]


def _directory(cwd: str | None, *, is_checked: bool) -> str | None:
    if cwd is None:
        return None
    path = os.path.abspath(cwd)
    if is_checked and not os.path.isdir(system_bytes(path)):
        raise Refused(f"the job's working directory {cwd!r} does not exist (or is not a directory)")
    return path


def _gate(
    job: JobLaunch,
    cwd: str | None,
    tasks: JobTasks,
    tags: Tags,
    terminal: Terminal | None,
    limit: int | None,
    unwanted: Sequence[bytes],
    *,
    is_first: bool,
) -> TaskGate:
    source = source_of(job.jobspec, cwd, tasks.next)
    if job.userid is None and job.jobspec.input is not None:
        check_source(job.jobspec.input, source)
    is_single = tasks.next == 1 and not tasks.by_target
    first = tasks.own_of(tasks.blocks)[0].first
    streams = Streams(job, cwd, tags, first, is_single=is_single, is_first=is_first)
    files = None if job.userid is None else UserFiles(job, cwd, source, streams, first if is_first else None, tags)
    try:
        return TaskGate(cwd, streams, source, terminal, limit, unwanted, files)
    except OSError as exc:
        streams.close()
        raise Refused(f"cannot start the job: {os.strerror(exc.errno or 0)}", exc.errno) from exc


def _pin(pid: int, units: set[int] | None) -> bool:
    """Bind a process that waits, or this one (0), to processing units; False if the kernel has none of them for us."""
    if not units:
        return units is not None
    try:
        os.sched_setaffinity(pid, units)
    except OSError:
        return False
    return True


# ---- files of users


class UserFiles:
    """Files of a user's job, each of which is opened by the process of a task when it is the user's."""

    def __init__(
        self, job: JobLaunch, cwd: str | None, source: bytes | None, streams: Streams, first: int | None,
        tags: Tags,
    ) -> None:  # fmt: skip
        """`first` is the task that writes the files of the job's directory (`unpack`); None: they are there."""
        assert job.userid is not None, "whose files they are is known"
        self.tasks = UserTasks(job.userid)
        self._job = job
        self._cwd = cwd
        self._source = source
        self._streams = streams
        self._first = first
        self._tags = tags

    def open(self, task: int, stdout: int, stderr: int) -> tuple[int, int]:
        """Return descriptors for stdout and stderr of a task; to be called as the user. Raises Refused."""
        if task == self._first:
            unpack(self._job, self._tags)
        if self._cwd is not None:
            try:
                os.chdir(system_bytes(self._cwd))
            except OSError as exc:
                what = f"cannot change to the job's working directory {self._cwd!r}"
                raise Refused(f"{what} as its user: {os.strerror(exc.errno or 0)}", exc.errno) from exc
        if self._job.jobspec.input is not None:
            check_source(self._job.jobspec.input, self._source)
        return self._streams.open_named(task, stdout, stderr)


# ---- the gate that tasks wait at

RUN = (
    b'{ case $1 in */*) [ -x "$1" ] && [ ! -d "$1" ] ;; *) command -v -- "$1" >/dev/null ;; esac; } || { case $1 in '
    b'*/*) [ -d "$1" ] && echo "fluxsched: $1: is a directory" >&2 && exit 126; '
    b'[ -e "$1" ] && echo "fluxsched: $1: permission denied" >&2 && exit 126 ;; esac; case $1 in '
    b"*[[:space:]]*) echo \"fluxsched: $1: command not found: to have a shell run it write sh -c '$1'\" ;; "
    b'*/*) echo "fluxsched: $1: no such file" ;; *) echo "fluxsched: $1: command not found" ;; esac >&2; exit 127; }; '
    b'exec "$@"'
)
"""The command is looked up first, so that the message about one that is missing or cannot be run is ours; it ends as
in shells: 127 or 126.
"""
LIMIT = b"ulimit -Sn %d; "
WAIT = b"read -r FLUXSCHED_GATE || exit 125; unset FLUXSCHED_GATE; "
"""A variable is needed to read into: none that a user may have."""
GO = b"\n"
THERE = b'FLUXSCHED_GATE=${OLDPWD-}; cd -- "$1" || exit 126; OLDPWD=$FLUXSCHED_GATE; unset FLUXSCHED_GATE; shift; '
"""Shell script that changes to the working directory; it restores OLDPWD, since the previous directory is one of the
keeper.
"""
UNSET = b"unset %s; "
FROM_FILE = b'exec <"$1"; shift; '
"""The shell opens the file, since a fifo may take long."""
ON_TERMINAL = b'exec <>"$1" >&0 2>&0; shift; '
"""The shell leads a session, so the terminal that it opens becomes the controlling one."""
NAME = b"fluxsched"
"""Prefix of the shell's own messages."""
ENV = b"/usr/bin/env"
SHELL_ADDS = (b"PWD", b"OLDPWD", b"SHLVL")
"""Variables that a shell exports although they were not in its environment."""
SHELL_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")
SHELL_OWN = frozenset((b"IFS", b"LINENO", b"OPTIND", b"PPID"))
"""Variables that a shell sets for itself instead of passing them on."""
DESCRIPTORS_MAX = 65_536
"""Descriptors that we ask for: for 32,768 jobs of one task two each, else three a task and one a job."""
DEFAULTED = frozenset(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}
"""Signals that this process or its parent may ignore (Python does SIGPIPE); for a task all act as usual."""


class TaskGate:
    """Tasks of one job that wait together. Owns the streams it is given; `close` is idempotent."""

    def __init__(
        self, cwd: str | None, streams: Streams, source: bytes | None, terminal: Terminal | None, limit: int | None,
        unwanted: Sequence[bytes], files: UserFiles | None = None,
    ) -> None:  # fmt: skip
        """Create a gate.

        `source` is the file that the tasks read; None: they read the pipes that `open` returns, or the `terminal` of
        the only task. `limit` is the result of `more_descriptors`, `unwanted` that of `made_up_names` for the job's
        environment. `files` are those of a user, whose tasks the gate is for.
        """
        self._waiting = 0
        self._files = files
        self._streams = streams
        self._terminal = terminal
        self._cwd = None if cwd is None else system_bytes(cwd)
        self._limit = limit
        self._is_ungated = False
        self._own = source is None and terminal is None
        self._read = -1
        self._writes: list[int] = []
        steps = [(THERE, self._cwd), (FROM_FILE, source)]
        steps += [(ON_TERMINAL, None if terminal is None else terminal.path)]
        taken = [(step, word) for step, word in steps if word is not None]
        unset = UNSET % b" ".join(unwanted) if unwanted else b""
        script = b"".join([b"" if limit is None else LIMIT % limit, WAIT, *[step for step, _ in taken], unset, RUN])
        self._begin = [SHELL, b"-c", script, NAME, *[word for _, word in taken]]
        if not self._own:
            self._read = self._pipe()

    def _pipe(self) -> int:
        read, write = os.pipe()
        self._writes.append(write)
        if self._files is not None:
            os.fchown(read, self._files.tasks.userid, -1)  # so that /dev/stdin can be opened
        return read

    def has_all(self) -> bool:
        """Return whether all tasks that were spawned wait, or have died. Raises Refused if one cannot."""
        return self._files is None or self._files.tasks.have_begun()

    def spawn(
        self, command: Sequence[bytes], environment: Mapping[bytes, bytes], odd: Sequence[bytes], task: int, pgid: int,
        *more: tuple[int, int],
    ) -> int:  # fmt: skip
        """Spawn one more waiting task, of this number; return its process id.

        With `pgid` 0 it is the first of a process group. `odd` is the result of `odd_names` for its environment; `more`
        descriptors are handed over as (our descriptor, the task's).
        """
        stdout, stderr = self._streams.descriptors_of(task)
        if self._own:
            self._close_read()
            self._read = self._pipe()
        handed = [ENV, b"--", *[name + b"=" + environment[name] for name in odd]] if odd else []
        words = [*self._begin, *handed, *command]
        if self._files is not None:
            pid = self._fork(self._files, words, environment, task, pgid, stdout, stderr, more)
            self._waiting += 1
            return pid
        group: dict[str, Any] = {"setpgroup": pgid}
        if self._terminal is not None:
            self._terminal.keep_output(stdout)
            group = {"setsid": True}
        pid = _exec(SHELL, words, environment, [(self._read, 0), (stdout, 1), (stderr, 2), *more], group)
        self._waiting += 1
        return pid

    def run(
        self,
        command: list[bytes],
        environment: dict[bytes, bytes],
        task: int,
        units: set[int] | None,
        programs: LocalPrograms,
    ) -> tuple[int, bool] | None:
        """Spawn the only task, which runs at once: the process id, and whether it is bound to these processing units.

        None if a shell has to: where the program is none of `programs`, its file may keep us waiting, and where it
        cannot be run the shell says why.
        """
        if self._cwd is None:
            return None
        program = programs.find(command[0], environment, self._cwd)
        if program is None:
            return None
        stdout, stderr = self._streams.descriptors_of(task)
        self._read = self._pipe()
        if b"PWD" in environment:
            environment[b"PWD"] = self._cwd
        try:
            with (
                low_descriptors(self._limit, [self._read, stdout, stderr]) as low,
                _as_task(self._cwd, self._limit, units) as is_pinned,
            ):
                pid = _exec(program, command, environment, list(zip(low, range(3), strict=True)), {"setpgroup": 0})
        except OSError:
            os.close(self._writes.pop())
            return None
        self._is_ungated = True
        return pid, is_pinned

    def _fork(
        self, files: UserFiles, words: Sequence[bytes], environment: Mapping[bytes, bytes], task: int, pgid: int,
        stdout: int, stderr: int, more: Sequence[tuple[int, int]],
    ) -> int:  # fmt: skip
        """Have a process become the user and then the shell; a descriptor of -1 is opened by that process."""
        read, terminal = self._read, self._terminal
        if terminal is not None:
            if stdout < 0:
                raise Refused("a job with a terminal has no file for its output: leave out --output or --pty")
            terminal.keep_output(stdout)
            terminal.give_to(files.tasks.userid)

        def work() -> TaskProgram:
            own_stdout, own_stderr = files.open(task, stdout, stderr)
            return TaskProgram(words, environment, [(read, 0), (own_stdout, 1), (own_stderr, 2), *more])

        kept = {fd for fd in (read, stdout, stderr, *[ours for ours, _ in more]) if fd >= 0}
        return files.tasks.spawn(kept, pgid if terminal is None else None, work)

    @property
    def spooled(self) -> list[str]:
        """Return the names of the files in the job's spool directory that are open for the tasks."""
        return list(self._streams.spooled)

    def write_note(self, text: str) -> None:
        """Write a message of the instance to the job's stderr."""
        self._streams.write_note(text)

    def complete(self) -> None:
        """Keep only the writing end of the gate, after all tasks have been spawned."""
        self._streams.close()
        self._close_read()

    def _close_read(self) -> None:
        if self._read >= 0:
            os.close(self._read)
            self._read = -1

    def open(self) -> list[int]:
        """Let every task run; those killed while they waited are ignored.

        Gives up the tasks' own pipes: their writing ends, in the order of the tasks; none if the tasks read a file.
        """
        for write in () if self._is_ungated else self._writes:
            with contextlib.suppress(BrokenPipeError):
                os.write(write, GO if self._own else GO * self._waiting)
        own: list[int] = []
        if self._own:
            own, self._writes = self._writes, []
        self.close()
        return own

    def close(self) -> None:
        """Give up all descriptors: tasks that still wait leave unrun."""
        self.complete()
        if self._files is not None:
            self._files.tasks.close()
        while self._writes:
            os.close(self._writes.pop())


def _exec(
    program: bytes, words: list[bytes], environment: Mapping[bytes, bytes], files: Sequence[tuple[int, int]],
    group: Mapping[str, Any],
) -> int:  # fmt: skip
    return os.posix_spawn(
        program,
        words,
        environment,
        file_actions=[(os.POSIX_SPAWN_DUP2, ours, there) for ours, there in files],
        **group,
        setsigmask=(),
        setsigdef=DEFAULTED,
    )


@cache
def reserved_descriptors() -> tuple[int, int, int, int]:
    """Return descriptors of /dev/null; the lowest that are free when this is first called."""
    null = os.open(os.devnull, os.O_RDWR)
    return null, os.dup(null), os.dup(null), os.dup(null)


@contextlib.contextmanager
def low_descriptors(limit: int | None, files: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield three descriptors of the same files that a task with this limit can take over; none above it can be."""
    if limit is None or max(files) < limit:
        yield files
        return
    null, *low = reserved_descriptors()
    try:
        for ours, there in zip(files, low, strict=True):
            os.dup2(ours, there, inheritable=False)
        yield low
    finally:
        for there in low:
            os.dup2(null, there, inheritable=False)


@contextlib.contextmanager
def _as_task(cwd: bytes, limit: int | None, units: set[int] | None) -> Iterator[bool]:
    """Put this process into a task's directory, limit of descriptors and processing units for the block; yield whether
    it is bound to them. Raises OSError for the directory.
    """
    back, had = os.open(".", os.O_PATH | os.O_CLOEXEC), resource.getrlimit(resource.RLIMIT_NOFILE)
    ran_on = os.sched_getaffinity(0) if units else None
    try:
        os.chdir(cwd)
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, had[1]))
        yield _pin(0, units)
    finally:
        if ran_on is not None:
            _pin(0, ran_on)
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, had)
        with contextlib.suppress(OSError):  # of a file system that fails: the task runs, and needs no second one
            os.fchdir(back)
        os.close(back)


def seal_descriptors() -> None:
    """Withhold from tasks the descriptors that this process inherited itself; those that Python opens are never
    inherited.
    """
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):  # closed in between
                os.set_inheritable(int(name), False)


def more_descriptors() -> int | None:
    """Let this process have up to DESCRIPTORS_MAX, if the system does: each running task costs one, each job another.

    Answers the soft limit it had, None if that stays. Tasks get it back: select(2) knows no descriptor above 1023.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    more = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(DESCRIPTORS_MAX, hard)
    if soft == resource.RLIM_INFINITY or soft >= more:
        return None
    resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
    return soft


def odd_names(environment: Mapping[bytes, bytes]) -> list[bytes]:
    """Return the variables that a shell would not pass on."""
    return [name for name in environment if name in SHELL_OWN or not SHELL_NAME.fullmatch(name)]


def made_up_names(environment: Mapping[bytes, bytes]) -> list[bytes]:
    """Return the variables that the shell must not pass on, since the job's environment has none of that name."""
    return [name for name in SHELL_ADDS if name not in environment]
