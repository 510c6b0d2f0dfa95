"""The tasks on one of several hosts, and the executor of its keeper: nothing but time passes.

A job's command is that of world/tasks.py. Tasks are numbered and placed as the product does, and it is told of each
which numbers it had: what runs twice is seen.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue, Refused
from fluxsched.executor.base import ENDING, TERMINATING, JobLaunch, Measured, Reports
from fluxsched.executor.layout import JobTasks, TaskBlock, more_blocks, program_of
from fluxsched.executor.timed import HARMLESS
from fluxsched.system.loop import Turns
from tests.chaos.observations import Observation, TasksBegan, TasksEnded, TasksWait
from tests.chaos.world.processes import Process
from tests.chaos.world.programs import Program, Programs
from tests.chaos.world.tasks import DIE_S, SPAWN_S

CLEAR_S = 0.01, 3.0
"""How long it takes until what another keeper has left is gone (seconds)."""
START_FAILS = 0.5
"""How often a part fails to start while starts fail."""
LONGER = 0.5
"""By how much longer tasks run on each further target, so that parts of a job end one after the other."""
WAITS, RUNS, OVER = "waits", "runs", "over"


class Group:
    """The tasks of a job on one target."""

    def __init__(
        self, jobid: int, block: TaskBlock, words: tuple[str, ...], keeper: Process, program: Program | None
    ) -> None:
        self.jobid = jobid
        self.program = program
        self.rank = block.rank
        self.tasks = frozenset(range(block.first, block.first + block.ntasks))
        self.cores = frozenset(block.children.cores)
        self.run_s = float(words[1]) * (1 + LONGER * block.rank)
        self.status = int(words[2])
        self.is_stubborn = "stubborn" in words
        self.keeper = keeper
        self.state = WAITS
        self.is_going = False
        self.ended: Callable[[int], None] = lambda status: None


class HostTasks:
    """What really is on a host, whichever keeper started it; it goes with the host's `kernel`."""

    def __init__(
        self,
        host: str,
        kernel: Process,
        chance: Random,
        observe: Callable[[Observation], None],
        recorded: Callable[[int], frozenset[str]],
        programs: Programs,
    ) -> None:
        """`recorded` returns the hosts whose processes of a job are on the instance's record."""
        self.host = host
        self.programs = programs
        self.kernel = kernel
        self.chance = chance
        self.groups: dict[Group, None] = {}
        self.starts_fail = False
        self._observe = observe
        self._recorded = recorded
        kernel.on_end.append(lambda reason: self.kill_all())

    def after(self, times_s: tuple[float, float], call: Callable[[], object]) -> None:
        """Have the host do something soon."""
        self.kernel.loop.call_later(self.chance.uniform(*times_s), call)

    def spawn(self, groups: Iterable[Group]) -> None:
        """They wait behind their gate, and end with their keeper."""
        for group in groups:
            self.groups[group] = None
            if group.program is None:
                self._observe(TasksWait(self.kernel.time.now_s, self.host, group.jobid, group.rank))

    def begin(self, groups: Iterable[Group]) -> None:
        """The gate opens."""
        for group in groups:
            if group.state == WAITS and group in self.groups:
                group.state = RUNS
                now_s, cores = self.kernel.time.now_s, {group.rank: group.cores}
                if group.program is not None:
                    self._observe(group.program.began(now_s))
                else:
                    recorded = self._recorded(group.jobid)
                    self._observe(TasksBegan(now_s, self.host, group.jobid, group.tasks, cores, recorded))
                self.kernel.loop.call_later(group.run_s, self.over, group, group.status)

    def over(self, group: Group, status: int) -> None:
        """They have ended. Idempotent."""
        if group in self.groups:
            del self.groups[group]
            has_begun, group.state = group.state == RUNS, OVER
            if group.program is None:
                self._observe(TasksEnded(self.kernel.time.now_s, self.host, group.jobid, group.rank, status))
            elif has_begun:
                self._observe(group.program.ended(self.kernel.time.now_s, status))
            group.ended(status)

    def signal(self, group: Group, signum: int) -> None:
        """Send them a signal."""
        if signum not in HARMLESS and (signum == signal.SIGKILL or not group.is_stubborn or group.state == WAITS):
            self.after(DIE_S, lambda: self.over(group, signum))

    def keeper_ended(self, keeper: Process) -> None:
        """What waits behind a gate ends with its keeper."""
        for group in list(self.groups):
            if group.keeper is keeper:
                group.ended = lambda status: None
                if group.state == WAITS:
                    self.over(group, 0)

    def kill_left(self, keeper: Process) -> None:
        """Nothing is left of what this keeper started."""
        for group in [group for group in self.groups if group.keeper is keeper]:
            self.over(group, int(signal.SIGKILL))

    def kill_all(self) -> None:
        """Nothing is left."""
        for group in list(self.groups):
            group.ended = lambda status: None
            self.over(group, int(signal.SIGKILL))

    def clear(self, jobids: Iterable[int], keeper: Process, cleared: Callable[[dict[int, str]], None]) -> None:
        """End what other keepers than this one have left of these jobs."""
        wanted = set(jobids)
        found = [group for group in self.groups if group.jobid in wanted and group.keeper is not keeper]
        killed = {group.jobid for group in found}

        def end() -> None:
            for group in found:
                self.over(group, int(signal.SIGKILL))
            cleared({jobid: "its tasks were killed" if jobid in killed else "nothing was left" for jobid in wanted})

        self.after(CLEAR_S, end)


class Part:
    """A job at one keeper."""

    def __init__(self, job: JobLaunch, tasks: JobTasks, words: tuple[str, ...], program: Program | None) -> None:
        self.job = job
        self.tasks = tasks
        self.words = words
        self.program = program
        self.starts: list[list[Group]] = []
        """Tasks whose gate is not open."""
        self.groups: list[Group] = []
        """Those that are not known to have ended."""
        self.status = 0
        self.killed_by = 0


class SimHostExecutor:
    """The `TaskExecutor` of one keeper, as `LocalExecutor` is."""

    def __init__(self, tasks: HostTasks, process: Process, turns: Turns, reports: Reports) -> None:
        self.kill_timeout_s = 0.0
        self._tasks = tasks
        self._process = process
        self._turns = turns
        self._reports = reports
        self._parts: dict[int, Part] = {}

    def start(self, job: JobLaunch) -> None:
        """See `TaskExecutor.start`."""
        self._process.effect()
        words, program = self._tasks.programs.read(job)
        if words[0] != "task" or len(words) < 3:
            raise InvalidValue(f"cannot start the job: {words[0]!r} is no command of simulated tasks")
        fails = self._tasks.starts_fail and self._tasks.chance.random() < START_FAILS
        if fails and self._tasks.chance.random() < 0.5:
            raise Refused("no such directory")
        part = Part(job, program_of(job, ResourceSet.parse(job.R)), words, program)
        self._parts[job.jobid] = part
        if fails:
            self._turns.after(self._tasks.chance.uniform(*SPAWN_S), lambda: self._failed(part))
        else:
            self._begin(part, part.tasks.own_of(part.tasks.blocks))

    def _failed(self, part: Part) -> None:
        if self._is_here(part):
            del self._parts[part.job.jobid]
            self._reports.failed(part.job.jobid, "a task cannot be spawned")

    def _is_here(self, part: Part) -> bool:
        return self._parts.get(part.job.jobid) is part

    def _begin(self, part: Part, blocks: list[TaskBlock]) -> None:
        jobid = part.job.jobid
        groups = [Group(jobid, block, part.words, self._process, part.program) for block in blocks]
        is_first = not part.groups and not part.starts
        part.starts.append(groups)
        part.groups += groups
        for group in groups:
            group.ended = self._watched(part, group)
        self._turns.after(self._tasks.chance.uniform(*SPAWN_S), lambda: self._spawned(part, groups, is_first))

    def _watched(self, part: Part, group: Group) -> Callable[[int], None]:
        return lambda status: self._process.run(lambda: self._turns.post(lambda: self._ended(part, group, status)))

    def _spawned(self, part: Part, groups: list[Group], is_first: bool) -> None:
        if not self._is_here(part):
            return
        self._tasks.spawn(groups)
        if part.killed_by:
            for group in groups:
                self._tasks.signal(group, part.killed_by)
        record = {"simulated": part.job.jobid, "host": self._tasks.host, "pid": self._process.pid}
        self._reports.record(part.job.jobid, record, lambda: self._recorded(part, groups, is_first))

    def _recorded(self, part: Part, groups: list[Group], is_first: bool) -> None:
        """The gate opens."""
        if not self._is_here(part) or groups not in part.starts:
            return
        self._process.effect()
        part.starts.remove(groups)
        if not part.killed_by:
            self._tasks.begin(group for group in groups if not group.is_going)
        if is_first:
            self._reports.started(part.job.jobid)
            self._reports.opened(part.job.jobid)
        self._turns.post(lambda: self._check_over(part))

    def _ended(self, part: Part, group: Group, status: int) -> None:
        if group in part.groups:
            part.groups.remove(group)
            if not group.is_going:
                part.status = max(part.status, status)
            elif self._is_here(part):
                self._release(part, group.rank)
            self._check_over(part)

    def _check_over(self, part: Part) -> None:
        if self._is_here(part) and not part.groups and not part.starts:
            del self._parts[part.job.jobid]
            self._reports.finished(part.job.jobid, part.status, None)

    def kill(self, jobid: int, signum: int, grace_s: float | None = None) -> None:
        """See `TaskExecutor.kill`."""
        part = self._parts.get(jobid)
        if part is None:
            return
        self._process.effect()
        for group in part.groups:
            self._tasks.signal(group, signum)
        if signum in TERMINATING:
            part.killed_by = int(signum)
        if signum in ENDING:
            delay_s = self.kill_timeout_s if grace_s is None else grace_s
            self._turns.after(delay_s, lambda: self.kill(jobid, signal.SIGKILL))

    def grow(self, jobid: int, r: Mapping[str, Any], ranks: Idset, first: int | None = None) -> None:
        """See `TaskExecutor.grow`."""
        part = self._parts.get(jobid)
        if part is None or not part.tasks.by_target:
            return
        self._process.effect()
        new = more_blocks(part.job.jobspec, ResourceSet.parse(r).restrict(ranks), part.tasks, first)
        part.tasks.blocks.extend(new)
        own = part.tasks.own_of(new) if part.job.ranks is None else [block for block in new if block.rank in ranks]
        if own:
            self._begin(part, own)

    def shrink(self, jobid: int, ranks: Idset, grace_s: float | None = None) -> None:
        """See `TaskExecutor.shrink`."""
        part = self._parts.get(jobid)
        if part is None or not part.tasks.by_target:
            return
        self._process.effect()
        there = [group for group in part.groups if group.rank in ranks]
        for rank in ranks - Idset.of([group.rank for group in there]):
            self._release(part, rank)
        for group in there:
            group.is_going = True
            self._tasks.signal(group, int(signal.SIGTERM))
        delay_s = self.kill_timeout_s if grace_s is None else grace_s

        def kill() -> None:
            for group in there:
                self._tasks.signal(group, int(signal.SIGKILL))

        self._turns.after(delay_s, kill)

    def _release(self, part: Part, rank: int) -> None:
        def report() -> None:
            if self._is_here(part):
                part.tasks.remove(Idset.one(rank))
                self._reports.released(part.job.jobid, Idset.one(rank))

        self._turns.post(report)

    def measure(self, jobid: int, measured: Measured) -> None:
        """See `TaskExecutor.measure`: simulated tasks use nothing."""
        measured(None)

    def input_of(self, jobid: int) -> None:
        """See `TaskExecutor.input_of`: simulated tasks read nothing."""

    def fence_done(self, one: object) -> None:
        """See `TaskExecutor.fence_done`: simulated tasks have no barrier."""

    def is_idle(self) -> bool:
        """Whether nothing of its jobs is left."""
        return not self._parts

    def close(self) -> None:
        """See `TaskExecutor.close`."""
        parts, self._parts = list(self._parts.values()), {}
        for part in parts:
            for group in part.groups:
                group.ended = lambda status: None
                self._tasks.over(group, int(signal.SIGKILL))
