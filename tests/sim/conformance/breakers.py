"""Policies that break one rule of the conformance suite each, and nothing else; and one that preempts as it may."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import inf, nextafter
from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.sched.policy import PAUSE, Deny, Grow, Pending, Preempt, Reserve, Shrink, Start, View


class FirstFit:
    """Keeps everything; those below each break one rule."""

    name = "broken"
    OPTIONS: dict[str, Any] = {}  # noqa: RUF012

    def schedule(self, view: View, now_s: float) -> Iterator[Any]:
        self.begin(view)
        for job in view.queue:
            fit = self.find(view, job)
            if fit is None:
                yield Pending(job.jobid, view.reason(job))
            else:
                yield from self.start(job, fit)
        yield from self.end(view) or ()

    def begin(self, view: View) -> None: ...

    def find(self, view: View, job: Any) -> Any:
        return view.find(job)

    def start(self, job: Any, fit: Any) -> Iterator[Any]:
        yield Start(job.jobid, fit)

    def end(self, view: View) -> Any: ...


class Blind(FirstFit):
    """usable: what nobody runs on must be free, it thinks."""

    def __init__(self) -> None:
        self.seen: dict[Any, Any] = {}

    def find(self, view: View, job: Any) -> Any:
        fit = view.find(job)
        if fit is not None:
            return self.seen.setdefault(job.request, fit) and fit
        taken = {rank for running in view.running for rank in running.parts}
        old = self.seen.get(job.request)
        return None if old is None or any(part.rank in taken for part in old.parts) else old


class Greedy(FirstFit):
    """free: two equal jobs are put on the same place."""

    def find(self, view: View, job: Any) -> Any:
        last, fit = getattr(self, "last", None), view.find(job)
        self.last = fit
        return last if fit is None and last is not None and last.request is job.request else fit

    def begin(self, view: View) -> None:
        self.last = None


class Twice(FirstFit):
    """waiting: a job is started again."""

    def start(self, job: Any, fit: Any) -> Iterator[Any]:
        yield Start(job.jobid, fit)
        yield Start(job.jobid, fit)


class Held(FirstFit):
    """waiting: a job gets less than it asked for."""

    def find(self, view: View, job: Any) -> Any:
        fit = view.find(job)
        return fit if fit is None or len(fit.blocks) < 2 else fit._replace(blocks=fit.blocks[:1])


class Picky(FirstFit):
    """progress: it does not like some jobs."""

    def find(self, view: View, job: Any) -> Any:
        return None if job.request.cores == 3 else view.find(job)


class Endless(FirstFit):
    """progress: it asks again and again whether somebody may start."""

    def schedule(self, view: View, now_s: float) -> Iterator[Any]:
        while any(True for _ in view.queue):
            yield from super().schedule(view, now_s)
            yield PAUSE


class Unkind(FirstFit):
    """progress: who does not fit now never will, it says."""

    def find(self, view: View, job: Any) -> Any:
        return view.find(job)

    def schedule(self, view: View, now_s: float) -> Iterator[Any]:
        for job in view.queue:
            fit = view.find(job)
            yield Deny(job.jobid, "too big") if fit is None else Start(job.jobid, fit)


class Jumpy(FirstFit):
    """ordinary: there is no priority that is a little lower than usual, it thinks."""

    def find(self, view: View, job: Any) -> Any:
        assert job.priority != 15
        return view.find(job)


class Promising(FirstFit):
    """head: it tells the first in line when it is to start, and forgets that where larger jobs are concerned."""

    def schedule(self, view: View, now_s: float) -> Iterator[Any]:
        plan, told = view.plan, False
        for job in view.queue:
            fit = view.find(job)
            if fit is not None and (not told or job.request.cores > 1):
                yield Start(job.jobid, fit)
            elif not told:
                told = True
                yield Reserve(plan.reserve(job), view.reason(job))
                plan.drop(job.jobid)


class Dicing(FirstFit):
    """deterministic: now and then it does not start a job that fits; beside elastic ones, which would grow, it does."""

    def find(self, view: View, job: Any) -> Any:
        busy = any(True for _ in view.running) and not view.preemptions.elastic
        return None if busy and random.random() < 0.5 else view.find(job)


class Stubborn(FirstFit):
    """targets: when it is dropped, it counts on whom it has started last to run on."""

    last: int | None = None

    def begin(self, view: View) -> None:
        assert self.last is None or self.last in [running.jobid for running in view.running]

    def start(self, job: Any, fit: Any) -> Iterator[Any]:
        self.last = job.jobid
        yield Start(job.jobid, fit)

    def end(self, view: View) -> None:
        self.last = None


class Remembering(FirstFit):
    """jobs: when it is dropped, it counts on whom it was to look at next."""

    line: tuple[Any, ...] = ()

    def begin(self, view: View) -> None:
        now = {job.jobid: job for job in view.queue}
        for job in self.line:
            assert now.get(job.jobid, job) is job, "somebody has another priority"
        self.line = tuple(now.values())


class Strict(FirstFit):
    """expiration: limits are limits."""

    def __init__(self) -> None:
        self.ends: dict[int, float] = {}

    def begin(self, view: View) -> None:
        for job in view.running:
            assert self.ends.setdefault(job.jobid, job.expiration_s) == job.expiration_s


class Proud(FirstFit):
    """reload: it knows only whom it started itself."""

    def __init__(self) -> None:
        self.mine: set[int] = set()
        self.elastic = False

    def begin(self, view: View) -> None:
        self.elastic |= bool(view.preemptions.elastic)  # the engine starts those for whom such jobs have shrunk
        assert self.elastic or all(job.jobid in self.mine for job in view.running)

    def start(self, job: Any, fit: Any) -> Iterator[Any]:
        self.mine.add(job.jobid)
        yield Start(job.jobid, fit)


class Narrow(FirstFit):
    """burst: it has room for fifty new jobs a pass, but for the first."""

    known: frozenset[int] | None = None

    def begin(self, view: View) -> None:
        now = frozenset(job.jobid for job in view.queue)
        assert self.known is None or len(now - self.known) < 50
        self.known = now


class Recursive(FirstFit):
    """recursion: one call a start."""

    def schedule(self, view: View, now_s: float) -> Iterator[Any]:
        for job in view.queue:
            fit = view.find(job)
            if fit is not None:
                yield Start(job.jobid, fit)
                yield from self.schedule(view, now_s)
                return
            yield Pending(job.jobid, view.reason(job))


class Wordy(FirstFit):
    """not-nothing: every word of a constraint says something."""

    def find(self, view: View, job: Any) -> Any:
        for words in job.request.constraint.to_json().values():
            assert all(words)
        return view.find(job)


class Fine(FirstFit):
    """rounding: the next time is as far as the last one, it thinks."""

    def schedule(self, view: View, now_s: float) -> Iterator[Any]:
        assert nextafter(now_s, inf) - now_s == now_s - nextafter(now_s, 0.0)
        return super().schedule(view, now_s)


class Frozen(FirstFit):
    """frozen: a reservation is made once; whoever ends by then may overtake, and nobody else."""

    def __init__(self) -> None:
        self.made: dict[int, Any] = {}

    def schedule(self, view: View, now_s: float) -> Iterator[Any]:
        head = None
        for job in view.queue:
            fit = view.find(job)
            if head is not None:
                start_s = self.made[head].start_s
                if fit is not None and job.duration_s and now_s + job.duration_s <= start_s < inf:
                    yield Start(job.jobid, fit)
            elif fit is not None:
                yield Start(job.jobid, fit)
            else:
                head = job.jobid
                if head not in self.made:
                    self.made[head] = view.plan.reserve(job)
                yield Reserve(self.made[head], view.reason(job))


class Singular(FirstFit):
    """queue-head: one reservation is enough for all queues, it thinks."""

    def schedule(self, view: View, now_s: float) -> Iterator[Any]:
        while (head := view.first) is not None and (fit := view.find(head)) is not None:
            yield Start(head.jobid, fit)
        if head is not None:
            plan = view.plan
            yield Reserve(plan.reserve(head), view.reason(head))
            for job, fit in filter(None, plan.placeable(view.candidates(plan.skips), "worst-fit")):
                yield Start(job.jobid, fit, "backfilled")


class Standby(FirstFit):
    """Keeps everything: who waits preempts the jobs last begun on a target that he gets then, all at once."""

    def schedule(self, view: View, now_s: float) -> Iterator[Any]:
        preemptions = view.preemptions
        for job in view.queue:
            fit = self.find(view, job)
            if fit is not None and not preemptions.awaited.keys() - {job.jobid}:
                yield Start(job.jobid, fit)
            elif fit is None and not preemptions.going:
                victims = self.victims(view, job, now_s)
                if len(victims) <= self.left(view, now_s):
                    for victim in victims:
                        yield Preempt(victim, job.jobid, "it has waited")

    def left(self, view: View, now_s: float) -> int:
        return view.preemptions.left(now_s)

    def allows(self, running: Any, now_s: float) -> bool:
        after_s = running.preemptible_after_s
        return after_s is not None and running.started_s + after_s <= now_s

    def victims(self, view: View, job: Any, now_s: float) -> list[int]:
        chosen: list[int] = []
        with view.if_gone() as what_if:
            for running in reversed(list(view.running)):
                if self.allows(running, now_s):
                    what_if.give([running.jobid])
                    chosen.append(running.jobid)
                    if what_if.fits(job.shape):
                        return chosen
        return []


class Ruthless(Standby):
    """allowed: who runs is old enough, it thinks."""

    def allows(self, running: Any, now_s: float) -> bool:
        return running.preemptible_after_s is not None


class Hasty(Standby):
    """rate: it knows none."""

    def left(self, view: View, now_s: float) -> int:
        return 1000


class Wasteful(Standby):
    """in-vain: one fewer will do."""

    def victims(self, view: View, job: Any, now_s: float) -> list[int]:
        return super().victims(view, job, now_s)[:-1]


class Starving(FirstFit):
    """sizes: elastic jobs go on with one target, it thinks."""

    def end(self, view: View) -> Iterator[Any]:
        for jobid, holding in view.preemptions.elastic.items():
            ranks = sorted(holding.parts)
            if len(ranks) > 1:
                yield Shrink(jobid, Idset.of(ranks[1:]), "one will do")


class Swelling(FirstFit):
    """sizes: what is free is for elastic jobs, it thinks."""

    def start(self, job: Any, fit: Any) -> Iterator[Any]:
        yield Start(job.jobid, fit)
        if job.request.elastic:
            yield Grow(job.jobid, fit)


class Feeding(FirstFit):
    """extras: as soon as the first in line has been looked at, elastic jobs may have what is left, it thinks."""

    def schedule(self, view: View, now_s: float) -> Iterator[Any]:
        for at, decision in enumerate(super().schedule(view, now_s)):
            yield decision
            for jobid in list(view.preemptions.elastic) if not at else ():
                step = view.step(jobid)
                if step is not None:
                    yield Grow(jobid, step)


class Crossing(FirstFit):
    """outage: nobody uses as much time as was asked for, it thinks."""

    def find(self, view: View, job: Any) -> Any:
        return view.find(job) or (view.find(job._replace(duration_s=1e-3)) if view.has_outages else None)


class Resting(FirstFit):
    """outage-end: when an outage of an idle machine is over, the next pass is soon enough, it thinks."""

    idle = False

    def schedule(self, view: View, now_s: float) -> Iterator[Any]:
        was_idle, self.idle = self.idle, view.has_outages and not any(view.running)
        if view.has_outages or not was_idle:
            yield from super().schedule(view, now_s)


class Quadratic(FirstFit):
    """cost: everybody is compared with everybody."""

    def begin(self, view: View) -> None:
        keys = [job.key for job in view.queue]
        for key in keys:
            sum(1 for other in keys if other < key)


BREAKERS = [
    (Blind, "usable"), (Greedy, "free"), (Twice, "waiting"), (Held, "waiting"), (Picky, "progress"),
    (Endless, "progress"), (Unkind, "progress"), (Jumpy, "ordinary"), (Promising, "head"), (Dicing, "deterministic"),
    (Stubborn, "targets"), (Remembering, "jobs"), (Strict, "expiration"), (Proud, "reload"), (Narrow, "burst"),
    (Recursive, "recursion"), (Wordy, "not-nothing"), (Fine, "rounding"), (Frozen, "frozen"), (Singular, "queue-head"),
    (Quadratic, "cost"), (Ruthless, "allowed"), (Hasty, "rate"), (Wasteful, "in-vain"),
    (Starving, "sizes"), (Swelling, "sizes"), (Crossing, "outage"), (Resting, "outage-end"),
]  # fmt: skip
