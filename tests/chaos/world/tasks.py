"""The tasks of jobs, and an executor that runs them: nothing but time passes.

A job's command is `task RUN_S STATUS [stubborn]`: it ends after RUN_S with that wait status, or soon after a signal
with the signal as its status; a stubborn one ends at SIGKILL only.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from fluxsched.errors import InvalidValue
from fluxsched.runtime.exec.base import JobLaunch, Reports, ResumedJob
from fluxsched.runtime.exec.timed import HARMLESS
from fluxsched.runtime.loop.turns import Turns
from tests.chaos.observations import Observation, TaskBegan, TaskEnded
from tests.chaos.wire import cores_of
from tests.chaos.world.processes import Process
from tests.chaos.world.virtual_time import Event, VirtualTime

SPAWN_S = 0.001, 0.01
"""How long it takes until the tasks of a job run (seconds)."""
DIE_S = 0.001, 0.3
"""How long tasks take to end when they are asked to."""
ATTEMPT = 1
"""A job that is tried again has another id."""


class Task:
    """What runs of one job."""

    def __init__(self, jobid: int, words: tuple[str, ...], cores: Mapping[int, frozenset[int]]) -> None:
        self.jobid = jobid
        self.run_s = float(words[1])
        self.status = int(words[2])
        self.is_stubborn = "stubborn" in words
        self.cores = cores
        self.end: Event | None = None
        self.ended: Callable[[int], None] = lambda status: None
        self.killing: Event | None = None


class Tasks:
    """What really runs, whoever started it."""

    def __init__(self, time: VirtualTime, chance: Random, observe: Callable[[Observation], None]) -> None:
        self.time = time
        self.chance = chance
        self.running: dict[int, Task] = {}
        self._observe = observe

    def begin(self, task: Task) -> None:
        """The tasks of a job run from now on."""
        self.running[task.jobid] = task
        self._observe(TaskBegan(self.time.now_s, task.jobid, ATTEMPT, task.cores))
        task.end = self.time.after(task.run_s, lambda: self.over(task, task.status))

    def over(self, task: Task, status: int) -> None:
        """They have ended. Idempotent."""
        if self.running.get(task.jobid) is task:
            del self.running[task.jobid]
            if task.end is not None:
                task.end.cancel()
            self._observe(TaskEnded(self.time.now_s, task.jobid, ATTEMPT, status))
            task.ended(status)

    def signal(self, task: Task, signum: int) -> None:
        """Send a signal to the tasks of a job."""
        if signum not in HARMLESS and (signum == signal.SIGKILL or not task.is_stubborn):
            self.time.after(self.chance.uniform(*DIE_S), lambda: self.over(task, int(signum)))


class SimExecutor:
    """An `Executor` whose tasks die with the instance."""

    def __init__(self, tasks: Tasks, process: Process, turns: Turns, reports: Reports, kill_timeout_s: float) -> None:
        self._tasks = tasks
        self._turns = turns
        self._process = process
        self._reports = reports
        self._kill_timeout_s = kill_timeout_s
        self._known: dict[int, Task] = {}
        process.on_end.append(self._died)

    def resume(self, jobs: Sequence[ResumedJob], records: Mapping[int, object], settled: Callable[[], None]) -> None:
        """See `Executor.resume`: what ran is dead."""
        for jobid in records:
            self._reports.record(jobid, None, lambda: None)
        for job in jobs:
            if job.record is None and not job.is_ending:
                self.start(job.launch)
            else:
                self._reports.failed(job.launch.jobid, "the instance was restarted; no process of the job was left")
        settled()

    def limit(self, jobid: int, expiration_s: float) -> None:
        """See `Executor.limit`."""

    def input_of(self, jobid: int) -> None:
        """See `Executor.input_of`."""

    def leave(self, within_s: float) -> None:
        """See `Executor.leave`."""

    def start(self, job: JobLaunch) -> None:
        """See `Executor.start`."""
        self._process.effect()
        words = job.jobspec.command
        if words[0] != "task" or len(words) < 3:
            raise InvalidValue(f"cannot start the job: {words[0]!r} is no command of simulated tasks")
        resources: dict[str, Any] = dict(job.R)
        task = Task(job.jobid, tuple(words), cores_of(resources))
        self._known[job.jobid] = task
        self._reports.record(job.jobid, {"simulated": job.jobid}, lambda: self._recorded(task))

    def _recorded(self, task: Task) -> None:
        tasks = self._tasks
        self._turns.after(tasks.chance.uniform(*SPAWN_S), lambda: self._spawn(task))

    def _spawn(self, task: Task) -> None:
        if self._known.get(task.jobid) is task:
            self._process.effect()
            task.ended = lambda status: self._process.run(lambda: self._turns.post(lambda: self._ended(task, status)))
            self._tasks.begin(task)
            self._reports.started(task.jobid)

    def kill(self, jobid: int, signum: int, grace_s: float | None = None) -> None:
        """See `Executor.kill`."""
        task = self._known.get(jobid)
        if task is None:
            return
        self._process.effect()
        if jobid not in self._tasks.running:  # it has not begun
            if signum not in HARMLESS:
                self._turns.post(lambda: self._ended(task, int(signum)))
            return
        self._tasks.signal(task, signum)
        if signum in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            delay_s = self._kill_timeout_s if grace_s is None else grace_s
            self._turns.after(delay_s, lambda: self.kill(jobid, signal.SIGKILL))

    def close(self) -> None:
        """See `Executor.close`."""

    def _ended(self, task: Task, status: int) -> None:
        if self._known.pop(task.jobid, None) is not None:
            self._reports.record(task.jobid, None, lambda: None)
            self._reports.finished(task.jobid, status, None)

    def _died(self, reason: str) -> None:
        for task in self._known.values():
            self._tasks.over(task, int(signal.SIGKILL))
