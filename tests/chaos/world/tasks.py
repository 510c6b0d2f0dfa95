"""The tasks of jobs, and the executor of a keeper that runs them: nothing but time passes.

A job's command is `task RUN_S STATUS [stubborn]`: it ends after RUN_S with that wait status, or soon after a signal
with the signal as its status; a stubborn one ends at SIGKILL only.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.errors import InvalidValue
from fluxsched.executor.base import ENDING, JobLaunch, Measured, Reports
from fluxsched.executor.timed import HARMLESS
from fluxsched.executor.wire import PmiFenceDone
from fluxsched.system.loop import Turns
from tests.chaos.observations import Observation, TaskBegan, TaskEnded, TaskGrew, TaskShrank
from tests.chaos.wire import cores_of
from tests.chaos.world.processes import Process
from tests.chaos.world.programs import Program, Programs
from tests.chaos.world.virtual_time import Event, VirtualTime

SPAWN_S = 0.001, 0.01
"""How long it takes until the tasks of a job run (seconds)."""
DIE_S = 0.001, 0.3
"""How long tasks take to end when they are asked to."""
ATTEMPT = 1
"""A job that is tried again has another id."""


class Task:
    """What runs of one job."""

    def __init__(
        self, jobid: int, words: tuple[str, ...], cores: Mapping[int, frozenset[int]], program: Program | None = None
    ) -> None:
        self.jobid = jobid
        self.program = program
        self.run_s = float(words[1])
        self.status = int(words[2])
        self.is_stubborn = "stubborn" in words
        self.cores = dict(cores)
        self.wanted = set(cores)
        """The ranks where it is to run."""
        self.end: Event | None = None
        self.ended: Callable[[int], None] = lambda status: None
        self.killed_by: int | None = None
        """The signal that ended them before they ran."""


class Tasks:
    """What really runs, whoever started it."""

    def __init__(
        self, time: VirtualTime, chance: Random, observe: Callable[[Observation], None], programs: Programs
    ) -> None:
        self.programs = programs
        self.time = time
        self.chance = chance
        self.running: dict[int, Task] = {}
        self._observe = observe

    def begin(self, task: Task) -> None:
        """The tasks of a job run from now on."""
        self.running[task.jobid] = task
        now_s, program = self.time.now_s, task.program
        self._observe(
            TaskBegan(now_s, task.jobid, ATTEMPT, dict(task.cores)) if program is None else program.began(now_s)
        )
        task.end = self.time.after(task.run_s, lambda: self.over(task, task.status))

    def over(self, task: Task, status: int) -> None:
        """They have ended. Idempotent."""
        if self.running.get(task.jobid) is task:
            del self.running[task.jobid]
            if task.end is not None:
                task.end.cancel()
            now_s, program = self.time.now_s, task.program
            self._observe(
                TaskEnded(now_s, task.jobid, ATTEMPT, status) if program is None else program.ended(now_s, status)
            )
            task.ended(status)

    def grow(self, task: Task, cores: Mapping[int, frozenset[int]]) -> None:
        """They run there, too, from now on; or will, if they do not run yet."""
        more = {rank: some for rank, some in cores.items() if rank in task.wanted and rank not in task.cores}
        task.cores |= more
        if more and self.running.get(task.jobid) is task:
            self._observe(TaskGrew(self.time.now_s, task.jobid, more))

    def shrink(self, task: Task, ranks: Iterable[int]) -> None:
        """Those there have ended."""
        left = frozenset([rank for rank in ranks if task.cores.pop(rank, None) is not None])
        if left and self.running.get(task.jobid) is task:
            self._observe(TaskShrank(self.time.now_s, task.jobid, left))

    def clear(self, jobids: Iterable[int], cleared: Callable[[dict[int, str]], None]) -> None:
        """End what is left of these jobs, and say what that was."""
        notes = {jobid: "its tasks were killed" if jobid in self.running else "nothing was left" for jobid in jobids}

        def end() -> None:
            for jobid in notes:
                if jobid in self.running:
                    self.over(self.running[jobid], int(signal.SIGKILL))
            cleared(notes)

        self.time.after(self.chance.uniform(*DIE_S), end)

    def signal(self, task: Task, signum: int) -> None:
        """Send a signal to the tasks of a job."""
        if signum not in HARMLESS and (signum == signal.SIGKILL or not task.is_stubborn):
            self.time.after(self.chance.uniform(*DIE_S), lambda: self.over(task, int(signum)))


class SimExecutor:
    """The `TaskExecutor` of one keeper. Tasks behind their gate die with it; those that run do not."""

    def __init__(self, tasks: Tasks, process: Process, turns: Turns, reports: Reports) -> None:
        self.kill_timeout_s = 0.0
        self._tasks = tasks
        self._process = process
        self._turns = turns
        self._reports = reports
        self._known: dict[int, Task] = {}

    def start(self, job: JobLaunch) -> None:
        """See `TaskExecutor.start`."""
        self._process.effect()
        words, program = self._tasks.programs.read(job)
        if words[0] != "task" or len(words) < 3:
            raise InvalidValue(f"cannot start the job: {words[0]!r} is no command of simulated tasks")
        resources: dict[str, Any] = dict(job.R)
        task = Task(job.jobid, words, cores_of(resources), program)
        self._known[job.jobid] = task
        self._turns.after(self._tasks.chance.uniform(*SPAWN_S), lambda: self._spawned(task))

    def _spawned(self, task: Task) -> None:
        self._reports.record(task.jobid, {"simulated": task.jobid}, lambda: self._recorded(task))

    def _recorded(self, task: Task) -> None:
        """The gate opens."""
        self._process.effect()
        self._reports.started(task.jobid)
        if task.killed_by is None:
            task.ended = lambda status: self._process.run(lambda: self._turns.post(lambda: self._ended(task, status)))
            self._tasks.begin(task)
        else:
            status = task.killed_by
            self._turns.post(lambda: self._ended(task, status))

    def kill(self, jobid: int, signum: int, grace_s: float | None = None) -> None:
        """See `TaskExecutor.kill`."""
        task = self._known.get(jobid)
        if task is None:
            return
        self._process.effect()
        if jobid in self._tasks.running:
            self._tasks.signal(task, signum)
        elif signum not in HARMLESS:
            task.killed_by = int(signum)
        if signum in ENDING:
            delay_s = self.kill_timeout_s if grace_s is None else grace_s
            self._turns.after(delay_s, lambda: self.kill(jobid, signal.SIGKILL))

    def grow(self, jobid: int, r: Mapping[str, Any], ranks: Idset, first: int | None = None) -> None:
        """See `TaskExecutor.grow`."""
        task = self._known.get(jobid)
        if task is not None:
            self._process.effect()
            task.wanted |= set(ranks)
            cores = {rank: some for rank, some in cores_of(dict(r)).items() if rank in ranks}
            self._turns.after(self._tasks.chance.uniform(*SPAWN_S), lambda: self._tasks.grow(task, cores))

    def shrink(self, jobid: int, ranks: Idset, grace_s: float | None = None) -> None:
        """See `TaskExecutor.shrink`."""
        task = self._known.get(jobid)
        if task is None:
            return
        self._process.effect()
        going = frozenset(ranks)
        task.wanted -= going
        stays_s = (self.kill_timeout_s if grace_s is None else grace_s) if task.is_stubborn else 0.0
        self._tasks.time.after(stays_s + self._tasks.chance.uniform(*DIE_S), lambda: self._left(task, going, ranks))

    def _left(self, task: Task, going: frozenset[int], ranks: Idset) -> None:
        self._tasks.shrink(task, going - task.wanted)
        self._process.run(lambda: self._turns.post(lambda: self._released(task, ranks)))

    def _released(self, task: Task, ranks: Idset) -> None:
        if self._known.get(task.jobid) is task:
            self._reports.released(task.jobid, ranks)

    def measure(self, jobid: int, measured: Measured) -> None:
        """See `TaskExecutor.measure`: simulated tasks use nothing."""
        measured(None)

    def input_of(self, jobid: int) -> None:
        """See `TaskExecutor.input_of`: simulated tasks read nothing."""

    def fence_done(self, one: PmiFenceDone) -> None:
        """See `TaskExecutor.fence_done`: simulated tasks have no barrier."""

    def close(self) -> None:
        """See `TaskExecutor.close`."""
        for task in self._known.values():
            task.ended = lambda status: None
            self._tasks.over(task, int(signal.SIGKILL))

    def _ended(self, task: Task, status: int) -> None:
        if self._known.pop(task.jobid, None) is not None:
            self._reports.finished(task.jobid, status, None)
