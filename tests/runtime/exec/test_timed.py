"""Test execution: only time passes, and a signal ends it as it would end a process."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import InvalidValue
from fluxsched.runtime.exec.base import JobLaunch, Reports
from fluxsched.runtime.exec.timed import TimedExecutor
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.system.clock import SystemClock

WAIT_S = 5.0


class Timed:
    def __init__(self) -> None:
        self.turns = Turns(SystemClock())
        self.said: list[tuple[object, ...]] = []
        self.recorded: list[int] = []
        self.executor = TimedExecutor(
            self.turns,
            Reports(
                lambda jobid: self.said.append(("started", jobid)),
                lambda jobid, status, usage: self.said.append(("finished", jobid, status)),
                lambda jobid, note: self.said.append(("failed", jobid, note)),
                lambda jobid, record, then: self.recorded.append(jobid),
                lambda jobid, kind, note: self.said.append(("raised", jobid, kind, note)),
            ),
        )
        self.turns.start(asyncio.get_running_loop())

    def start(self, jobid: int, duration_s: float | None) -> None:
        jobspec = Jobspec.from_command(["true"], test_run_duration_s=duration_s)
        self.executor.start(JobLaunch(jobid, jobspec, {}, {}, Path("unused"), None))

    async def until(self, *expected: tuple[object, ...]) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(self.said) < len(expected):
                await asyncio.sleep(0.001)
        assert self.said == list(expected)


@pytest.fixture
async def timed() -> Timed:
    return Timed()


async def test_jobs_end_in_the_order_of_their_durations(timed: Timed) -> None:
    timed.start(1, 0.02)
    timed.start(2, 0.001)
    await timed.until(("started", 1), ("started", 2), ("finished", 2, 0), ("finished", 1, 0))
    assert not timed.recorded, "no process, nothing to keep"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
async def test_a_terminating_signal_ends_a_job_at_once_and_once(timed: Timed, signum: int) -> None:
    timed.start(1, 60.0)
    timed.executor.kill(1, signum)
    timed.executor.kill(1, signum)
    await timed.until(("started", 1), ("finished", 1, signum))
    await asyncio.sleep(0)
    assert len(timed.said) == 2


async def test_a_harmless_signal_changes_nothing(timed: Timed) -> None:
    timed.start(1, 0.01)
    timed.executor.kill(1, signal.SIGUSR1)
    timed.executor.kill(99, signal.SIGKILL)
    await timed.until(("started", 1), ("finished", 1, 0))


async def test_after_close_nothing_is_reported(timed: Timed) -> None:
    timed.start(1, 0.005)
    timed.start(2, 60.0)
    timed.executor.close()
    timed.executor.kill(2, signal.SIGKILL)
    await asyncio.sleep(0.01)
    assert timed.said == [("started", 1), ("started", 2)]


async def test_a_job_without_a_run_duration_is_refused(timed: Timed) -> None:
    with pytest.raises(InvalidValue, match="run_duration"):
        timed.start(1, None)
    assert timed.said == []
