"""Which task runs on which execution target, and with what: the arithmetic between an R and its processes.

Law: tasks are numbered in blocks along the ranks of R, part by part, each rank getting what its slots are worth. The
tasks of targets that a job gets while it runs follow, and no number is used twice. Nothing here touches the machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobspec import JobPart, Jobspec
from fluxsched.core.request import Request
from fluxsched.core.resources import Children, ResourceSet
from fluxsched.core.rscheduling import parts_of
from fluxsched.errors import InvalidValue, LimitExceeded

TASKS_JOB_MAX = 4096
"""Tasks of one job: all of them run on this machine, and beyond this a typing error is likelier than intent. The
gate's pipe takes a byte a task and is never smaller than this."""


class TaskBlock(NamedTuple):
    """The tasks of one rank: `ntasks` of them, from task rank `first` on, with what R gives that rank."""

    rank: int
    first: int
    ntasks: int
    children: Children
    command: Sequence[str] = ()
    part: str = ""
    """The label of its part, where the job has several."""


class JobTasks:
    """Where the tasks of a job are, and were: those of targets that it has given back keep their numbers."""

    __slots__ = ("_gone", "blocks", "by_target")

    def __init__(self, blocks: list[TaskBlock], *, by_target: bool) -> None:
        """`by_target`: the tasks of a target end when it is given back."""
        self.blocks = blocks
        self.by_target = by_target
        self._gone: set[int] = set()

    @property
    def next(self) -> int:
        """The number of the next task: as many as there have been."""
        return self.blocks[-1].first + self.blocks[-1].ntasks if self.blocks else 0

    @property
    def current(self) -> list[TaskBlock]:
        """Those of the targets that it has."""
        gone = self._gone
        return [block for at, block in enumerate(self.blocks) if at not in gone] if gone else self.blocks

    def remove(self, ranks: Idset) -> None:
        """It has given these targets back."""
        self._gone |= {at for at, block in enumerate(self.blocks) if block.rank in ranks}


def count_tasks(found: Iterable[TaskBlock]) -> int:
    """How many tasks these are."""
    return sum([block.ntasks for block in found])


def blocks(jobspec: Jobspec, resources: ResourceSet) -> list[TaskBlock]:
    """The tasks of a job that begins, rank by rank, part by part.

    Raises LimitExceeded above TASKS_JOB_MAX, InvalidValue if there are none.
    """
    if not resources.ranks:
        raise InvalidValue("the job's R has no ranks: there is nowhere to run")
    if not jobspec.request.parts:
        found, nslots = _of_part(jobspec, resources, resources.nslots, 0)
    else:
        found, nslots = _of_parts(jobspec, resources, 0)
    ntasks = count_tasks(found)
    if ntasks > TASKS_JOB_MAX:
        raise LimitExceeded(f"the job has {ntasks} tasks: one machine runs at most {TASKS_JOB_MAX} a job")
    if ntasks < 1:
        raise InvalidValue(f"the job's {nslots} slots come to no task at all: check tasks[0].count of the jobspec")
    return found


def more_blocks(jobspec: Jobspec, resources: ResourceSet, tasks: JobTasks) -> list[TaskBlock]:
    """The tasks that it gets with the targets of `resources`, which it has not now. A part that has a fixed number of
    tasks gets none. Raises LimitExceeded if it would have more than TASKS_JOB_MAX.
    """
    if jobspec.request.parts:
        found, _ = _of_parts(jobspec, resources, tasks.next, grows=True)
    elif jobspec.ntasks_total is None:
        found, _ = _of_part(jobspec, resources, None, tasks.next)
    else:
        found = []
    ntasks = count_tasks(found) + count_tasks(tasks.current)
    if ntasks > TASKS_JOB_MAX:
        raise LimitExceeded(f"the job would have {ntasks} tasks: one machine runs at most {TASKS_JOB_MAX} a job")
    return [block for block in found if block.ntasks]


def _of_parts(
    jobspec: Jobspec, resources: ResourceSet, first: int, *, grows: bool = False
) -> tuple[list[TaskBlock], int]:
    """The tasks of all parts, and how many slots these have. Raises InvalidValue where R does not say whose is what."""
    of_part = parts_of(resources.scheduling, resources.ranks)
    found: list[TaskBlock] = []
    nslots, known = 0, EMPTY
    for part in jobspec.parts:
        ranks = of_part.get(part.label, EMPTY)
        known |= ranks
        if ranks and not (grows and part.ntasks_total is not None):
            some, slots = _of_part(part, resources.restrict(ranks), None, first)
            found += [block._replace(part=part.label) for block in some]
            first, nslots = first + count_tasks(some), nslots + slots
    if lost := resources.ranks - known:
        raise InvalidValue(f"the job's R does not say whose part ranks {lost} are (scheduling.parts)")
    return found, nslots


def _of_part(
    part: Jobspec | JobPart, resources: ResourceSet, nslots: int | None, first: int
) -> tuple[list[TaskBlock], int]:
    """The tasks of a part that has all of `resources`, and how many slots these are."""
    children = [resources.children(rank) for rank in resources.ranks]
    slots = slots_of(part.request, children, nslots)
    nslots = sum(slots)
    ntasks = part.ntasks(nslots)
    found, before, begun = [], 0, 0
    for rank, given, own in zip(resources.ranks, slots, children, strict=True):
        before += given
        until = -(-before * ntasks // nslots)
        found.append(TaskBlock(rank, first + begun, until - begun, own, part.command))
        begun = until
    return found, nslots


def slots_of(request: Request, children: list[Children], nslots: int | None) -> list[int]:
    """How many slots each rank has. R gives their sum at most (`nslots`, RFC 20), never their places.

    With nodes asked for they are spread evenly, as asked; else a rank has as many as its children make, unless that
    contradicts `nslots`.
    """
    room = [_room(request, part) for part in children]
    if nslots is None and request.nodes is None:
        return room
    if nslots is None:
        nslots = len(room) * min(request.slots.min, min(room))
    if request.nodes is None and sum(room) == nslots:
        return room
    each, more = divmod(nslots, len(room))
    return [each + (at < more) for at in range(len(room))]


def _room(request: Request, part: Children) -> int:
    fits = []
    if request.cores:
        fits.append(len(part.cores) // request.cores)
    if request.gpus:
        fits.append(len(part.gpus) // request.gpus)
    return max(1, min(fits, default=1))


def processing_units(cores: Idset, topology: Sequence[Idset]) -> set[int] | None:
    """The PUs of these core ids, or None if one of them is not a core of this machine."""
    if cores and cores.max() >= len(topology):
        return None
    return {unit for core in cores for unit in topology[core]}
