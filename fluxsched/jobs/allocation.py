"""Schedulers' side of the job manager (RFC 27): what schedulers answer, and what follows.

Laws: what breaks the protocol is the scheduler's fault and changes nothing (RemoteProtocolError). What merely crossed a
message of ours on its way is legal: a grant for a job that no longer wants it goes back at once; a grant for a job that
still waits is taken even if its request was being cancelled (queue stopped, job held): it was decided before. What an
elastic job is granted or made to release while it runs is checked before anything changes: each part of the job has a
value of its range of nodes, at every time and not counting targets that it is to leave; so it never has less than its
minimum.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.resources import ResourceSet, grown
from fluxsched.core.text import counted
from fluxsched.errors import InvalidValue, Refused, RemoteProtocolError
from fluxsched.jobs.grants import parse_grant
from fluxsched.jobs.job import NO_REQUEST, Job, sched_jobspec
from fluxsched.jobs.lifecycle import LIMIT_MAX, Lifecycle, Link, PackJobspec, checked_groups
from fluxsched.jobs.queues import DEFAULT_GROUP
from fluxsched.jobs.requests import NOTE_CHARS_MAX
from fluxsched.jobs.states import RUN, SCHED, Effect, ToScheduler, UpdateDone, merge, said_by_users
from fluxsched.jobs.table import SIZE_CHANGES_MAX
from fluxsched.protocol.messages.jobs import ExpirationRequest, FreeRequest, HelloResponse

_Parts = Mapping[str, Idset]
"""Targets by part; of a job that has not several by the empty label."""


def check_grow(job: Job, added: ResourceSet) -> None:
    """Raise Refused (EINVAL) where the job cannot have these targets too, RemoteProtocolError where it never could."""
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
    """Raise Refused (EINVAL) where the job cannot do without these targets, RemoteProtocolError where it does not have
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
                f"{job.title} cannot {verb} by ranks {ranks}: it would have {counted(count, 'node')}{of_part}{least}",
                errno.EINVAL,
            )


# ---- answers of schedulers

Foreign: TypeAlias = Callable[[Iterable[str], Idset], Idset]
"""Function that returns the targets among some that are not of these groups."""

ANNOTATIONS_KEPT: Final = 1024
"""Annotations of grants that are remembered, some hundred bytes each."""

SCHEDULER_LOST: Final = "the scheduler was lost before it answered; ask again when one is ready"


class Allocation:
    """Schedulers' side of the job manager; `scheduler` is any hashable name of a connection."""

    def __init__(self, lifecycle: Lifecycle, packed: PackJobspec) -> None:
        self._lifecycle = lifecycle
        self._jobs = lifecycle.jobs
        self._packed = packed
        self._first_annotations: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
        """By id annotations, which thus stay, and those of a job that had none before."""

    def hello(
        self, scheduler: Hashable, groups: Iterable[str] = (DEFAULT_GROUP,), *, partial_ok: bool = True
    ) -> list[HelloResponse]:
        """Return the jobs that hold resources of these groups.

        Raises Refused (EBUSY) if another scheduler serves one, and (EINVAL) if a queue has other groups as well.

        Without `partial_ok` a partly released job comes with the rest of its R and nothing free. To start the
        conversation of a connection anew, report it lost first.
        """
        wanted = checked_groups(groups)
        if self._lifecycle.links.known(scheduler):
            raise RemoteProtocolError("sched-hello was sent twice on one connection: connect again (RFC 27)")
        links = self._lifecycle.links
        links.add(Link(scheduler, wanted, self._lifecycle.queues.served_by(wanted), self._packed, links.unjudged))
        active = self._jobs.active.values()
        return [self._hello_of(job, partial_ok) for job in active if job.held and job.queue.group in wanted]

    def _hello_of(self, job: Job, partial_ok: bool) -> HelloResponse:
        freed, held = job.freed, job.R
        assert held is not None
        if freed and not partial_ok:
            freed, held = EMPTY, job.remainder(job.held)
        return HelloResponse(
            id=job.id,
            priority=job.priority,
            userid=job.userid,
            t_submit=job.t_first,
            free=str(freed),
            R=held,
            jobspec=self._packed(sched_jobspec(job)),
            preempted=(job.t_cleanup or None) if job.is_preempted else None,
            going=str(job.going) if job.going else None,
            grown=str(job.grown) if job.grown else None,
            shrunk=job.t_shrunk or None,
        )

    def ready(self, scheduler: Hashable, limit: int | None, now_s: float) -> tuple[int, list[Effect]]:
        """Record that the scheduler takes requests, at most `limit` at once (None: unlimited); return queue depth, and
        what to send.
        """
        link = self._lifecycle.links.get(scheduler)
        if limit is not None and not 1 <= limit <= LIMIT_MAX:
            raise RemoteProtocolError(f"sched-ready limit {limit} is not within 1-{LIMIT_MAX} (RFC 27)")
        if link.ready:
            raise RemoteProtocolError("sched-ready was sent twice: send sched-hello again to change the mode")
        depth = sum(len(queue.waiting) for queue in link.queues)
        self._lifecycle.begin(now_s)
        link.ready, link.limit = True, limit
        self._lifecycle.out += [ToScheduler(scheduler, free) for free in link.deferred]
        link.deferred.clear()
        self._lifecycle.touched.update(dict.fromkeys(link.groups))
        return depth, self._lifecycle.end()

    def scheduler_lost(self, scheduler: Hashable, now_s: float) -> list[Effect]:
        """Record that the connection is lost: its requests wait for the next scheduler, running jobs continue."""
        link = self._lifecycle.links.remove(scheduler)
        self._lifecycle.begin(now_s)
        if link is None:
            return self._lifecycle.end()
        for job in link.outstanding.values():
            if job.state is SCHED:
                self._lifecycle.enqueue(job)
                if job.annotations:  # reasons and estimates were that scheduler's; the next one knows nothing of them
                    job.annotations = said_by_users(job.annotations)
            else:
                job.request = NO_REQUEST
        for job in self._jobs.active.values() if link.ready else ():
            if job.expiration_asked_s is not None and job.queue.group in link.groups:
                job.expiration_asked_s, job.asked_for_outage = None, ""
                self._lifecycle.out.append(UpdateDone(job.id, SCHEDULER_LOST))
        return self._lifecycle.end()

    def alloc_granted(
        self,
        scheduler: Hashable,
        jobid: int,
        R: dict[str, Any],  # noqa: N803 - RFC 20's name
        annotations: dict[str, Any] | None,
        now_s: float,
        foreign: Foreign | None = None,
    ) -> list[Effect]:
        """SUCCESS. Raises RemoteProtocolError if R is wrong or a core of it is held (both jobs are named).

        `foreign` says which of the targets granted are not those of the scheduler's groups.
        """
        link, job = self._outstanding(scheduler, jobid)
        grant = parse_grant(jobid, R)
        if foreign is not None:
            _check_group(job, link, "was granted", grant.ranks, foreign)
        is_late = self._lifecycle.is_late(job, now_s)
        if job.state is not SCHED or is_late:
            self._lifecycle.begin(now_s)
            if is_late and job.state is SCHED:
                self._lifecycle.give_up(job)
            self._answered(link, job)
            self._lifecycle.out.append(ToScheduler(scheduler, FreeRequest(jobid, R, True)))
            return self._lifecycle.end()
        merged = self._merged(job, annotations) if annotations else job.annotations
        self._lifecycle.grants.add(job.id, grant)
        self._lifecycle.begin(now_s)
        self._answered(link, job)
        job.annotations = merged
        self._lifecycle.run(job, R, grant, merged)
        return self._lifecycle.end()

    def grow(
        self,
        scheduler: Hashable,
        jobid: int,
        R: dict[str, Any],  # noqa: N803 - RFC 20's name
        now_s: float,
        foreign: Foreign | None = None,
    ) -> list[Effect]:
        """Record that a running elastic job holds these targets, too.

        `grow_answered` is to be called before the answer, which is sent once this is stored. Raises Refused (ENOENT,
        EINVAL), and RemoteProtocolError like `alloc_granted`.
        """
        link, job = self._running(scheduler, jobid)
        grant = parse_grant(jobid, R)
        if foreign is not None:
            _check_group(job, link, "cannot grow by", grant.ranks, foreign)
        check_grow(job, _parsed(jobid, R))
        self._lifecycle.grants.extend(jobid, grant)
        link.growing[jobid] = link.growing.get(jobid, EMPTY) | grant.ranks
        self._lifecycle.begin(now_s)
        self._lifecycle.grow(job, R, grant)
        return self._lifecycle.end()

    def grow_answered(self, scheduler: Hashable, jobid: int, ranks: Idset) -> None:
        """Record that a grow by these ranks is answered now.

        Raises Refused if the job has ended meanwhile: the scheduler has heard of no free there, and takes them back by
        the error.
        """
        link = self._lifecycle.links.find(scheduler)
        if link is None:
            return  # it is lost, and the next one hears of the whole job
        left = link.growing.pop(jobid, EMPTY) - ranks
        if left:
            link.growing[jobid] = left
        job = self._jobs.active.get(jobid)
        if job is None or not ranks <= job.held:
            raise Refused(f"job {format_f58(jobid)} ended while it grew: it has released all", errno.EINVAL)

    def shrink(self, scheduler: Hashable, jobid: int, ranks: Idset, note: str, now_s: float) -> list[Effect]:
        """Record that a running elastic job is to leave these targets. Raises Refused (ENOENT, EINVAL) or
        RemoteProtocolError.
        """
        link, job = self._running(scheduler, jobid)
        check_shrink(job, ranks, link.growing.get(jobid, EMPTY))
        self._lifecycle.begin(now_s)
        self._lifecycle.shrink(job, ranks, note[:NOTE_CHARS_MAX])
        return self._lifecycle.end()

    def lost(self, jobid: int, ranks: Idset, note: str, now_s: float) -> list[Effect]:
        """Record that a running elastic job goes on without its tasks on these targets: it is shrunk by them, which its
        scheduler learns once they are released. It keeps them if it would have a size that is not in its range.
        """
        job = self._jobs.get_active(jobid)
        link = self._lifecycle.links.serving(job.queue.config.group)
        unanswered = EMPTY if link is None else link.growing.get(jobid, EMPTY)
        left = (ranks & job.held) - job.going - unanswered
        try:
            if not left:
                return []
            check_shrink(job, left, unanswered)
        except Refused:
            return []
        self._lifecycle.begin(now_s)
        self._lifecycle.shrink(job, left, note[:NOTE_CHARS_MAX])
        return self._lifecycle.end()

    def alloc_annotated(self, scheduler: Hashable, jobid: int, annotations: dict[str, Any]) -> None:
        """ANNOTATE: changes what listings show. Nothing happens if the job has stopped waiting meanwhile."""
        self._lifecycle.links.get(scheduler)
        job = self._jobs.active.get(jobid)
        if job is not None:
            if job.state is SCHED:
                job.annotations = _merged(job, annotations)
            return
        may_be_forgotten = len(self._jobs.inactive) >= self._jobs.inactive_kept_max
        if jobid not in self._jobs.inactive and not may_be_forgotten:
            raise RemoteProtocolError(f"alloc response for job {jobid}, which does not exist")

    def alloc_denied(self, scheduler: Hashable, jobid: int, note: str | None, now_s: float) -> list[Effect]:
        """DENY: the request can never be met; the job ends with a fatal `alloc` exception."""
        link, job = self._outstanding(scheduler, jobid)
        self._lifecycle.begin(now_s)
        self._answered(link, job)
        if job.state is SCHED:
            self._lifecycle.fail(job, "alloc", note or "")
        return self._lifecycle.end()

    def alloc_canceled(self, scheduler: Hashable, jobid: int, now_s: float) -> list[Effect]:
        """CANCEL: a job that still wants resources waits again."""
        link, job = self._outstanding(scheduler, jobid)
        self._lifecycle.begin(now_s)
        self._answered(link, job)
        if job.state is SCHED:
            self._lifecycle.enqueue(job)
        return self._lifecycle.end()

    def move_end(self, jobid: int, expiration_s: float, outage: str, now_s: float) -> list[Effect]:
        """Have a running job end at the begin of an outage, or, without one, as before; its scheduler is asked.

        Without a scheduler it is settled, since the next one hears of it at its hello. No effect while a scheduler
        takes over the jobs, or is asked already.
        """
        job = self._jobs.get_active(jobid)
        link = self._lifecycle.links.serving(job.queue.group)
        if job.state is not RUN or job.expiration_asked_s is not None or (link is not None and not link.ready):
            return []
        job.expiration_asked_s, job.asked_for_outage = expiration_s, outage
        if link is None:
            return self.expiration_answered(jobid, None, now_s)
        return [ToScheduler(link.scheduler, ExpirationRequest(jobid, expiration_s))]

    def expiration_answered(self, jobid: int, error: str | None, now_s: float) -> list[Effect]:
        """Take the answer to an ExpirationRequest; the caller passes None for ENOSYS too (RFC 27: as though
        successful).
        """
        job = self._jobs.active.get(jobid)
        if job is None:
            return [UpdateDone(jobid, f"job {format_f58(jobid)} is no longer running")]
        if job.expiration_asked_s is None:
            return []  # the scheduler was lost: answered already
        asked_s, job.expiration_asked_s = job.expiration_asked_s, None
        outage, job.asked_for_outage = job.asked_for_outage, ""
        self._lifecycle.begin(now_s)
        if error is None and job.state is RUN:
            context: dict[str, Any] = {"expiration": asked_s}
            if outage:
                before_s = job.expiration_s if job.moved_end is None else job.moved_end[1]
                context |= {"outage": outage, "before": before_s}
            self._lifecycle.log(job, "resource-update", context)
        elif error is None:
            error = f"{job.title} is no longer running"
        self._lifecycle.out.append(UpdateDone(jobid, error))
        return self._lifecycle.end()

    def _running(self, scheduler: Hashable, jobid: int) -> tuple[Link, Job]:
        """Return a job that its scheduler wants to change. Raises Refused (ENOENT; EINVAL: it ended),
        RemoteProtocolError.
        """
        link = self._lifecycle.links.get(scheduler)
        job = self._jobs.get_active(jobid)
        if self._lifecycle.links.serving(job.queue.group) is not link:
            raise RemoteProtocolError(f"job {jobid} is of group {job.queue.group}, which another scheduler serves")
        return link, job

    def _outstanding(self, scheduler: Hashable, jobid: int) -> tuple[Link, Job]:
        """Return the request that an answer belongs to. Raises RemoteProtocolError if there is none."""
        link = self._lifecycle.links.get(scheduler)
        job = link.outstanding.get(jobid)
        if job is None:
            raise RemoteProtocolError(f"alloc response for job {jobid}, which has no request outstanding there")
        return link, job

    def _merged(self, job: Job, annotations: dict[str, Any]) -> dict[str, Any]:
        """Return the annotations of a job after more of them; most jobs have none before, and share some then."""
        if job.kept_annotations:
            return _merged(job, annotations)
        known = self._first_annotations.get(id(annotations))
        if known is None or known[0] is not annotations:
            if len(self._first_annotations) >= ANNOTATIONS_KEPT:
                self._first_annotations.clear()
            known = self._first_annotations[id(annotations)] = annotations, _merged(job, annotations)
        return known[1]

    def _answered(self, link: Link, job: Job) -> None:
        link.answered(job)
        job.request = NO_REQUEST
        if link.limit is not None:  # there is room for the next request
            self._lifecycle.touched[job.queue.group] = None


def _check_group(job: Job, link: Link, verb: str, ranks: Idset, foreign: Foreign) -> None:
    """Raise RemoteProtocolError for targets that the scheduler does not serve, or with which a job would be in two
    groups.
    """
    if others := foreign(link.groups, ranks):
        raise RemoteProtocolError(f"job {job.id} {verb} targets {others}, which are not its scheduler's")
    if not job.queue.config.others:
        return
    groups, held = job.queue.config.groups, job.held
    for group in groups:
        if not foreign((group,), ranks) and (not held or foreign((group,), held) != held):
            return
    names = f"one of its queue's groups {', '.join(groups)}{', in which it runs' if held else ''}"
    raise RemoteProtocolError(f"job {job.id} {verb} targets {ranks}, which are not of {names}")


def _merged(job: Job, annotations: dict[str, Any]) -> dict[str, Any]:
    try:
        return merge(job.annotations or {}, annotations)
    except InvalidValue as error:
        raise RemoteProtocolError(f"alloc response for job {job.id}: {error}") from error


def _parsed(jobid: int, R: dict[str, Any]) -> ResourceSet:  # noqa: N803 - RFC 20's name
    try:
        return ResourceSet.parse(R)
    except InvalidValue as error:
        raise RemoteProtocolError(f"R for job {jobid} is not an RFC 20 R: {error}") from error
