"""The sockets between the tasks of one job and its PMI server (`protocol.pmi`, RFC 13).

Law: a task inherits its end as descriptor PMI_FD, and no other process has it; ours never blocks, and a task that does
not read its answers loses its connection. A job of one task has no server: MPI programs start as singletons without
one, and most jobs are such. Tasks that were asked to end may leave in any way; otherwise the loss of a task that the
program cannot do without ends the job.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from functools import partial

from fluxsched.core.idset import Idset
from fluxsched.core.job_text import ended_text
from fluxsched.core.jobid import format_f58
from fluxsched.protocol.pmi import Failed, Hangup, PmiEffect, PmiReply, PmiServer
from fluxsched.system.log import logger, of_job
from fluxsched.system.loop import Turns, ended_status

log = logger("pmi")

PMI_FD = 30
"""The descriptor of a task's end: above those that shell scripts redirect, below every limit."""
READ_BYTES = 64 * 1024
LEFT_LOOK_S = 0.02
"""A connection ends a moment before its process does (seconds): after this time it is known how that ended."""


class JobPmi:
    """The connections of one job's tasks. Owns our ends; `close` is idempotent."""

    def __init__(self, turns: Turns, jobid: int, ntasks: Sequence[int], failed: Callable[[str, int], None]) -> None:
        """`ntasks` are the tasks of each target; `failed` is called once with the reason why the program cannot
        continue, and the exit code that it gave (0: none).
        """
        self._turns = turns
        self._server = PmiServer(f"fluxsched-{format_f58(jobid, ascii=True)}", ntasks)
        self._failed = failed
        self._jobid = jobid
        self._ends: dict[int, socket.socket] = {}
        self._pids: Sequence[int] = ()
        self._ending = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def connect(self) -> socket.socket:
        """Return the end of the next task, to be closed once it has been passed on. Raises OSError."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._ends[len(self._ends)] = ours
        return theirs

    def variables(self, rank: int) -> dict[bytes, bytes]:
        """Return the variables that describe a task's end of the connection (RFC 13)."""
        return {
            b"PMI_FD": str(PMI_FD).encode(),
            b"PMI_RANK": str(rank).encode(),
            b"PMI_SIZE": str(self._server.size).encode(),
        }

    def opened(self, pids: Sequence[int]) -> None:
        """Note that the tasks run from now on."""
        self._pids = pids
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

    def close(self) -> None:
        """Close the connections of all tasks."""
        self._ending = True
        for rank in list(self._ends):
            self._shut(rank)

    def _ready(self, rank: int) -> None:
        try:
            data = self._ends[rank].recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._shut(rank)
        effects = self._server.receive(rank, data) if data else self._server.ended(rank)
        if effects:
            self._turns.post(lambda: self._perform(effects))

    def _perform(self, effects: list[PmiEffect]) -> None:
        for effect in effects:
            if isinstance(effect, PmiReply):
                self._send(effect.rank, effect.line)
            elif isinstance(effect, Hangup):
                self._hang_up(effect.rank, effect.note)
            elif effect.left:
                self._turns.after(LEFT_LOOK_S, partial(self._fail, effect))
            else:
                self._fail(effect)

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
            how = self._how(effect.rank) if effect.left else ""
            self._failed(f"task {effect.rank}{how} {effect.note}", effect.exit_code)

    def _how(self, rank: int) -> str:
        """Return a text on how a task has ended; empty while it has not."""
        try:
            status = ended_status(self._pids[rank])
        except ChildProcessError:
            return ""
        return "" if status is None else f" ({ended_text(status)})"
