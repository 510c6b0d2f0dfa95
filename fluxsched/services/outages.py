"""Planned outages, as administrators ask for them, and the timer that begins and ends them.

Law: the resource module decides what is due; here it is called when it is, as the wall clock says. A timer that goes
off early, since the wall clock was set back, is set again.

An outage with `end_jobs` moves the expiration of each running job that crosses it to its begin: when it is planned or
changed, when the job starts or changes its size, which its scheduler may have decided before it was told, and at its
begin. If the outage no longer crosses the job, since it was called off or changed, the job gets back the expiration
that it had; one that a user has set meanwhile is its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from fluxsched.core.idset import Idset
from fluxsched.core.outages import NO_OUTAGES, USERS_MAX, Outage, Outages
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.jobs.dependencies import RESERVATION
from fluxsched.jobs.job import Job
from fluxsched.jobs.states import RUN
from fluxsched.messaging.keys import parse_user
from fluxsched.messaging.peers import RpcRequest
from fluxsched.messaging.router import Router
from fluxsched.protocol.messages.resource import (
    OutageAddRequest,
    OutageAddResponse,
    OutageRemoveRequest,
    OutagesResponse,
    OutageUpdateRequest,
)
from fluxsched.resource.module import ResourceModule
from fluxsched.resource.outages import NAMED_SO
from fluxsched.services.job_effects import JobEffects
from fluxsched.services.resource import ResourceService, outage_lines
from fluxsched.system.loop import Timer, Turns

LOOK_MAX_S = 3600.0
"""Longest time between two looks at the wall clock, which may be set, while an outage is ahead (seconds)."""

ASK_AGAIN_S = 2.0
"""Time after which schedulers are asked again to have a job end at another time: they may be starting, or busy with it.
"""


class MovedEnds:
    """Expirations of running jobs, moved for outages that end jobs."""

    def __init__(self, module: ResourceModule, effects: JobEffects) -> None:
        self._module = module
        self._effects = effects
        self._turns = effects.turns
        self._again: Timer | None = None
        self._seen: tuple[Outages, float] = NO_OUTAGES, -inf
        self._some_moved = True  # a restart restores those
        self._ending = NO_OUTAGES
        """Outages that end jobs."""
        self._resized: list[int] = []
        """Jobs that hold more or less, and were not looked at since."""
        effects.held.append(self.held)
        effects.unheld.append(self.unheld)

    def look(self) -> None:
        """Move what is to be moved, if outages have changed, begun or ended."""
        outages = self._module.outages
        seen = outages.value, outages.next_s
        if seen[0] is not self._seen[0] or seen[1] != self._seen[1]:
            self._seen = seen
            self._ending = Outages([each for each in seen[0].all if each.ends_jobs])
            effects, now_s = self._effects, self._turns.wall_s
            effects.perform(effects.manager.requests.reservations.change(seen[0], now_s))
            if self._some_moved or self._ending.all:
                self._move_all()

    def held(self, jobid: int, ranks: Idset) -> None:
        """Look at the job after this turn: it may have been granted before its scheduler knew of an outage."""
        if self._ending.all:
            if not self._resized:
                self._turns.post(self._move_resized)
            self._resized.append(jobid)

    def unheld(self, released: Sequence[tuple[int, Idset]]) -> None:
        """Look at the jobs after this turn: one that continues may cross no outage any more."""
        if self._ending.all:
            for jobid, ranks in released:
                self.held(jobid, ranks)

    def _move_resized(self) -> None:
        resized, self._resized = self._resized, []
        active = self._effects.manager.jobs.active
        self._move([active[jobid] for jobid in resized if jobid in active])

    def _move_all(self) -> None:
        if self._again is not None:
            self._again.cancel()
        self._again, self._some_moved = None, False
        self._move(self._effects.manager.jobs.active.values())

    def _move(self, jobs: Iterable[Job]) -> None:
        manager, now_s, is_open = self._effects.manager, self._turns.wall_s, False
        for job in [one for one in jobs if one.state is RUN]:
            expiration_s, outage = wanted_end(job, self._ending, now_s)
            self._some_moved |= bool(outage)
            if expiration_s != job.expiration_s or job.expiration_asked_s is not None:
                is_open = self._some_moved = True
                self._effects.perform(manager.allocation.move_end(job.id, expiration_s, outage, now_s))
        if is_open and self._again is None:
            self._again = self._turns.after(ASK_AGAIN_S, self._move_all)


def wanted_end(job: Job, outages: Outages, now_s: float) -> tuple[float, str]:
    """Return the expiration that a running job is to have (0 for none), and the outage that it is for (empty: its own);
    `outages` are those that end jobs.
    """
    own_s = job.expiration_s if job.moved_end is None else job.moved_end[1]
    for outage in outages.crossed(now_s, own_s or inf):
        if outage.targets & job.held and job.queue.group != outage.group and not _is_inside(job, outage):
            is_over = 0.0 < job.expiration_s <= now_s
            return (job.expiration_s if is_over else max(outage.from_s, now_s)), outage.name
    return own_s, ""


def _is_inside(job: Job, outage: Outage) -> bool:
    """Return whether the outage is the reservation that a job names."""
    return outage.is_reservation and job.jobspec is not None and job.jobspec.request.reservation == outage.name


def _userids(users: Iterable[str]) -> tuple[int, ...]:
    named = set(users)
    if len(named) > USERS_MAX:  # before the directory service is asked about each
        raise LimitExceeded(f"{len(named)} users of a reservation are above the limit of {USERS_MAX}: name fewer")
    return tuple(sorted({parse_user(user) for user in named}))


class OutageService:
    """Service of the four `resource.outage-*` requests: begins and ends outages on time."""

    def __init__(self, resource: ResourceService, effects: JobEffects, router: Router, turns: Turns) -> None:
        self._resource = resource
        self._turns = turns
        self._timer: Timer | None = None
        self._set_for_s = inf
        self._ends = MovedEnds(resource.module, effects)
        resource.changed.append(self.look)
        router.serve({
            "resource.outage-add": self._add,
            "resource.outage-update": self._update,
            "resource.outage-remove": self._remove,
            "resource.outage-list": self._list,
        })  # fmt: skip

    def look(self) -> None:
        """Set the timer for what is due next, if that has changed."""
        self._ends.look()
        next_s = self._resource.module.outages.next_s
        if next_s == self._set_for_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._set_for_s, self._timer = next_s, None
        if next_s < inf:
            delay_s = min(max(next_s - self._turns.wall_s, 0.0), LOOK_MAX_S)
            self._timer = self._turns.after(delay_s, self._advance)

    def _advance(self) -> None:
        self._set_for_s, self._timer = inf, None
        self._resource.perform(self._resource.module.advance_outages(self._turns.wall_s))

    def _add(self, request: RpcRequest) -> None:
        wanted = request.payload(OutageAddRequest)
        module, now_s = self._resource.module, self._turns.wall_s
        until_s = wanted.until
        if until_s is None:
            if wanted.for_ is None:
                raise InvalidValue("an outage has an end: give either `until` or `for`")
            until_s = wanted.from_ + wanted.for_
        targets = self._targets(wanted.targets)
        if wanted.nodes:
            targets = module.outages.pick(targets, wanted.nodes, wanted.from_, until_s)
        kind = RESERVATION if wanted.reservation else NAMED_SO
        outage = Outage(
            module.outages.name_for(wanted.name, kind), targets, wanted.from_, until_s, wanted.every, wanted.reason,
            wanted.end_jobs, wanted.queue, self._resource.group_for(wanted.queue, targets) if wanted.queue else "",
            wanted.reservation, _userids(wanted.users),
        )  # fmt: skip
        self._resource.perform(module.add_outage(outage, request.who, now_s))
        self._resource.answer(request, OutageAddResponse(outage.name))

    def _update(self, request: RpcRequest) -> None:
        wanted, module = request.payload(OutageUpdateRequest), self._resource.module
        before = module.outages.get(wanted.name, wanted.reservation).outage
        if wanted.users is not None and not before.is_reservation:
            raise InvalidValue(f"outage {wanted.name!r} is for no users: give users to a reservation")
        from_s = before.from_s if wanted.from_ is None else wanted.from_
        lasts_s = before.until_s - before.from_s if wanted.for_ is None else wanted.for_
        moves_end = wanted.until is None and (wanted.for_ is not None or wanted.from_ is not None)
        until_s = from_s + lasts_s if moves_end else before.until_s if wanted.until is None else wanted.until
        outage = before._replace(
            targets=before.targets if wanted.targets is None else self._targets(wanted.targets),
            from_s=from_s,
            until_s=until_s,
            every_s=before.every_s if wanted.every is None else wanted.every,
            reason=before.reason if wanted.reason is None else wanted.reason,
            ends_jobs=before.ends_jobs if wanted.end_jobs is None else wanted.end_jobs,
            users=before.users if wanted.users is None else _userids(wanted.users),
        )
        self._resource.perform(module.update_outage(outage, request.who, self._turns.wall_s))
        self._resource.answer(request)

    def _remove(self, request: RpcRequest) -> None:
        wanted, module = request.payload(OutageRemoveRequest), self._resource.module
        module.outages.get(wanted.name, wanted.reservation)
        self._resource.perform(module.remove_outage(wanted.name, request.who, self._turns.wall_s))
        self._resource.answer(request)

    def _list(self, request: RpcRequest) -> None:
        request.respond(OutagesResponse(outage_lines(self._resource.module.outages)))

    def _targets(self, text: str) -> Idset:
        targets = self._resource.targets(text, self._resource.module.targets.present)
        if not targets:
            raise InvalidValue(f"{text!r} names no targets: name hosts or ranks, a group, a queue, a property or all")
        return targets
