"""Tasks that are started together: those of a job that begins, or of the targets that it gets while it runs.

Law: they are spawned behind one gate, a few in a turn, and run when what identifies all processes of the job is stored.
Files of the user's choice that have been written to by tasks before are not emptied again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.errors import Refused
from fluxsched.runtime.exec.base import JobLaunch
from fluxsched.runtime.exec.process_group import ProcessGroup
from fluxsched.runtime.exec.tasks.environment import job_environment, own_templates, system_bytes, task_environment
from fluxsched.runtime.exec.tasks.gate import TaskGate, made_up_names, odd_names
from fluxsched.runtime.exec.tasks.input import source_of
from fluxsched.runtime.exec.tasks.layout import JobTasks, TaskBlock, processing_units
from fluxsched.runtime.exec.tasks.output import Streams
from fluxsched.runtime.exec.tasks.pmi import PMI_FD, JobPmi
from fluxsched.runtime.exec.tasks.program import in_directory
from fluxsched.runtime.exec.tasks.tags import Tags
from fluxsched.runtime.exec.tasks.terminal import Terminal
from fluxsched.runtime.system.processes import PATH_VARIABLE

SPAWN_SLICE = 16
"""Tasks spawned before other events get their turn: some 15 ms of work."""

Environment = Callable[[TaskBlock, int], dict[bytes, bytes]]


class TaskStart:
    """Some tasks of a job, until they run. Owns their gate."""

    def __init__(
        self,
        job: JobLaunch,
        tasks: JobTasks,
        new: Sequence[TaskBlock],
        r: Mapping[str, Any],
        path: str,
        tmpdir: str | None,
        pmi: JobPmi | None,
        terminal: Terminal | None,
        limit: int | None,
        spawned: Callable[[ProcessGroup, int], None],
    ) -> None:
        """`new` are the last of `tasks`, `r` the job's R; `path` is the job's, `limit` what `more_descriptors` says.

        Raises FluxschedError, with nothing open, for a file or directory that cannot be had.
        """
        environment = job_environment(job, path, tasks.current, tmpdir)
        cwd = _directory(job.jobspec.cwd)
        tags = Tags(job.jobid, job.jobspec, tasks.blocks, r, tmpdir, tasks.current)
        self.first = new[0].first
        self._new = new
        self.groups: list[ProcessGroup] = []
        unwanted = made_up_names(environment)
        self.gate = _gate(job, cwd, tasks, tags, terminal, limit, unwanted, is_first=new[0].first == 0)
        self._elastic = tasks.by_target
        self._path = path
        self._spawned = spawned
        filled = partial(task_environment, environment, own_templates(job, environment), tags)
        self._todo: Iterator[None] = self._spawn(job, new, filled, odd_names(environment), tmpdir, pmi)
        self.is_spawned = False
        """Whether all tasks wait behind the gate."""

    @property
    def ranks(self) -> Idset:
        """Their targets."""
        return Idset.of([block.rank for block in self._new])

    @property
    def is_first(self) -> bool:
        """Whether the job begins with these."""
        return self.first == 0

    @property
    def pids(self) -> list[int]:
        """The tasks that there are, in the order of their numbers."""
        return [pid for group in self.groups for pid in group.pids]

    def advance(self) -> None:
        """Spawn a slice of the tasks. Raises Refused."""
        try:
            for _ in range(SPAWN_SLICE):
                next(self._todo)
        except StopIteration:
            self.is_spawned = True
            self.gate.complete()
        except OSError as exc:
            ntasks = sum(len(group.pids) for group in self.groups)
            first = self.groups[0].first if self.groups else 0
            raise Refused(f"cannot start task {first + ntasks}: {os.strerror(exc.errno or 0)}", exc.errno) from exc

    def cut(self) -> None:
        """Spawn no further task: the job is to end."""
        self._todo = iter(())

    def _spawn(
        self, job: JobLaunch, new: Sequence[TaskBlock], environment: Environment, odd: Sequence[bytes],
        tmpdir: str | None, pmi: JobPmi | None,
    ) -> Iterator[None]:  # fmt: skip
        """Spawn task after task, pinned if the machine's cores are known, one a step."""
        cores, gate, unpinned = job.cores, self.gate, 0
        command: Sequence[str] = ()
        words: list[bytes] = []
        for block in new:
            units = None if cores is None else processing_units(block.children.cores, cores)
            if block.command is not command:
                command, words = block.command, [system_bytes(word) for word in in_directory(block.command, tmpdir)]
            group = self._group(block)
            for local in range(block.ntasks):
                task, own = block.first + local, environment(block, local)
                if group.rank is not None:
                    own[PATH_VARIABLE.encode()] = system_bytes(group.path)
                if pmi is None:
                    pid = gate.spawn(words, own, odd, task, group.pgid)
                else:
                    with pmi.connect() as theirs:
                        own |= pmi.variables(task)
                        pid = gate.spawn(words, own, odd, task, group.pgid, (theirs.fileno(), PMI_FD))
                group.add(pid)
                self._spawned(group, pid)
                unpinned += cores is not None and not _pin(pid, units)
                yield
        if unpinned:
            gate.say(f"{unpinned} of the tasks run unpinned: this machine does not have all cores of R")

    def _group(self, block: TaskBlock) -> ProcessGroup:
        """The group of a target's tasks."""
        if self._elastic or not self.groups:
            rank, path = (block.rank, f"{self._path}/{block.rank}") if self._elastic else (None, self._path)
            self.groups.append(ProcessGroup(rank, block.first, path))
        return self.groups[-1]


def _directory(cwd: str | None) -> str | None:
    if cwd is None:
        return None
    path = os.path.abspath(cwd)
    if not os.path.isdir(system_bytes(path)):
        raise Refused(f"the job's working directory {cwd!r} does not exist (or is not a directory)")
    return path


def _gate(
    job: JobLaunch,
    cwd: str | None,
    tasks: JobTasks,
    tags: Tags,
    terminal: Terminal | None,
    limit: int | None,
    unwanted: Sequence[bytes],
    *,
    is_first: bool,
) -> TaskGate:
    source = source_of(job.jobspec, cwd, tasks.next)
    is_single = tasks.next == 1 and not tasks.by_target
    streams = Streams(job, cwd, tags, is_single=is_single, is_first=is_first)
    try:
        return TaskGate(cwd, streams, source, terminal, limit, unwanted)
    except OSError as exc:
        streams.close()
        raise Refused(f"cannot start the job: {os.strerror(exc.errno or 0)}", exc.errno) from exc


def _pin(pid: int, units: set[int] | None) -> bool:
    """Bind a waiting task to processing units; False if the kernel has none of them for us."""
    if not units:
        return units is not None
    try:
        os.sched_setaffinity(pid, units)
    except OSError:
        return False
    return True


