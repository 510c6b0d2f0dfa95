"""The `local` executor: tasks are processes of this machine.

Law: a task runs only after what identifies its process is on disk, and `finished` is reported only when no process of
the job is left. The order that makes both true: spawn behind a gate, record, open the gate, watch the tasks one after
the other, and when all have ended, kill the rest of the process group while the first task, unreaped, still keeps the
group's number from being reused; then the strays that left the group.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import FluxschedError, Refused
from fluxsched.runtime.exec.base import ENDING, TERMINATING, JobLaunch, Reports, spool_directory
from fluxsched.runtime.exec.cleanup.strays import Strays, adopt_orphans, reap_group
from fluxsched.runtime.exec.job_processes import LOOK_S, JobProcesses
from fluxsched.runtime.exec.tasks import temporary_directory as tmpdirs
from fluxsched.runtime.exec.tasks.environment import job_environment, own_templates, system_bytes, task_environment
from fluxsched.runtime.exec.tasks.gate import TaskGate, made_up_names, more_descriptors, odd_names, seal_descriptors
from fluxsched.runtime.exec.tasks.input import INPUT_TASKS_MAX, JobInput, source_of
from fluxsched.runtime.exec.tasks.layout import TaskBlock, processing_units
from fluxsched.runtime.exec.tasks.output import Streams
from fluxsched.runtime.exec.tasks.pmi import PMI_FD, JobPmi
from fluxsched.runtime.exec.tasks.program import program_of, unpacked
from fluxsched.runtime.exec.tasks.tags import Tags
from fluxsched.runtime.exec.usage.memory import Guarded, MemoryGuard, limit_of
from fluxsched.runtime.exec.usage.meter import Meter
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.system import processes as procs
from fluxsched.runtime.system.clock import sleep
from fluxsched.runtime.system.exit_watch import ExitWatch

SPAWN_SLICE = 16
"""Tasks spawned before other events get their turn: some 15 ms of work."""
LOOK_MAX_S = 0.25
"""How seldom the death of killed processes is looked for (seconds) at last, LOOK_S being how often at first: what the
kernel holds in an uninterruptible wait may take long."""
CLOSE_S = 5.0
"""How long `close` waits for killed processes to be gone (seconds)."""


class LocalExecutor:
    """Runs jobs as process groups. Starting one costs a posix_spawn a task, and no thread."""

    def __init__(self, turns: Turns, reports: Reports, kill_timeout_s: float, *, alone: bool = False) -> None:
        """`alone`: this process has no children but the tasks and what descends from them."""
        self._turns = turns
        self._reports = reports
        self.kill_timeout_s = kill_timeout_s
        self._runs: dict[int, JobProcesses] = {}
        self._pids: set[int] = set()
        self._strays = Strays(turns.clock, alone=alone)
        self.memory = MemoryGuard(turns, self._exceeded)
        self._prepared = False
        self._limit: int | None = None
        self._boot_id = procs.boot_id()
        self._enclosing = os.environ.get(procs.PATH_VARIABLE, "")

    # -- start --------------------------------------------------------------------------------------------------

    def start(self, job: JobLaunch) -> None:
        """Spawn the tasks behind their gate. Raises FluxschedError, with nothing left, when that is not possible."""
        if not self._prepared:
            self._prepared = True
            adopt_orphans()
            seal_descriptors()
            self._limit = more_descriptors()
        resources = ResourceSet.parse(job.R)
        words, tasks = program_of(job, resources)
        tmpdir = None if job.scratch is None else tmpdirs.make(job.scratch, job.jobid)
        try:
            run = self._run(job, words, tasks, tmpdir, limit_of(job.jobspec, resources))
        except FluxschedError:
            if tmpdir is not None:
                tmpdirs.remove(tmpdir)
            raise
        self._runs[job.jobid] = run
        error = self._advance(run)
        if error is not None:
            self._destroy(run)
            raise Refused(error)

    def _run(
        self, job: JobLaunch, words: Sequence[str], tasks: list[TaskBlock], tmpdir: str | None, limit_bytes: int | None
    ) -> JobProcesses:
        """All that the tasks need; none is there yet."""
        path = procs.job_path(job.jobid, self._enclosing)
        environment = job_environment(job, path, tasks, tmpdir)
        ntasks = sum(block.ntasks for block in tasks)
        cwd = _directory(job.jobspec.cwd)
        tags = Tags(job.jobid, job.jobspec, tasks, job.R, tmpdir)
        gate = _gate(job, unpacked(job, words, tmpdir), cwd, ntasks, tags, self._limit, made_up_names(environment))
        pmi = self._pmi(job, tasks)
        filled = partial(task_environment, environment, own_templates(job, environment), tags)
        spawning = _spawn(job.cores, filled, odd_names(environment), gate, tasks, self._pids, pmi)
        spool = str(spool_directory(job.spool, job.jobid))
        meter = Meter(self._turns.clock)
        return JobProcesses(job.jobid, path, gate, spawning, meter, pmi, tmpdir, limit_bytes, spool)

    def _pmi(self, job: JobLaunch, tasks: Sequence[TaskBlock]) -> JobPmi | None:
        """A server for the job's tasks, if they are several or it is asked for."""
        counts, wanted = [block.ntasks for block in tasks], job.jobspec.pmi
        if not (sum(counts) > 1 if wanted is None else wanted):
            return None
        return JobPmi(self._turns, job.jobid, counts, lambda note: self._reports.raised(job.jobid, "exec", note))

    def _advance(self, run: JobProcesses) -> str | None:
        """Spawn a slice of the tasks; with the last one the job is put on record. A note if it failed."""
        assert run.todo is not None, "tasks are spawned until there are none"
        try:
            for _ in range(SPAWN_SLICE):
                next(run.todo)
        except StopIteration:
            return self._spawned(run)
        except OSError as exc:
            return f"cannot start task {len(run.gate.pids)}: {os.strerror(exc.errno or 0)}"
        except FluxschedError as error:
            return str(error)
        self._turns.post(lambda: self._continue(run))
        return None

    def _continue(self, run: JobProcesses) -> None:
        if self._runs.get(run.jobid) is run:
            error = self._advance(run)
            if error is not None:
                self._destroy(run)
                self._reports.failed(run.jobid, error)

    def _spawned(self, run: JobProcesses) -> str | None:
        run.todo = None
        run.gate.complete()
        record = procs.identity(run.gate.pgid, self._boot_id, run.path)
        if record is None:
            return "its first task vanished while it waited to run"
        self._strays.begin(run.path, record["start_ticks"], run.spool)
        self._watch(run)
        if run.limit_bytes is not None:
            left = partial(self._strays.members, run.path, self._pids)
            self.memory.begin(run.jobid, Guarded(run.gate.pids, run.limit_bytes, left))
        self._reports.record(run.jobid, record, lambda: self._recorded(run))
        return None

    def _recorded(self, run: JobProcesses) -> None:
        """The record is on disk: let the tasks run."""
        if self._runs.get(run.jobid) is not run:
            return
        pipes = run.gate.open()
        if pipes:
            run.input = JobInput(self._turns, pipes)
        run.opened()
        self._reports.started(run.jobid)
        self._reports.opened(run.jobid)
        if run.ended:
            self._turns.post(lambda: self._sweep(run))

    def input_of(self, jobid: int) -> JobInput | None:
        """Where the job's tasks are sent their input; None unless they run. Raises Refused if they are sent none."""
        run = self._runs.get(jobid)
        if run is None or not run.open:
            return None
        if run.input is None:
            ntasks = len(run.gate.pids)
            raise Refused(
                f"the job has {ntasks} tasks, and at most {INPUT_TASKS_MAX} are sent input: give a file (--input)",
                errno.ENOSYS,
            )
        return run.input

    # -- end ----------------------------------------------------------------------------------------------------

    def _watch(self, run: JobProcesses) -> None:
        """Watch the first task that has not ended: when there is none, all have."""
        run.watch = None
        pids = run.gate.pids
        while run.watched < len(pids):
            pid = pids[run.watched]
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                try:
                    loop = asyncio.get_running_loop()
                    run.watch = ExitWatch(loop, pid, lambda: self._turns.post(lambda: self._ended(run)))
                except OSError:  # out of descriptors: look again later
                    self._turns.after(LOOK_MAX_S, lambda: self._ended(run))
                return
            run.watched += 1
        run.ended = True
        if run.open:
            self._sweep(run)

    def _ended(self, run: JobProcesses) -> None:
        if self._runs.get(run.jobid) is run and not run.ended:
            self._watch(run)

    def _sweep(self, run: JobProcesses) -> None:
        """All tasks have ended: kill what they left in the group, then reap them."""
        if self._runs.get(run.jobid) is not run:
            return
        run.settle()
        run.signal(signal.SIGKILL)
        self._reap(run)
        self._look(run)

    def _look(self, run: JobProcesses) -> None:
        """Finished as soon as no process of the job is left."""
        jobid = run.jobid
        if self._runs.get(jobid) is not run:
            return
        if self._survives(run):
            self._turns.after(run.look_s, lambda: self._look(run))
            run.look_s = min(2 * run.look_s, LOOK_MAX_S)
            return
        del self._runs[jobid]
        self._strays.end(run.path)
        run.tidy()
        note = None if run.limit_bytes is None else self.memory.end(jobid)
        if note is not None:
            self._reports.raised(jobid, "memory", note)
        self._reports.record(jobid, None, _nothing)
        self._reports.finished(jobid, run.status, run.meter.total(len(run.gate.pids)))

    def _survives(self, run: JobProcesses) -> bool:
        """Whether a process of a reaped job is left; strays are killed here, group members have been."""
        pgid = run.gate.pgid
        if procs.group_living(pgid):
            return True
        if pgid not in self._pids:  # else the number is that of a task again, or not reaped yet
            reap_group(pgid)
        return self._strays.kill(run.path, self._pids)

    def _reap(self, run: JobProcesses, options: int = 0) -> None:
        run.reap(options)
        self._pids.difference_update(run.gate.pids)

    # -- kill ---------------------------------------------------------------------------------------------------

    def kill(self, jobid: int, signum: int, grace_s: float | None = None) -> None:
        """Signal the process group of the job; one that is asked to end and does not is killed after the grace time."""
        run = self._runs.get(jobid)
        if run is None or run.ended:
            return
        if run.pmi is not None and signum in TERMINATING:
            run.pmi.ending()
        run.signal(signum)
        if run.todo is not None and signum in TERMINATING:
            run.todo = iter(())
        if signum in ENDING:
            delay_s = self.kill_timeout_s if grace_s is None else grace_s
            run.kill_after(self._turns, delay_s, lambda: self.kill(jobid, signal.SIGKILL))

    def grow(self, jobid: int, r: Mapping[str, Any], ranks: Idset) -> None:
        """Not done yet: the targets stay without tasks."""

    def shrink(self, jobid: int, ranks: Idset, grace_s: float | None = None) -> None:
        """Not done yet."""
        raise Refused("jobs with tasks cannot shrink yet", errno.ENOSYS)

    def _exceeded(self, jobid: int, note: str) -> None:
        """A job uses more memory than it asked for: it ends now, since others have been promised the rest."""
        self._reports.raised(jobid, "memory", note)
        self.kill(jobid, signal.SIGKILL)

    def _destroy(self, run: JobProcesses) -> None:
        """Kill and reap tasks that have not run: a waiting shell is dead at once."""
        self._runs.pop(run.jobid, None)
        run.settle()
        run.gate.close()
        run.signal(signal.SIGKILL)
        self._reap(run)
        self._strays.end(run.path)
        run.tidy()
        if run.limit_bytes is not None:
            self.memory.end(run.jobid)

    def close(self) -> None:
        """Kill all jobs and wait until no process is left, up to CLOSE_S; nothing is reported."""
        runs, self._runs = list(self._runs.values()), {}
        self.memory.close()
        for run in runs:
            run.settle()
            run.gate.close()
            run.signal(signal.SIGKILL)
        clock = self._turns.clock
        until_s = clock.monotonic_s() + CLOSE_S
        for run in runs:
            while run.gate.pids and self._survives(run) and clock.monotonic_s() < until_s:
                sleep(LOOK_S)
            self._reap(run, os.WNOHANG)
            run.tidy(at_once=True)
        self._strays.kill_all()


def _directory(cwd: str | None) -> str | None:
    if cwd is None:
        return None
    path = os.path.abspath(cwd)
    if not os.path.isdir(system_bytes(path)):
        raise Refused(f"the job's working directory {cwd!r} does not exist (or is not a directory)")
    return path


def _gate(
    job: JobLaunch,
    words: Sequence[str],
    cwd: str | None,
    ntasks: int,
    tags: Tags,
    limit: int | None,
    unwanted: Sequence[bytes],
) -> TaskGate:
    command = [system_bytes(word) for word in words]
    source = source_of(job.jobspec, cwd, ntasks)
    streams = Streams(job, cwd, ntasks, tags)
    try:
        return TaskGate(command, cwd, streams, source, limit, unwanted)
    except OSError as exc:
        streams.close()
        raise Refused(f"cannot start the job: {os.strerror(exc.errno or 0)}", exc.errno) from exc


def _spawn(
    cores: Sequence[Idset] | None, environment: Callable[[TaskBlock, int], dict[bytes, bytes]], odd: Sequence[bytes],
    gate: TaskGate, tasks: list[TaskBlock], pids: set[int], pmi: JobPmi | None,
) -> Iterator[None]:  # fmt: skip
    """Spawn task after task, pinned if `cores` are known, one a step; each process id goes into `pids`."""
    unpinned = 0
    for block in tasks:
        units = None if cores is None else processing_units(block.children.cores, cores)
        for local in range(block.ntasks):
            own = environment(block, local)
            if pmi is None:
                pid = gate.spawn(own, odd)
            else:
                with pmi.connect() as theirs:
                    pid = gate.spawn(own | pmi.variables(block.first + local), odd, (theirs.fileno(), PMI_FD))
            pids.add(pid)
            unpinned += cores is not None and not _pin(pid, units)
            yield
    if unpinned:
        gate.say(f"{unpinned} of the tasks run unpinned: this machine does not have all cores of R")


def _pin(pid: int, units: set[int] | None) -> bool:
    """Bind a waiting task to processing units; False if the kernel has none of them for us."""
    if not units:
        return units is not None
    try:
        os.sched_setaffinity(pid, units)
    except OSError:
        return False
    return True


def _nothing() -> None:
    """What follows the removal of a record."""
