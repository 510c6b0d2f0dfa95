"""The program of `[notify]`, which is told of all job events: one process, which reads a line of JSON for each.

Law: the instance never waits for it. Events that are on disk are put into a queue of bounded size, and written as the
pipe takes them; what finds no room is dropped, counted, and said, in the log and in a line to the program. A program
that ends is started again after a pause that doubles, and gets what is still in the queue; what was in its pipe is lost
with it, so a line arrives once at most. It ends by the end of its input when the instance ends.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from fluxsched.core.jobid import format_f58
from fluxsched.core.programs import PROGRAM_PATH
from fluxsched.jobs.job import JobSummary
from fluxsched.services.job_effects import JobEvents
from fluxsched.system.files import user_name
from fluxsched.system.log import logger
from fluxsched.system.loop import ExitWatch, Turns
from fluxsched.system.processes import Restarts

log = logger("notify")

NOTIFY_QUEUE_BYTES_MAX = 8 << 20
"""Lines that wait for a program that does not read: some 40,000 events."""
NOTIFY_LINE_BYTES_MAX = 64 << 10
"""Larger events, such as a job's growth by a thousand targets, are dropped: people are told of the job's start."""
WRITES_MAX: Final = 64
"""Lines written before others get their turn."""
NOTIFY_AGAIN_S, NOTIFY_AGAIN_MAX_S = 1.0, 60.0
"""First pause before a program that has ended is started again, and the longest (seconds)."""

_encode = msgspec.json.encode


class NotifyProgram:
    """Runs the program, and writes events to it."""

    def __init__(
        self, turns: Turns, words: Sequence[str], environment: Mapping[str, str], job: Callable[[int], JobSummary], *,
        queue_bytes_max: int = NOTIFY_QUEUE_BYTES_MAX, again_s: float = NOTIFY_AGAIN_S,
    ) -> None:  # fmt: skip
        """Start the program, within the loop of the turns; `job` returns a job that is known."""
        self._turns = turns
        self.words = tuple(words)
        self._environment = {"PATH": PROGRAM_PATH, **environment}
        self._job = job
        self._queue_bytes_max = queue_bytes_max
        self._restarts = Restarts(turns, self._start, again_s, NOTIFY_AGAIN_MAX_S)
        self._loop = asyncio.get_running_loop()
        self._lines: deque[bytes] = deque()
        self._queued_bytes = 0
        self._rest = b""
        """Rest of a line that is partly written."""
        self._missing = 0
        """Events that were dropped since the program was told of such."""
        self._is_writing = False
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: ExitWatch | None = None
        self._is_over = False
        self.dropped = 0
        """Events that were dropped since this began."""
        self.starts = 0
        self._restarts.begin()

    def publish(self, stretches: Sequence[JobEvents]) -> None:
        """Queue events that are on disk."""
        for jobid, events in stretches:
            job = self._job(jobid)
            about = {
                "id": jobid, "job": format_f58(jobid), "userid": job.userid, "user": user_name(job.userid),
                "name": job.name,
            }  # fmt: skip
            for event in events:
                self._put(_encode({**about, "event": event}) + b"\n")
        self._write()

    def close(self, *, at_end: bool = True) -> None:
        """End the program's input; it ends by that, which is noted unless the loop is `at_end`."""
        self._is_over = True
        self._restarts.cancel()
        if self._watch is not None and at_end:
            self._watch.close()
        if self._process is not None:
            self._end_input(self._process)
            if at_end:
                self._process.poll()
                self._process.returncode = self._process.returncode or 0  # it may read on
        if self._lines or self._rest:
            log.warning("%d events were not read by %s", len(self._lines) + bool(self._rest), self.words[0])

    # -- the queue ----------------------------------------------------------------------------------------------

    def _put(self, line: bytes) -> None:
        if len(line) > NOTIFY_LINE_BYTES_MAX or self._queued_bytes + len(line) > self._queue_bytes_max:
            self._drop(1)
            return
        if self._missing:
            count, self._missing = self._missing, 0
            log.warning("%d events were dropped, since %s had not read those before", count, self.words[0])
            self._add(_encode({"dropped": count}) + b"\n")
        self._add(line)

    def _add(self, line: bytes) -> None:
        self._lines.append(line)
        self._queued_bytes += len(line)

    def _drop(self, count: int) -> None:
        if not self._missing:
            log.warning("events are dropped: %s does not read them fast enough, or they are too large", self.words[0])
        self._missing += count
        self.dropped += count

    def _write(self) -> None:
        """Write what the pipe takes, and go on when it takes more."""
        process = self._process
        if process is None or process.stdin is None or process.stdin.closed:
            return
        fd = process.stdin.fileno()
        try:
            for _ in range(WRITES_MAX):
                if not self._rest:
                    if not self._lines:
                        break
                    self._rest = self._lines.popleft()
                    self._queued_bytes -= len(self._rest)
                self._rest = self._rest[os.write(fd, self._rest) :]
        except BlockingIOError:
            pass
        except OSError:  # it reads no more; its end follows, or it is as good as ended
            self._end_input(process)
            process.kill()
            return
        wants = bool(self._rest or self._lines)
        if wants and not self._is_writing:
            self._loop.add_writer(fd, self._write)
        elif self._is_writing and not wants:
            self._loop.remove_writer(fd)
        self._is_writing = wants

    # -- the process --------------------------------------------------------------------------------------------

    def _start(self) -> None:
        try:
            process = subprocess.Popen(
                self.words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, bufsize=0,
                cwd="/", env=self._environment, start_new_session=True,
            )  # fmt: skip
        except OSError as fault:
            self._failed(str(fault))
            return
        assert process.stdin is not None, "its input is a pipe"
        os.set_blocking(process.stdin.fileno(), False)
        self._process, self.starts = process, self.starts + 1
        self._watch = ExitWatch(self._loop, process.pid, lambda: self._turns.post(self._ended))
        self._write()

    def _ended(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        self._end_input(process)
        status = process.wait()
        if self._is_over:
            return
        if self._rest:
            self._rest = b""
            self._drop(1)
        self._failed(f"it ended with status {status}")

    def _failed(self, why: str) -> None:
        log.error("%s: %s; it is started again in %g s", self.words[0], why, self._restarts.ended())

    def _end_input(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdin is not None and not process.stdin.closed:
            self._loop.remove_writer(process.stdin.fileno())
            process.stdin.close()
        self._is_writing = False

    def report(self) -> dict[str, Any]:
        """Return the statistics shown by `instance.stats-get`."""
        return {"queued": len(self._lines), "dropped": self.dropped, "starts": self.starts}
