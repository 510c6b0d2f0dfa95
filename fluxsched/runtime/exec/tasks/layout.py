"""Which task runs on which execution target, and with what: the arithmetic between an R and its processes.

Law: tasks are numbered in blocks along the ranks of R, each rank getting what its slots are worth; nothing here
touches the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.request import Request
from fluxsched.core.resources import Children, ResourceSet
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


def blocks(jobspec: Jobspec, resources: ResourceSet) -> list[TaskBlock]:
    """The tasks of a job, rank by rank. Raises LimitExceeded above TASKS_JOB_MAX, InvalidValue if there are none."""
    ranks = list(resources.ranks)
    if not ranks:
        raise InvalidValue("the job's R has no ranks: there is nowhere to run")
    children = [resources.children(rank) for rank in ranks]
    slots = slots_of(jobspec.request, children, resources.nslots)
    nslots = sum(slots)
    ntasks = jobspec.ntasks(nslots)
    if ntasks > TASKS_JOB_MAX:
        raise LimitExceeded(f"the job has {ntasks} tasks: one machine runs at most {TASKS_JOB_MAX} a job")
    if ntasks < 1:
        raise InvalidValue(f"the job's {nslots} slots come to no task at all: check tasks[0].count of the jobspec")
    found, before, first = [], 0, 0
    for rank, given, part in zip(ranks, slots, children, strict=True):
        before += given
        until = -(-before * ntasks // nslots)
        found.append(TaskBlock(rank, first, until - first, part))
        first = until
    return found


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
