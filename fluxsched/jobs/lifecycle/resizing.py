"""Checks of the targets that a running elastic job is granted, and of those that it is made to release.

Law: each part of the job has a value of its range of nodes, at every time and not counting targets that it is to leave;
so it never has less than its minimum. Nothing is changed here.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.rchanges import grown
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue, Refused, RemoteProtocolError
from fluxsched.jobs.job.job import Job
from fluxsched.jobs.job.sizes import SIZE_CHANGES_MAX
from fluxsched.jobs.job.states import RUN

_Parts = Mapping[str, Idset]
"""Targets by part; of a job that has not several by the empty label."""


def check_grow(job: Job, added: ResourceSet) -> None:
    """Raises Refused (EINVAL) where the job cannot have these targets too, RemoteProtocolError where it never could."""
    _check_elastic(job)
    if twice := added.ranks & job.held:
        raise RemoteProtocolError(f"{job.title} cannot grow by ranks {twice}, which it already holds")
    if added.shared:
        names = ", ".join([kind for kind, _ in added.shared])
        raise RemoteProtocolError(f"{job.title} cannot grow by shared resources ({names}), which it gets at its start")
    if len(job.sizes or ()) >= SIZE_CHANGES_MAX:
        raise Refused(f"{job.title} has changed its size {SIZE_CHANGES_MAX} times, the limit: it can no longer grow")
    try:
        known = grown(job.parsed(), added).parts
        before, more = _staying(job), _by_part(job, added, known)
    except InvalidValue as error:
        raise RemoteProtocolError(f"R for job {job.id} does not fit its present resources: {error}") from error
    _check_sizes(job, {label: ranks | more.get(label, EMPTY) for label, ranks in before.items()}, "grow", added.ranks)


def check_shrink(job: Job, ranks: Idset, unanswered: Idset) -> None:
    """Raises Refused (EINVAL) where the job cannot do without these targets, RemoteProtocolError where it does not have
    them; `unanswered` are those of which its scheduler cannot know yet.
    """
    _check_elastic(job)
    if not ranks:
        raise RemoteProtocolError(f"{job.title} cannot shrink by no ranks")
    if others := ranks - (job.held - unanswered):
        raise RemoteProtocolError(f"{job.title} cannot shrink by ranks {others}, which it does not hold: {job.held}")
    if twice := ranks & job.going:
        raise RemoteProtocolError(f"{job.title} cannot shrink by ranks {twice}, by which it is shrinking already")
    try:
        after = {label: own - ranks for label, own in _staying(job).items()}
    except InvalidValue as error:
        raise RemoteProtocolError(f"R of job {job.id}: {error}") from error
    _check_sizes(job, after, "shrink", ranks)


def _check_elastic(job: Job) -> None:
    if job.state is not RUN:
        raise Refused(f"{job.title} is in state {job.state.name}: only a running job changes its size", errno.EINVAL)
    assert job.jobspec is not None, "a running job has its jobspec"
    if not job.jobspec.request.elastic:
        raise Refused(f"{job.title} is not elastic: its size cannot change", errno.EINVAL)


def _staying(job: Job) -> _Parts:
    """Return the targets of each part that the job is not to release.

    Raise InvalidValue if its R does not name the parts.
    """
    assert job.jobspec is not None, "a running job has its jobspec"
    found = job.parsed().parts
    if not job.jobspec.request.parts:
        return {"": job.held - job.going}
    return {part.label: found.get(part.label, EMPTY) - job.going for part in job.jobspec.request.parts}


def _by_part(job: Job, added: ResourceSet, known: _Parts) -> _Parts:
    assert job.jobspec is not None, "a running job has its jobspec"
    if not job.jobspec.request.parts:
        return {"": added.ranks}
    labels = [part.label for part in job.jobspec.request.parts]
    found = {label: ranks & added.ranks for label, ranks in known.items() if label in labels}
    of_none = added.ranks
    for ranks in found.values():
        of_none -= ranks
    if of_none:
        raise RemoteProtocolError(f"{job.title} cannot grow by ranks {of_none} without a part: {', '.join(labels)}")
    return found


def _check_sizes(job: Job, after: _Parts, verb: str, ranks: Idset) -> None:
    assert job.jobspec is not None, "a running job has its jobspec"
    for part in job.jobspec.request.each_part:
        count = len(after[part.label if job.jobspec.request.parts else ""])
        if part.nodes is not None and count not in part.nodes:
            of_part = f" of part {part.label}" if job.jobspec.request.parts else ""
            least = f", and needs {part.nodes.min}" if count < part.nodes.min else f", which is not in {part.nodes}"
            raise Refused(
                f"{job.title} cannot {verb} by ranks {ranks}: it would have {count} nodes{of_part}{least}", errno.EINVAL
            )
