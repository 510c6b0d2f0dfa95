"""Output that the tasks of one job have written so far, read in small pieces from the files in its spool directory.

Law: a piece is bounded, however many tasks there are and however much they write, and every task gets its turn. A job
of one task has one file a stream; else each task has its own, made in the order of their numbers: so only the next
number has to be looked for, and no directory is ever listed. Long output is cut at the end of a line where possible,
and so is all that several tasks write as long as they run: their lines do not run into each other.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fluxsched.errors import Refused
from fluxsched.executor.base import spool_name
from fluxsched.protocol.messages.jobs import OutputResponse

StreamName = Literal["stdout", "stderr"]
STREAM_NAMES: tuple[StreamName, ...] = ("stdout", "stderr")

CHUNK_BYTES = 64 * 1024
"""Bytes of output in one response."""
TASK_CHUNKS = 16
"""Responses in a row from one stream of a task, so that one that floods its output does not starve the others."""
TURN_CHUNKS = 32
"""Responses in one turn, of all jobs that are followed (2 MiB)."""
TURN_LOOKS = 512
"""Files looked at in one turn, for all jobs that are followed (2 ms): 16 turns go once round a job of 4096 tasks."""


@dataclass(slots=True)
class Budget:
    """Work that may still be done in this turn."""

    looks: int = TURN_LOOKS
    chunks: int = TURN_CHUNKS

    @property
    def is_spent(self) -> bool:
        """Return whether the rest has to wait for the next turn."""
        return self.looks <= 0 or self.chunks <= 0


class _Task:
    """Positions up to which one task's files have been read; `number` is None for the only task of a job."""

    __slots__ = ("exists", "number", "offsets")

    def __init__(self, number: int | None) -> None:
        self.number = number
        self.offsets: dict[StreamName, int] = dict.fromkeys(STREAM_NAMES, 0)
        self.exists = False


class TaskOutput:
    """Reads what a job's tasks write, wherever the last bite ended, `chunk_bytes` at a time."""

    def __init__(self, directory: Path, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._directory = str(directory)
        self._chunk_bytes = chunk_bytes
        self._tasks = deque((_Task(None), _Task(0)))

    @property
    def is_complete(self) -> bool:
        """Return whether everything has been read of a job that had ended."""
        return not self._tasks

    def bite(self, budget: Budget, *, ended: bool) -> Iterator[OutputResponse]:
        """Yield new output, of each task at most once and within the budget.

        Raises Refused for a file that cannot be read.

        `ended`: nothing is written any more, so that a task that has been read to its end needs no further look.
        """
        left = len(self._tasks)
        while left > 0 and not budget.is_spent:
            left -= 1
            task = self._tasks.popleft()
            was_known = task.exists
            at_end = yield from self._both(task, budget, ended)
            if task.exists and not was_known and task.number is not None:
                self._tasks.appendleft(_Task(task.number + 1))
                left += 1
            if not (ended and at_end):
                self._tasks.append(task)

    def _both(self, task: _Task, budget: Budget, ended: bool) -> Generator[OutputResponse, None, bool]:
        at_end = True
        for stream in STREAM_NAMES:
            at_end &= yield from self._stream(task, stream, budget, ended)
        return at_end

    def _stream(
        self, task: _Task, stream: StreamName, budget: Budget, ended: bool
    ) -> Generator[OutputResponse, None, bool]:
        path = f"{self._directory}/{spool_name(stream, task.number)}"
        for _ in range(TASK_CHUNKS):
            if budget.chunks <= 0:
                break  # one response may count as several
            budget.looks -= 1
            data = _read(path, task.offsets[stream], self._chunk_bytes)
            if not data:
                task.exists |= data is not None
                return True
            task.exists = True
            is_last = len(data) < self._chunk_bytes
            if not is_last or (task.number is not None and not ended):
                data = data[: data.rfind(b"\n") + 1] or data
            task.offsets[stream] += len(data)
            budget.chunks -= 1
            yield OutputResponse(stream=stream, data=data, task=task.number or 0)
            if is_last:
                return True
        return False


def _read(path: str, offset: int, size: int) -> bytes | None:
    """Return the content of the file from the offset on, `size` bytes at most; None if there is no file."""
    try:
        if os.stat(path).st_size <= offset:
            return b""
        with open(path, "rb", buffering=0) as file:
            file.seek(offset)
            return file.read(size)
    except FileNotFoundError:
        return None
    except OSError as exc:
        name = os.path.basename(path)
        raise Refused(f"cannot read {name} of the job: {os.strerror(exc.errno or 0)}", exc.errno) from exc
