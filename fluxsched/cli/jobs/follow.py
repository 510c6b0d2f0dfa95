"""Following many jobs to their end: how each ended, their output, and progress.

Law: one stream reports all ends; of output streams OUTPUTS_MAX are open at a time, those of the jobs submitted first.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import click

from fluxsched.cli.common import show
from fluxsched.cli.common.options import InstanceHandle
from fluxsched.cli.common.progress import ProgressLine
from fluxsched.cli.jobs.attach import OutputWriter, report_end
from fluxsched.errors import RPCError
from fluxsched.system.clock import SystemClock

OUTPUTS_MAX = 256
"""Jobs whose output is followed at once: the instance looks at their files fifty times a second."""

StreamItem = Mapping[str, Any] | RPCError | None


class JobFollower:
    """Waits for jobs; `status` is the highest exit status of those that have ended."""

    def __init__(self, handle: InstanceHandle, jobids: Sequence[int], *, output: bool, labelled: bool) -> None:
        self.status = 0
        self.ended = 0
        self._handle = handle
        self._waiting = True
        self._fault: RPCError | None = None
        self._unread = deque(jobids if output else ())
        self._reading = 0
        self._labelled = labelled
        self._output = output
        handle.subscribe("job-manager.wait-all", {"ids": list(jobids)}, self._take_end)
        while self._unread and self._reading < OUTPUTS_MAX:
            self._read_next()

    @property
    def is_done(self) -> bool:
        """Whether all have ended and all that they wrote is shown. Raises what a stream failed with."""
        if self._fault is not None:
            raise self._fault
        return not (self._waiting or self._reading)

    def _take_end(self, result: StreamItem) -> None:
        if isinstance(result, RPCError):
            self._fault = result
        elif result is None:
            self._waiting = False
        else:
            self.ended += 1
            self.status = max(self.status, report_end(result))
            if self._output and result.get("last"):  # submitted again: what it wrote then comes now
                self._unread.append(result["last"])
                if self._reading < OUTPUTS_MAX:
                    self._read_next()

    def _read_next(self) -> None:
        jobid = self._unread.popleft()
        prefix = f"{show.jobid_text(jobid)}: ".encode(errors="replace") if self._labelled else b""
        writer = OutputWriter(self._labelled, prefix)
        self._reading += 1

        def take(piece: StreamItem) -> None:
            if isinstance(piece, Mapping):
                writer.write(piece)
                return
            writer.finish()
            self._reading -= 1
            self._fault = self._fault or piece
            if self._unread:
                self._read_next()

        self._handle.subscribe("job-manager.output", {"id": jobid, "follow": True}, take)


def follow(
    handle: InstanceHandle, jobids: Sequence[int], *, output: bool, labelled: bool, progress: bool, jps: bool
) -> int:
    """Wait until all jobs have ended and report failures; return the highest exit status."""
    begun_s = SystemClock.monotonic_s()
    line = ProgressLine("jobs", SystemClock.monotonic_s) if progress and sys.stderr.isatty() else None
    follower = JobFollower(handle, jobids, output=output, labelled=labelled)
    try:
        while not follower.is_done:
            handle.listen(None)
            if line is not None:
                line(follower.ended, len(jobids), 0.0)
    finally:
        if line is not None:
            line.clear()
    if jps:
        took_s = max(SystemClock.monotonic_s() - begun_s, 1e-6)
        text = f"{len(jobids):,} jobs in {show.duration_text(took_s)}: {len(jobids) / took_s:,.1f} jobs/s"
        click.echo(text, err=True)
    return follower.status
