"""One job's processes, from the first one until the last is dead: what the executor keeps of a job.

Law: the job is over when all tasks have ended, and none waits to run. Until then the first task of each process group
is not reaped, but where its target is given back.
"""

from __future__ import annotations

import math
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.runtime.exec.base import JobLaunch, spool_directory
from fluxsched.runtime.exec.process_group import ProcessGroup
from fluxsched.runtime.exec.tasks.input import JobInput
from fluxsched.runtime.exec.tasks.layout import JobTasks, TaskBlock, more_blocks
from fluxsched.runtime.exec.tasks.pmi import JobPmi
from fluxsched.runtime.exec.tasks.start import TaskStart
from fluxsched.runtime.exec.tasks.temporary_directory import remove
from fluxsched.runtime.exec.tasks.terminal import Terminal
from fluxsched.runtime.exec.usage.memory import asks_for_memory, limit_of
from fluxsched.runtime.exec.usage.meter import Meter
from fluxsched.runtime.loop.turns import Timer, Turns
from fluxsched.runtime.system import processes as procs

LOOK_S = 0.005
"""How soon the death of killed processes is looked for (seconds), at first."""


class JobProcesses:
    """A job's processes and all that is open for them. Owns its starts, input, PMI and meter."""

    __slots__ = (
        "ended",
        "first_failure",
        "grace",
        "grace_ends_s",
        "groups",
        "input",
        "is_ending",
        "is_guarded",
        "jobid",
        "launch",
        "look_s",
        "meter",
        "open",
        "path",
        "pids",
        "pmi",
        "released",
        "resources",
        "spool",
        "starts",
        "status",
        "tasks",
        "terminal",
        "tmpdir",
    )

    def __init__(
        self,
        launch: JobLaunch,
        resources: ResourceSet,
        tasks: JobTasks,
        path: str,
        tmpdir: str | None,
        meter: Meter,
        pmi: JobPmi | None,
    ) -> None:
        self.launch = launch
        self.jobid = launch.jobid
        self.resources = resources
        self.tasks = tasks
        self.path = path
        self.tmpdir = tmpdir
        self.meter = meter
        self.pmi = pmi
        self.spool = str(spool_directory(launch.spool, launch.jobid))
        self.groups: list[ProcessGroup] = []
        self.starts: list[TaskStart] = []
        """Tasks that do not run yet."""
        self.pids: set[int] = set()
        """The tasks that are not reaped."""
        self.grace: Timer | None = None
        self.grace_ends_s = math.inf
        self.input: JobInput | None = None
        self.terminal: Terminal | None = None
        self.open = False
        self.is_ending = False
        """Whether its tasks were asked to end."""
        self.ended = False
        self.status = 0
        self.first_failure = 0
        """The wait status of what failed before the other tasks were killed for it; 0 if nothing did."""
        self.is_guarded = asks_for_memory(launch.jobspec)
        """Whether it is kept to the memory that it has asked for."""
        self.released = EMPTY
        """Targets whose release is about to be reported."""
        self.look_s = LOOK_S

    @property
    def limit_bytes(self) -> int | None:
        """The memory that it may use; None if it has not asked for memory."""
        return limit_of(self.launch.jobspec, self.resources) if self.is_guarded else None

    @property
    def is_over(self) -> bool:
        """Whether all tasks have ended, as far as was looked, and none waits to run."""
        return not self.starts and all(group.watched == len(group.pids) for group in self.groups)

    def begin(self, new: Sequence[TaskBlock], r: Mapping[str, Any], limit: int | None, pids: set[int]) -> TaskStart:
        """Have these tasks, the last that it has got, wait to run; `pids` gets their process ids, too. Raises
        FluxschedError.
        """

        def spawned(group: ProcessGroup, pid: int) -> None:
            if pid == group.pgid:
                self.groups.append(group)
            self.pids.add(pid)
            pids.add(pid)

        if self.launch.jobspec.pty is not None:
            self.launch.jobspec.check_pty(self.tasks.next)
            self.terminal = Terminal(self.launch.jobspec.pty)
        pmi = self.pmi if new[0].first == 0 else None
        start = TaskStart(
            self.launch, self.tasks, new, r, self.path, self.tmpdir, pmi, self.terminal, limit, spawned
        )
        self.starts.append(start)
        return start

    def grow(self, more: ResourceSet, limit: int | None, pids: set[int]) -> TaskStart | None:
        """Have the tasks of these further targets wait to run; None if there are none. Raises FluxschedError, and has
        got the targets all the same.
        """
        self.resources |= more
        new = more_blocks(self.launch.jobspec, more, self.tasks)
        if not new:
            return None
        self.tasks.blocks.extend(new)
        return self.begin(new, self.resources.to_json(), limit, pids)

    def remove(self, ranks: Idset) -> None:
        """It has no tasks on these targets any more."""
        self.tasks.remove(ranks)
        self.resources = self.resources.without(ranks)

    def record(self, boot: str) -> dict[str, Any] | None:
        """What identifies its processes; None if that is not known, since a first task vanished."""
        found: dict[str, Any] | None = None
        for group in [group for group in self.groups if not group.reaped]:
            one = procs.identity(group.pgid, boot, self.path)
            if one is None:
                return None
            if found is None:
                found = one
            else:
                found.setdefault("groups", []).append([one["pid"], one["start_ticks"]])
        return found

    def opened(self, start: TaskStart, turns: Turns) -> None:
        """These tasks run from now on."""
        self.starts.remove(start)
        pipes, pids = start.gate.open(), start.pids
        if self.terminal is not None:
            self.input = JobInput(turns, [self.terminal.opened()], self.terminal)
        elif pipes and self.input is None:
            self.input = JobInput(turns, pipes)
        elif pipes and self.input is not None:
            self.input.add(pipes)
        self.meter.opened(pids, start.first)
        if self.pmi is not None and not self.open:
            self.pmi.opened(pids)
        self.open = True

    def on(self, ranks: Idset) -> list[ProcessGroup]:
        """The groups whose targets are among these."""
        return [group for group in self.groups if group.rank is not None and group.rank in ranks]

    def go(self, groups: Sequence[ProcessGroup]) -> None:
        """Ask the tasks of these targets, which are given back, to end."""
        for group in groups:
            group.go()
            tasks = Idset.span(group.first, group.first + len(group.pids) - 1)
            if self.pmi is not None:
                self.pmi.leave(tasks)
            if self.input is not None:
                self.input.remove(tasks)
            group.signal(signal.SIGTERM)
            group.signal(signal.SIGCONT)

    def signal(self, signum: int) -> None:
        """Send a signal to all tasks."""
        for group in self.groups:
            group.signal(signum)

    def note_failures(self) -> None:
        """Take the status of tasks that have failed already: those of the others are a consequence from now on."""
        if not self.first_failure:
            statuses = [status for group in self.groups for status in group.ended_statuses()]
            self.first_failure = max(statuses, default=0)

    def kill_after(self, turns: Turns, delay_s: float, kill: Callable[[], None]) -> None:
        """Have the job killed when this time has passed, unless it is to be killed sooner."""
        ends_s = turns.clock.monotonic_s() + delay_s
        if ends_s < self.grace_ends_s:
            if self.grace is not None:
                self.grace.cancel()
            self.grace, self.grace_ends_s = turns.after(delay_s, kill), ends_s

    def settle(self) -> None:
        """Stop watching, timing and sending."""
        if self.input is not None:
            self.input.close()
        for group in self.groups:
            group.stop_watching()
        if self.grace is not None:
            self.grace.cancel()
        if self.pmi is not None:
            self.pmi.close()
        for start in self.starts:
            start.gate.close()
        self.meter.close()
        self.grace = None

    def reap(self, group: ProcessGroup, options: int = 0) -> None:
        """Take the wait statuses of a group's tasks and what they used; `status` becomes the highest that counts."""
        for ended in group.reap(options):
            if ended.counts:
                self.status = max(self.status, ended.status)
            self.meter.reaped(ended.task, ended.status, ended.used)
            self.pids.discard(ended.pid)

    def tidy(self, *, at_once: bool = False) -> None:
        """Give up its terminal and remove its temporary directory once no process of it is left. Large contents are
        removed in the background, or `at_once` where this process is about to end.
        """
        if self.terminal is not None:
            self.terminal.close()
        if self.tmpdir is not None:
            if at_once:
                shutil.rmtree(self.tmpdir, ignore_errors=True)
            else:
                remove(self.tmpdir)
