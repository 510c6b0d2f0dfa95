"""The `local` executor: tasks are processes of this machine, started, signaled, killed after their grace time, reaped.

Law: a task runs only after what identifies its process, or the one that starts it, is on disk, and `finished` is
reported only when no process of the job is left. The order that makes both true: spawn behind a gate, record, open the
gate, watch the tasks one after the other, and when all have ended, kill the rest of their process groups while the
first task of each, unreaped, still keeps the group's number from being reused; then the strays that left the groups.
What ends with a target that a job gives back ends in the same order, target by target.

A single task that needs nothing done to its process beforehand has no gate, which costs more than many a task: this
process goes on record as the one that starts it, and then spawns it. Its own record comes with the report that it runs.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import shutil
import signal
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import asks_for_memory
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import FluxschedError, Refused
from fluxsched.executor import layout
from fluxsched.executor.base import (
    ENDING,
    TERMINATING,
    JobLaunch,
    Measured,
    ProcessGroup,
    Reports,
    kill,
    spool_directory,
    spool_name,
)
from fluxsched.executor.cleanup import AHEAD, Strays, adopt_orphans, reap_group
from fluxsched.executor.gpus import GpuSampler, GpuUse
from fluxsched.executor.io import INPUT_TASKS_MAX, JobInput, Terminal
from fluxsched.executor.kept_directories import KeptDirectories
from fluxsched.executor.layout import JobTasks, TaskBlock, more_blocks, program_of, remove, tasks_of
from fluxsched.executor.local_programs import LocalPrograms
from fluxsched.executor.tasks import JobPmi, TaskStart, more_descriptors, reserved_descriptors, seal_descriptors
from fluxsched.executor.usage import Guarded, MemoryGuard, Meter, UsedSoFar, limit_of, measured_so_far
from fluxsched.executor.wire import PmiFenceDone
from fluxsched.system import processes
from fluxsched.system.clock import SystemClock
from fluxsched.system.log import logger, of_job
from fluxsched.system.loop import ExitWatch, Timer, Turns, Work

LOOK_S = 0.005
"""Initial interval of checking whether killed processes are gone (seconds)."""


class JobProcesses:
    """Processes of a job and all that is open for them. Owns its starts, input, PMI and meter."""

    __slots__ = (
        "_has_begun",
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
        self.spool = str(spool_directory(launch.settings.spool, launch.jobid))
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
        """True if the job's tasks were asked to end."""
        self.ended = False
        self.status = 0
        self.first_failure = 0
        """Wait status of the failure for which the other tasks were killed; 0 if there was none."""
        self.is_guarded = asks_for_memory(launch.jobspec)
        """True if the job is limited to the memory that it has asked for."""
        self.released = EMPTY
        """Targets whose release is about to be reported."""
        self.look_s = LOOK_S
        self._has_begun = False

    @property
    def limit_bytes(self) -> int | None:
        """Return the memory that the job may use; None if it has not asked for memory."""
        if not self.is_guarded:
            return None
        own = self.launch.ranks
        return limit_of(self.launch.jobspec, self.resources if own is None else self.resources.restrict(own))

    @property
    def is_single(self) -> bool:
        """Return whether the job has one task, of our user, and will have no other."""
        is_one = self.tasks.next == 1 and not (self.tasks.by_target or self.launch.is_shared)
        return is_one and self.launch.userid is None

    @property
    def prints_here(self) -> bool:
        """Return whether the job has one task of our user, whose output goes into its spool directory."""
        spec = self.launch.jobspec
        return self.is_single and spec.output is None and spec.error is None

    @property
    def needs_no_gate(self) -> bool:
        """Return whether nothing is to be done between the start of the process of its only task and its program."""
        spec = self.launch.jobspec
        is_plain = spec.cwd is not None and spec.input is None and spec.pty is None
        return self.is_single and is_plain and self.pmi is None and not self.is_guarded

    @property
    def is_over(self) -> bool:
        """Return whether all tasks are known to have ended, and none waits to run."""
        return not self.starts and all(group.watched == len(group.pids) for group in self.groups)

    def begin(self, new: Sequence[TaskBlock], r: Mapping[str, Any], limit: int | None, pids: set[int]) -> TaskStart:
        """Have these tasks, the last that it has got, wait to run; `pids` gets their process ids, too.

        Raises FluxschedError.
        """

        def spawned(group: ProcessGroup, pid: int) -> None:
            if pid == group.pgid:
                self.groups.append(group)
            self.pids.add(pid)
            pids.add(pid)

        if self.launch.jobspec.pty is not None:
            self.launch.jobspec.check_pty(self.tasks.next)
            self.terminal = Terminal(self.launch.jobspec.pty)
        is_first, self._has_begun = not self._has_begun, True
        pmi = self.pmi if is_first else None
        start = TaskStart(
            self.launch, self.tasks, new, r, self.path, self.tmpdir, pmi, self.terminal, limit, spawned,
            is_first=is_first,
        )  # fmt: skip
        self.starts.append(start)
        return start

    def grow(self, more: ResourceSet, first: int | None, limit: int | None, pids: set[int]) -> TaskStart | None:
        """Have the tasks of these further targets wait to run; None if there are none.

        Raises FluxschedError, and has got the targets all the same.
        """
        self.resources |= more
        new = more_blocks(self.launch.jobspec, more, self.tasks, first)
        self.tasks.blocks.extend(new)
        own = self.tasks.own_of(new)
        return self.begin(own, self.resources.to_json(), limit, pids) if own else None

    def remove(self, ranks: Idset) -> None:
        """Record that the job has no tasks on these targets any more."""
        self.tasks.remove(ranks)
        self.resources = self.resources.without(ranks)

    def record(self, boot: str) -> dict[str, Any] | None:
        """Return the identification of the job's processes; None if unknown, since a first task vanished."""
        found: dict[str, Any] | None = None
        for group in [group for group in self.groups if not group.reaped]:
            one = processes.identity(group.pgid, boot, self.path)
            if one is None:
                return None
            if found is None:
                found = one
            else:
                found.setdefault("groups", []).append([one["pid"], one["start_ticks"]])
        return found

    def opened(self, start: TaskStart, turns: Turns) -> None:
        """Note that these tasks run from now on."""
        self.starts.remove(start)
        pipes, pids = dict(zip(start.numbers, start.gate.open(), strict=False)), start.pids
        if self.terminal is not None:
            self.input = JobInput(turns, {0: self.terminal.opened()}, self.terminal)
        elif pipes and self.input is None:
            self.input = JobInput(turns, pipes)
        elif pipes and self.input is not None:
            self.input.add(pipes)
        for group in start.groups:
            self.meter.opened(group.pids, group.first)
        if self.pmi is not None and not self.open:
            self.pmi.opened(pids)
        self.open = True

    def has_group_of(self, pid: int) -> bool:
        """Return whether a process is in the group of one of the tasks."""
        stat = processes.stat_of(pid)
        return stat is not None and any(group.pgid == stat.pgid for group in self.groups)

    @property
    def gpus(self) -> Idset:
        """Return the GPUs that the job holds on this host."""
        found = EMPTY
        for block in self.tasks.own_of(self.tasks.current):
            found |= block.children.gpus
        return found

    def task_of(self, pids: Iterable[int]) -> dict[int, int]:
        """Return those of these processes that are the job's tasks or descend from them, with the tasks."""
        living = [group for group in self.groups if not group.reaped]
        tasks = {pid: task for group in living for task, pid in enumerate(group.pids, group.first)}
        roots = {pid: processes.ancestor_among(pid, tasks) for pid in pids}
        return {pid: tasks[root] for pid, root in roots.items() if root is not None}

    def groups_on(self, ranks: Idset) -> list[ProcessGroup]:
        """Return the groups whose targets are among these."""
        return [group for group in self.groups if group.rank is not None and group.rank in ranks]

    def end_groups(self, groups: Sequence[ProcessGroup]) -> None:
        """Ask the tasks of these targets, which are given back, to end."""
        for group in groups:
            group.mark_leaving()
            tasks = Idset.span(group.first, group.first + len(group.pids) - 1)
            if self.pmi is not None:
                self.pmi.mark_leaving(tasks)
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

    def stop_watching(self) -> None:
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
        """Take the wait statuses and usage of a group's tasks; `status` becomes the highest that counts."""
        for ended in group.reap(options):
            if ended.counts:
                self.status = max(self.status, ended.status)
            self.meter.reaped(ended.task, ended.status, ended.used)
            self.pids.discard(ended.pid)

    def tidy(self, *, at_once: bool = False) -> None:
        """Give up its terminal and remove its temporary directory once no process of it is left.

        Large contents are removed in the background, or `at_once` where this process is about to end.
        """
        if self.terminal is not None:
            self.terminal.close()
        if self.tmpdir is not None:
            if at_once:
                shutil.rmtree(self.tmpdir, ignore_errors=True)
            else:
                remove(self.tmpdir)


# ---- the executor of this host

log = logger("exec")

LOOK_MAX_S = 0.25
"""Final interval of checking whether killed processes are gone (seconds), LOOK_S being the initial one: processes in an
uninterruptible wait of the kernel may take long.
"""
CLOSE_S = 5.0
"""Maximum time for which `close` waits until killed processes are gone (seconds)."""


class LocalExecutor:
    """Runs jobs as process groups. Starting one costs a posix_spawn a task, and no thread."""

    def __init__(
        self, turns: Turns, reports: Reports, kill_timeout_s: float, *, alone: bool = False,
        temporary: KeptDirectories | None = None, output: KeptDirectories | None = None,
    ) -> None:  # fmt: skip
        """Create an executor. `alone`: this process has no children but the tasks and their descendants. `temporary`
        and `output` are kept directories for temporary files, and for what the only task of a job prints; None if each
        job gets new ones.
        """
        self._turns = turns
        self._reports = reports
        self.kill_timeout_s = kill_timeout_s
        self._runs: dict[int, JobProcesses] = {}
        self._measuring: dict[int, list[Measured]] = {}
        """Jobs that are measured, or are to be, with those who have asked."""
        self._pids: set[int] = set()
        self._strays = Strays(turns.clock, alone=alone)
        self.memory = MemoryGuard(turns, self._exceeded)
        self._gpus = GpuSampler(turns, self._pids, self._take_gpus)
        self._temporary = temporary
        self._output = output
        self._programs = LocalPrograms(turns.clock)
        self._prepared = False
        self._limit: int | None = None
        self._boot_id = processes.boot_id()
        self._own = processes.identity(os.getpid(), self._boot_id, "")
        """The record of this process."""
        self._enclosing = os.environ.get(processes.PATH_VARIABLE, "")

    # -- start --------------------------------------------------------------------------------------------------

    def start(self, job: JobLaunch) -> None:
        """Spawn the tasks behind their gate, unless the job needs none. Raises FluxschedError, with nothing left, when
        that is not possible.
        """
        if not self._prepared:
            self._prepared = True
            adopt_orphans()
            seal_descriptors()
            self._limit = more_descriptors()
            reserved_descriptors()
        resources = ResourceSet.parse(job.R)
        tasks = program_of(job, resources)
        tmpdir = None
        if job.settings.scratch is not None:
            tmpdir = layout.make(job.settings.scratch, job.jobid, self._temporary, job.userid)
        path, pmi = processes.job_path(job.jobid, self._enclosing), self._pmi(job, tasks)
        run = JobProcesses(job, resources, tasks, path, tmpdir, Meter(self._turns.clock), pmi)
        if self._output is not None and run.prints_here:
            self._output.take(run.spool)
        try:
            start = run.begin(tasks.own_of(tasks.blocks), job.R, self._limit, self._pids)
        except FluxschedError:
            run.tidy()
            raise
        self._runs[job.jobid] = run
        if run.needs_no_gate and self._own is not None:
            start.is_late = True
            own = {**self._own, "path": path, AHEAD: True}
            self._reports.record(job.jobid, own, lambda: self._recorded(run, start))
            return
        error = self._advance(run, start)
        if error is not None:
            self._destroy(run)
            raise Refused(error)

    def _pmi(self, job: JobLaunch, tasks: JobTasks) -> JobPmi | None:
        """Return a server for the tasks with which the job begins, if it asks for one, or they are several and stay
        so.
        """
        counts, wanted = [block.ntasks for block in tasks.blocks], job.jobspec.pmi
        if job.first or not (sum(counts) > 1 and not tasks.by_target if wanted is None else wanted):
            return None
        own = None if job.ranks is None else tasks_of(tasks.own_of(tasks.blocks))
        failed = partial(self._mpi_failed, job.jobid)
        return JobPmi(self._turns, job.jobid, counts, failed, own, self._reports.fence)

    def fence_done(self, one: PmiFenceDone) -> None:
        """Give the tasks of a shared job the answer of its hosts; one that has ended needs none."""
        run = self._runs.get(one.jobid)
        if run is not None and run.pmi is not None:
            run.pmi.fence_done(one)

    def _mpi_failed(self, jobid: int, note: str, exit_code: int) -> None:
        """Record the failure of the MPI program: its exit code is the job's, whose tasks are about to be killed."""
        run = self._runs.get(jobid)
        if run is not None:
            run.first_failure = (exit_code & 0xFF) << 8
        self._reports.raised(jobid, "exec", note)

    def _advance(self, run: JobProcesses, start: TaskStart) -> str | None:
        """Spawn a slice of the tasks; with the last one they are put on record. A note if it failed."""
        try:
            start.advance()
        except FluxschedError as error:
            return str(error)
        if start.is_spawned:
            return self._spawned(run, start)
        if start.is_waiting:
            self._turns.after(LOOK_S, lambda: self._continue(run, start))
        else:
            self._turns.post(lambda: self._continue(run, start))
        return None

    def _continue(self, run: JobProcesses, start: TaskStart) -> None:
        if self._runs.get(run.jobid) is not run or start not in run.starts:
            return
        error = self._advance(run, start)
        if error is not None:
            self._start_failed(run, start, error)

    def _start_failed(self, run: JobProcesses, start: TaskStart, error: str) -> None:
        if not start.is_first:
            self._give_up(run, start, error)
        else:
            self._destroy(run)
            self._reports.failed(run.jobid, error)

    def _spawned(self, run: JobProcesses, start: TaskStart) -> str | None:
        record = run.record(self._boot_id)
        if record is None:
            return "its first task vanished while it waited to run"
        if start.is_first:
            self._strays.add_job(run.path, record["start_ticks"], run.spool)
        self._guard(run, start)
        for group in start.groups:
            self._watch(run, group)
        self._reports.spooled(run.jobid, start.gate.spooled)
        self._reports.record(run.jobid, record, None if start.is_ungated else lambda: self._recorded(run, start))
        self._drop_closed(run)
        return None

    def _drop_closed(self, run: JobProcesses) -> None:
        """Wait no longer for the gates of a shared job that is to end: they may never open, since a part has failed."""
        if run.is_ending and run.launch.is_shared and not run.open:
            for start in [start for start in run.starts if start.is_spawned]:
                run.starts.remove(start)
                start.gate.close()
                for group in start.groups:
                    self._watch(run, group)

    def _guard(self, run: JobProcesses, start: TaskStart | None) -> None:
        """Keep the job to the memory that it has now; `start` are tasks that do not run yet."""
        limit_bytes = run.limit_bytes
        if limit_bytes is not None:
            guarded = Guarded(run.pids, limit_bytes, partial(self._strays.members, run.path, self._pids))
            if start is not None and start.is_first:
                self.memory.guard_job(run.jobid, guarded)
            else:
                self.memory.change(run.jobid, guarded, [] if start is None else start.pids)

    def _recorded(self, run: JobProcesses, start: TaskStart) -> None:
        """Let the tasks run, since the record is on disk."""
        if self._runs.get(run.jobid) is not run or start not in run.starts:
            return
        if start.is_late:
            start.run_late(self._programs)
            try:
                error = self._advance(run, start)
            except Exception as exc:  # fails this job and no other
                self._turns.report_bug(f"start of job {format_f58(run.jobid)}", exc)
                error = str(exc) or type(exc).__name__
            if error is not None:
                self._start_failed(run, start, error)
                return
        run.opened(start, self._turns)
        if self._gpus.is_idle and run.gpus:
            self._gpus.begin()
        if start.is_first:
            self._reports.started(run.jobid)
            self._reports.opened(run.jobid)
        if run.is_over:
            self._turns.post(lambda: self._check_over(run))

    def measure(self, jobid: int, measured: Measured) -> None:
        """Measure a job as in `Executor`; one that does not run has used nothing.

        Jobs are measured one after the other, and once for all that have asked: many questions are work like one.
        """
        run = self._runs.get(jobid)
        if run is None or not run.open:
            measured(None)
            return
        is_first = not self._measuring
        self._measuring.setdefault(jobid, []).append(measured)
        if is_first:
            self._turns.spread(self._measure_each(), self._not_measured)

    def _take_gpus(self, sample: Mapping[int, GpuUse]) -> bool:
        """Add a sample to the figures of the jobs that hold GPUs; return whether there are any."""
        held = [(run, gpus) for run in self._runs.values() if run.open and (gpus := run.gpus)]
        for run, gpus in held:
            uses = [sample[gpu] for gpu in gpus if gpu in sample]
            run.meter.sampled(uses, run.task_of(pid for use in uses for pid in use.processes))
        return bool(held)

    def _measure_each(self) -> Work:
        others: list[int] = []
        looked_s = -math.inf
        while self._measuring:
            if (now_s := self._turns.clock.monotonic_s()) >= looked_s + LOOK_S:
                others, looked_s = self._strays.others(self._pids), now_s
            jobid = next(iter(self._measuring))
            run = self._runs.get(jobid)
            usage = None if run is None else (yield from self._measured(run, others))
            for measured in self._measuring.pop(jobid):
                measured(usage)

    def _not_measured(self, fault: Exception) -> None:
        waiting, self._measuring = self._measuring, {}
        for asked in waiting.values():
            for measured in asked:
                measured(None)

    def _measured(self, run: JobProcesses, others: list[int]) -> Generator[None, None, dict[str, Any] | None]:
        """Return what the tasks of a job have used, and those of the children `others` that are left of it."""
        groups = [(group, dict(enumerate(group.pids, group.first))) for group in run.groups if not group.reaped]
        found: list[tuple[ProcessGroup, dict[int, UsedSoFar]]] = []
        for group, roots in groups:
            found.append((group, (yield from measured_so_far(roots))))
        mine = [pid for pid in others if processes.is_within(processes.path_of(pid), run.path)]
        left = (yield from measured_so_far({pid: pid for pid in mine if run.has_group_of(pid)})).values()
        running = {task: used for group, tasks in found if not group.reaped for task, used in tasks.items()}
        return run.meter.total(run.tasks.next, is_part=run.launch.is_shared, running=running, others=left)

    def input_of(self, jobid: int) -> JobInput | None:
        """Return the destination of input for the job's tasks; None unless they run.

        Raises Refused if they accept none.
        """
        run = self._runs.get(jobid)
        if run is None or not run.open:
            return None
        if run.input is None:
            raise Refused(
                f"the job has {run.tasks.next} tasks, and at most {INPUT_TASKS_MAX} are sent input: give a file "
                "(--input)",
                errno.ENOSYS,
            )
        return run.input

    # -- other sizes --------------------------------------------------------------------------------------------

    def grow(self, jobid: int, r: Mapping[str, Any], ranks: Idset, first: int | None = None) -> None:
        """Start the tasks of these targets of R, numbered from `first` on or after those that are here. If that is
        impossible, the job continues without them.
        """
        run = self._runs.get(jobid)
        if run is None or run.ended or not run.tasks.by_target:
            return
        start: TaskStart | None = None
        try:
            start = run.grow(ResourceSet.parse(r).restrict(ranks), first, self._limit, self._pids)
            error = None if start is None else self._advance(run, start)
        except FluxschedError as fault:
            error = str(fault)
        if error is not None:
            self._give_up(run, start, error)
        elif start is not None and run.is_ending:
            start.cut()

    def _give_up(self, run: JobProcesses, start: TaskStart | None, error: str) -> None:
        """Continue the job without tasks that cannot be started; it has their targets until it gives them back."""
        log.error("job %s: no tasks on further targets: %s", format_f58(run.jobid), error, extra=of_job(run.jobid))
        if start is not None:
            start.gate.write_note(f"no tasks on {run.resources.named(start.ranks)}: {error}")
            run.starts.remove(start)
            start.gate.close()
            run.end_groups(start.groups)
            kill(start.groups)
            for group in start.groups:
                self._watch(run, group)

    def shrink(self, jobid: int, ranks: Idset, grace_s: float | None = None) -> None:
        """End the tasks of these targets; targets without tasks are released at once."""
        run = self._runs.get(jobid)
        if run is None or run.ended or not run.tasks.by_target:
            return
        if any(not start.is_spawned and start.ranks & ranks for start in run.starts):
            self._turns.post(lambda: self.shrink(jobid, ranks, grace_s))
            return
        groups = [group for group in run.groups_on(ranks) if not group.going]
        self._release(run, ranks - Idset.of([group.rank for group in run.groups_on(ranks) if group.rank is not None]))
        run.end_groups(groups)
        for group in groups:
            self._watch(run, group)
        delay_s = self.kill_timeout_s if grace_s is None else grace_s
        self._turns.after(delay_s, lambda: kill(groups))

    def _leave(self, run: JobProcesses, group: ProcessGroup, look_s: float = LOOK_S) -> None:
        """Release a target that is given back and whose tasks have all ended, as soon as no process is left there."""
        if self._runs.get(run.jobid) is not run or run.ended or group not in run.groups:
            return
        group.stop_watching()
        group.signal(signal.SIGKILL)
        run.reap(group)
        self._pids.difference_update(group.pids)
        if self._survives(run, group) or self._strays.kill(group.path, self._pids):
            self._turns.after(look_s, lambda: self._leave(run, group, min(2 * look_s, LOOK_MAX_S)))
            return
        run.groups.remove(group)
        tasks = range(group.first, group.first + len(group.pids))
        self._reports.closed(run.jobid, [spool_name(stream, task) for task in tasks for stream in ("stdout", "stderr")])
        if group.rank is not None:
            self._release(run, Idset.of([group.rank]))
        self._check_over(run)

    def _release(self, run: JobProcesses, ranks: Idset) -> None:
        """Report these targets as released, those of one turn together."""
        if not ranks:
            return
        if not run.released:
            self._turns.post(lambda: self._report_released(run))
        run.released |= ranks

    def _report_released(self, run: JobProcesses) -> None:
        ranks, run.released = run.released, EMPTY
        if self._runs.get(run.jobid) is run:
            run.remove(ranks)
            self._guard(run, None)
            self._reports.released(run.jobid, ranks)

    # -- end ----------------------------------------------------------------------------------------------------

    def _watch(self, run: JobProcesses, group: ProcessGroup) -> None:
        """Watch the first task of a group that has not ended: when there is none, all have."""
        group.stop_watching()
        if group.reaped:
            return
        pid = group.first_running()
        if pid is None:
            self._check_over(run)
            if group.going:
                self._leave(run, group)
            return
        try:
            loop = asyncio.get_running_loop()
            group.watch = ExitWatch(loop, pid, lambda: self._turns.post(lambda: self._ended(run, group)))
        except OSError:  # out of descriptors: look again later
            self._turns.after(LOOK_MAX_S, lambda: self._ended(run, group))

    def _ended(self, run: JobProcesses, group: ProcessGroup) -> None:
        if self._runs.get(run.jobid) is run and not run.ended:
            self._watch(run, group)

    def _check_over(self, run: JobProcesses) -> None:
        """End the job if all tasks have ended: kill the remaining processes of their groups, then reap the tasks."""
        if self._runs.get(run.jobid) is not run or run.ended or not run.is_over:
            return
        run.ended = True
        if run.pmi is not None:
            run.pmi.all_ended()
        run.stop_watching()
        run.signal(signal.SIGKILL)
        self._reap(run)
        self._look(run)

    def _look(self, run: JobProcesses) -> None:
        """Report the job as finished as soon as no process of it is left."""
        jobid = run.jobid
        if self._runs.get(jobid) is not run:
            return
        if self._any_survives(run):
            self._turns.after(run.look_s, lambda: self._look(run))
            run.look_s = min(2 * run.look_s, LOOK_MAX_S)
            return
        del self._runs[jobid]
        self._strays.remove_job(run.path)
        self._keep_directories(run)
        run.tidy()
        note = self.memory.release_job(jobid) if run.is_guarded else None
        if note is not None:
            self._reports.raised(jobid, "memory", note)
        self._reports.record(jobid, None, None)
        usage = run.meter.total(run.tasks.next, is_part=run.launch.is_shared)
        self._reports.finished(jobid, run.first_failure or run.status, usage)

    def _keep_directories(self, run: JobProcesses) -> None:
        """Keep the directories of a job without processes for later jobs, if it has left them as it got them."""
        if self._output is not None and run.prints_here:
            self._output.keep(run.spool)
        if self._temporary is None or run.tmpdir is None or self._strays.are_any:
            return
        if self._temporary.keep(run.tmpdir):
            run.tmpdir = None

    def _any_survives(self, run: JobProcesses) -> bool:
        """Return whether a process of a reaped job is left; strays are killed by this check, group members have
        been.
        """
        if any(self._survives(run, group) for group in run.groups):
            return True
        return self._strays.kill(run.path, self._pids)

    def _survives(self, run: JobProcesses, group: ProcessGroup) -> bool:
        """Return whether a process of a group whose tasks are reaped is left."""
        if not processes.group_exists(group.pgid):
            return False
        if processes.group_living(group.pgid):
            return True
        if group.pgid not in self._pids:  # else the number is that of a task again, or not reaped yet
            for used in reap_group(group.pgid):
                run.meter.left_behind(group.first if len(group.pids) == 1 else None, used)
        return False

    def _reap(self, run: JobProcesses, options: int = 0) -> None:
        for group in reversed(run.groups):
            run.reap(group, options)
            self._pids.difference_update(group.pids)

    # -- kill ---------------------------------------------------------------------------------------------------

    def kill(self, jobid: int, signum: int, grace_s: float | None = None) -> None:
        """Signal all tasks of the job; one that is asked to end and does not is killed after the grace time."""
        run = self._runs.get(jobid)
        if run is None or run.ended:
            return
        for start in [start for start in run.starts if start.is_late]:
            start.is_late = False
            self._continue(run, start)  # to a shell that waits, since the job must end as a process by this signal
        if jobid not in self._runs:
            return
        if run.pmi is not None and signum in TERMINATING:
            run.pmi.ending()
        if signum in TERMINATING and not run.is_ending:
            run.note_failures()
        run.signal(signum)
        if signum in TERMINATING:
            run.is_ending = True
            for start in run.starts:
                start.cut()
            self._drop_closed(run)
        if signum in ENDING:
            delay_s = self.kill_timeout_s if grace_s is None else grace_s
            run.kill_after(self._turns, delay_s, lambda: self.kill(jobid, signal.SIGKILL))

    def _exceeded(self, jobid: int, note: str) -> None:
        """End a job that uses more memory than it asked for, since others have been promised the rest."""
        self._reports.raised(jobid, "memory", note)
        self.kill(jobid, signal.SIGKILL)

    def _destroy(self, run: JobProcesses) -> None:
        """Kill and reap tasks that have not run: a waiting shell is dead at once."""
        self._runs.pop(run.jobid, None)
        run.stop_watching()
        run.signal(signal.SIGKILL)
        self._reap(run)
        self._strays.remove_job(run.path)
        run.tidy()
        if run.is_guarded:
            self.memory.release_job(run.jobid)

    def close(self) -> None:
        """Kill all jobs and wait until no process is left, up to CLOSE_S; nothing is reported."""
        runs, self._runs = list(self._runs.values()), {}
        self.memory.close()
        self._gpus.close()
        for run in runs:
            run.stop_watching()
            run.signal(signal.SIGKILL)
        clock = self._turns.clock
        until_s = clock.monotonic_s() + CLOSE_S
        for run in runs:
            while run.groups and self._any_survives(run) and clock.monotonic_s() < until_s:
                SystemClock.sleep(LOOK_S)
            self._reap(run, os.WNOHANG)
            run.tidy(at_once=True)
        self._strays.kill_all()
