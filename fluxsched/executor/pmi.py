"""The sockets between the tasks of one job and its PMI server (`protocol.pmi`, RFC 13).

Law: a task inherits its end as descriptor PMI_FD, and no other process has it; ours never blocks, and a task that does
not read its answers loses its connection. A job of one task has no server: MPI programs start as singletons without
one, and most jobs are such. Tasks that were asked to end may leave in any way; otherwise the loss of a task that the
program cannot do without ends the job.

The tasks of a job on several hosts have a server on each; what these exchange goes over the instance (`PmiFences`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from fluxsched.core.idset import Idset
from fluxsched.core.job_text import ended_text
from fluxsched.core.jobid import format_f58
from fluxsched.executor.wire import PmiFence, PmiFenceDone
from fluxsched.protocol.pmi import Failed, Fence, Hangup, PmiEffect, PmiReply, PmiServer
from fluxsched.system.log import logger, of_job
from fluxsched.system.loop import Turns, ended_status

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
        """Note that the targets of these tasks are given back: their exit is no failure, but others may wait for them.
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
