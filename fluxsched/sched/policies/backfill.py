"""Policies that go by the order of the queue, and differ in which jobs may start before the first that cannot; the
times of reservations come from `plan/`.

- `fifo`: none; the first job that cannot start holds back all others.
- `firstfit`: every job that fits; big jobs may be overtaken for ever. Within a pass things only become less free, so a
  request that failed once fails for every equal job.
- `easy`: EASY backfill: the first job that cannot start gets a reservation, at the earliest time at which running jobs,
  if they use up their limits, leave it room; jobs that do not delay it may overtake. Where jobs of several queues wait,
  each queue has such a head.
- `hybrid`: the first `depth` jobs that cannot start get reservations: 0 is firstfit, 1 is easy, all is conservative.
- `conservative`: every waiting job has a reservation, and a job overtakes only if it delays no other.

Law: where no accounts are kept, extras of running jobs go for the first who waits, only if that suffices. A job for
which others are going gets no more until these are gone, and has a reservation until then, so that no other job starts
in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from math import ceil, inf
from typing import ClassVar, Final

from fluxsched.core.compiling import mypyc_attr
from fluxsched.core.quantities import format_duration
from fluxsched.core.reasons import Cause, WaitKind, cause
from fluxsched.sched.policy import (
    ANYTHING,
    BACKFILLED,
    FIFO,
    IMMEDIATE,
    ITS_START,
    ITSELF,
    NO,
    NOTHING,
    ORDER,
    PAUSE,
    PAUSE_EVERY,
    PLACEMENT,
    RESERVED,
    SWITCH,
    WORST_FIT,
    YES,
    AllMayGo,
    Decision,
    ExtrasSearch,
    Fits,
    Option,
    Pending,
    PendingJob,
    Plan,
    Preemptions,
    Reservation,
    Reserve,
    Shrink,
    Skips,
    Start,
    View,
    cores_in,
    merged,
    placement_of,
)


@mypyc_attr(allow_interpreted_subclasses=True)
class Fifo:
    __doc__: Final = "Strict order: the first job that cannot start holds back all others."

    name: ClassVar[str] = "fifo"
    ARRIVALS: ClassVar[str] = NOTHING
    OPTIONS: ClassVar[Mapping[str, Option]] = {"placement": PLACEMENT}

    def __init__(self, placement: str = WORST_FIT) -> None:
        self.placement = placement

    def schedule(self, view: View, now_s: float) -> Iterator[Decision]:
        placement = placement_of(self)
        while (job := view.first) is not None:
            fit = view.find(job, placement)
            if fit is None:
                yield Pending(job.jobid, view.reason(job))
                return
            yield Start(job.jobid, fit)


# ---- firstfit


@mypyc_attr(allow_interpreted_subclasses=True)
class FirstFit:
    __doc__: Final = "Starts every job that fits, in `order`; others are skipped."

    name: ClassVar[str] = "firstfit"
    ARRIVALS: ClassVar[str] = ITSELF
    OPTIONS: ClassVar[Mapping[str, Option]] = {"order": ORDER, "placement": PLACEMENT}

    def __init__(self, placement: str = WORST_FIT, order: str = FIFO) -> None:
        self.placement = placement
        self._order = order

    def schedule(self, view: View, now_s: float) -> Iterator[Decision]:
        skips, placement = Skips(), placement_of(self)
        selection = IMMEDIATE
        for job in view.candidates(skips, self._order):
            if job is None:
                yield PAUSE
                continue
            fit = view.find(job, placement)
            if fit is not None:
                yield Start(job.jobid, fit, selection)
            else:
                skips.fits_nowhere(job)
                selection = BACKFILLED
                yield Pending(job.jobid, view.reason(job))


# ---- easy


@mypyc_attr(allow_interpreted_subclasses=True)
class Easy:
    __doc__: Final = (
        "The first job that cannot start has a reservation; others start, in `order`, if they do not delay it."
    )

    name: ClassVar[str] = "easy"
    BACKFILLS: ClassVar[bool] = True
    PLANS_ONE: ClassVar[bool] = True
    ARRIVALS: ClassVar[str] = ITS_START
    OPTIONS: ClassVar[Mapping[str, Option]] = {"order": ORDER, "placement": PLACEMENT}

    def __init__(self, order: str = FIFO, placement: str = WORST_FIT) -> None:
        self._order = order
        self.placement = placement

    def schedule(self, view: View, now_s: float) -> Iterator[Decision]:
        placement = placement_of(self)
        if view.first_beside(()) is not None:  # else all jobs are of one queue, as they mostly are
            yield from self._keep_promises(view)
        while (head := view.first) is not None:
            fit = view.find(head, placement)
            if fit is None:
                break
            yield Start(head.jobid, fit)
        if head is None:
            return
        plan = view.plan
        if not plan.has(head.jobid):  # with arrivals alone, the plan of the last pass has it
            yield Reserve(plan.reserve(head), view.reason(head))
        if view.first_beside(()) is not None:
            yield from self._heads_beside(head, view)
        for found in plan.placeable(view.candidates(plan.skips, self._order), placement):
            if found is None:
                yield PAUSE
            else:
                job, fit = found
                yield Start(job.jobid, fit, BACKFILLED)

    def _keep_promises(self, view: View) -> Iterator[Decision]:
        """Plan the heads that have been promised a start before a job that has become the first of another queue."""
        heads: list[PendingJob] = []
        while (job := view.first_beside([head.queue for head in heads])) is not None:
            heads.append(job)
        promised = [(view.planned[job.jobid].start_s, job) for job in heads if job.jobid in view.planned]
        promised.sort(key=lambda each: (each[0], each[1].key))
        if len(promised) > 1:  # one that can start sooner may not do so on the targets of another
            for _, job in promised:
                view.plan.keep(job, view.planned[job.jobid])
        for _, job in promised:
            if len(promised) > 1:
                view.plan.drop(job.jobid)
            yield from self._seat(job, view)

    def _heads_beside(self, head: PendingJob, view: View) -> Iterator[Decision]:
        """Start jobs of other queues that delay no head, and reserve for the first of each that cannot start."""
        blocked = [head.queue]
        while (job := view.first_beside(blocked)) is not None:
            if not (yield from self._seat(job, view)):
                blocked.append(job.queue)

    def _seat(self, job: PendingJob, view: View) -> Generator[Decision, None, bool]:
        """Start the first job of a queue, or see that it has a reservation. Return whether it starts."""
        fit = view.find(job, placement_of(self))
        if fit is not None:
            yield Start(job.jobid, fit)
        elif not view.plan.has(job.jobid):
            yield Reserve(view.plan.reserve(job), view.reason(job))
        return fit is not None


# ---- hybrid

DEPTH_DIGITS_MAX = 9
"""Maximum number of digits of a depth: no queue has more jobs."""
ALL: Final = "all"
"""Depth without a limit."""


def parse_depth(text: str) -> float:
    """`all`, or how many jobs are planned. Raises ValueError."""
    if text == ALL:
        return inf
    if not text.isascii() or not text.isdigit() or len(text) > DEPTH_DIGITS_MAX:
        raise ValueError(f"a depth is a number or {ALL!r}")
    return int(text)


DEPTH: Final = Option(8, parse=parse_depth, help="how many jobs get a reservation: 0 is firstfit, 1 is easy, or 'all'")


@mypyc_attr(allow_interpreted_subclasses=True)
class Hybrid:
    __doc__: Final = (
        "The first `depth` jobs that cannot start have reservations; others start, in `order`, if they delay none."
    )

    name: ClassVar[str] = "hybrid"
    BACKFILLS: ClassVar[bool] = True
    ARRIVALS: ClassVar[str] = ITSELF
    OPTIONS: ClassVar[Mapping[str, Option]] = {"depth": DEPTH, "order": ORDER, "placement": PLACEMENT}

    def __init__(self, depth: float = 8, order: str = FIFO, placement: str = WORST_FIT) -> None:
        self._depth = depth
        self._order = order
        self.placement = placement

    def schedule(self, view: View, now_s: float) -> Iterator[Decision]:
        plan, planned, placement = view.plan, 0, placement_of(self)
        for job in view.queue:
            if planned >= self._depth:
                yield from self._backfill(view.candidates(plan.skips, self._order), plan)
                return
            found = plan.seat(job, placement)
            if isinstance(found, Fits):
                yield Start(job.jobid, found, BACKFILLED if planned else IMMEDIATE)
                continue
            planned += 1
            yield Reserve(found, view.reason(job))
            if not planned % PAUSE_EVERY:
                yield PAUSE

    def _backfill(self, jobs: Iterable[PendingJob | None], plan: Plan) -> Iterator[Decision]:
        for found in plan.placeable(jobs, placement_of(self)):
            if found is None:
                yield PAUSE
            else:
                job, fit = found
                yield Start(job.jobid, fit, BACKFILLED)


# ---- conservative


@mypyc_attr(allow_interpreted_subclasses=True)
class Conservative:
    __doc__: Final = "Every job has a reservation, made in `order`; others start early only if they delay none."

    name: ClassVar[str] = "conservative"
    BACKFILLS: ClassVar[bool] = True
    REPLANS: ClassVar[bool] = True
    OPTIONS: ClassVar[Mapping[str, Option]] = {"compress": SWITCH, "order": ORDER, "placement": PLACEMENT}

    def __init__(self, compress: str = NO, order: str = FIFO, placement: str = WORST_FIT) -> None:
        self._compress = compress == YES
        self._order = order
        self.placement = placement
        self.ARRIVALS = ITSELF if order == FIFO and compress == NO else ANYTHING

    def schedule(self, view: View, now_s: float) -> Iterator[Decision]:
        plan = view.plan
        if self._compress:
            _keep_promises(view, plan)
        selection, planned, placement = IMMEDIATE, 0, placement_of(self)
        for job in view.candidates(Skips(), self._order):
            planned += 1
            if job is None or not planned % PAUSE_EVERY:
                yield PAUSE
            if job is None:
                continue
            plan.drop(job.jobid)
            found = plan.seat(job, placement)
            if isinstance(found, Fits):
                yield Start(job.jobid, found, selection)
            else:
                selection = BACKFILLED
                yield Reserve(found, view.reason(job))


def _keep_promises(view: View, plan: Plan) -> None:
    """Keep the reservations of all jobs, the earliest first; those that cannot be kept are planned again in order."""
    jobs: dict[int, PendingJob] = {job.jobid: job for job in view.queue if job.jobid in view.planned}
    for old in sorted(view.planned.values(), key=lambda old: (old.start_s, old.jobid)):
        job = jobs.get(old.jobid)
        if job is not None:
            plan.keep(job, old)


# ---- giving way

NOT_ENOUGH: Final = (
    "the jobs that may be preempted for it would not make enough room, or are kept for a job that comes first"
)
"""Why nothing is preempted for a job, where no limit keeps it from that."""


def cannot_preempt(preemptions: Preemptions) -> str:
    """Return why no job at all is preempted, where none may be."""
    if preemptions.running.jobs:
        return "no job is preempted: the rate of preemptions is 0"
    return "no running job is preemptible"


def rate_reached(preemptions: Preemptions, now_s: float) -> str:
    """Return when the next job may be preempted, if the rate does not allow it now; else nothing."""
    again_s = preemptions.next_s(1, now_s)
    if again_s <= now_s:
        return ""
    when = f": the next one in {format_duration(ceil(again_s - now_s))}" if again_s < inf else ""
    limit = f"{preemptions.rate} in {format_duration(preemptions.window_s)}"
    return f"no more jobs are preempted for now, at most {limit}{when}"


def seat_awaiting(
    view: View,
    now_s: float,
    admits: Callable[[PendingJob], bool] | None = None,
    keep: Callable[[PendingJob], None] | None = None,
) -> Iterator[Decision]:
    """Start or reserve the jobs that others are preempted for, before other jobs are examined.

    Jobs that `admits` does not allow to start now are left out; `keep` is called for those that have to wait.
    """
    awaiting = [job for job in map(view.job, view.preemptions.awaited) if job is not None and job.priority]
    if not awaiting:
        return
    plan, preemptions = view.plan, view.preemptions
    places = {jobid: old for jobid, old in view.planned.items() if preemptions.awaits(jobid, old.start_s, now_s)}
    for job in awaiting:
        if job.jobid in places:
            plan.claim(job, places[job.jobid], preemptions.going)
    for job in awaiting:
        if admits is None or admits(job):
            plan.waive(job.jobid)
            fit = plan.place(job, WORST_FIT)
            if fit is not None:
                yield Start(job.jobid, fit, RESERVED)
                continue
            if keep is not None:
                keep(job)
            old = places.get(job.jobid)
            kept = None if old is None else plan.claim(job, old, preemptions.going)
            left = preemptions.awaited.get(job.jobid, ())
            ending = sum([jobid in preemptions.going for jobid in left])
            reason = until_gone(ending, len(left) - ending) if left else view.reason(job)
            yield Reserve(kept or plan.reserve(job), reason)


def give_way(view: View, now_s: float) -> Iterator[Decision]:
    """Have extras released for the first pending job, if that suffices; after all jobs that can start have started."""
    job, preemptions = view.first, view.preemptions
    if job is None or not preemptions.elastic or job.jobid in preemptions.awaited or view.is_held_back(job):
        return
    if view.is_put_off(job):
        return
    extras = ExtrasSearch(job.shape, preemptions, now_s)
    with view.if_gone(job) as what_if:
        able, least = what_if.openings(job.shape).able(), what_if.missing(job.shape)
    for _ in extras.look(able, AllMayGo(), least):
        yield PAUSE
    with view.if_gone(job) as what_if:
        for jobid in preemptions.awaited:
            other, kept = view.job(jobid), view.planned.get(jobid)
            if other is not None:
                what_if.seat(other.shape, None if kept is None else kept.fit)
        extras.choose(what_if)
    yield PAUSE
    if extras.fit is not None and extras.chosen:
        yield from _shrink(view, job, extras, extras.fit, now_s)


def _shrink(view: View, job: PendingJob, extras: ExtrasSearch, fit: Fits, now_s: float) -> Iterator[Decision]:
    leaving = merged(extras.chosen)
    for jobid, ranks in leaving.items():
        yield Shrink(jobid, ranks, "it is the first that waits", job.jobid)
    start_s = now_s + view.preemptions.timeout_s
    view.plan.drop(job.jobid)
    made = Reservation(job.jobid, start_s, start_s + job.limit_s, cores_in(fit.blocks), fit)
    yield Reserve(made, until_gone(0, len(leaving)))


def until_gone(preempted: int, shrunk: int) -> Cause:
    """Return the reason of a job that waits for preempted jobs to end, and for others to release targets."""
    going = f"{preempted} preempted {'job' if preempted == 1 else 'jobs'}"
    extras = f"extras of {shrunk} elastic {'job' if shrunk == 1 else 'jobs'}"
    what = [going] * bool(preempted) + [extras] * bool(shrunk)
    text = f"starts when {' and '.join(what)} {'is' if preempted == 1 and not shrunk else 'are'} gone"
    return cause(text, WaitKind.NO_ROOM)
