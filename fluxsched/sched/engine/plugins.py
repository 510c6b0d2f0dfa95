"""The plugins of a scheduler: its queues' chains, and what is to be done for them outside of passes.

Law: what a step changes is complete before its effects are handed out; they are kept until they are taken, so that a
pass may be dropped anywhere. A job is in one place: in its queue, at a gate, set aside, or waiting for a permit.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Final

from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.reasons import WaitKind, Why
from fluxsched.core.request import Request
from fluxsched.core.text import counted
from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.sched.decisions import Annotated, Canceled, Denied, Effect, Granted, PluginFailed
from fluxsched.sched.engine.group import Group, add_infeasible, join, judge_all, judge_in
from fluxsched.sched.engine.held_jobs import HeldJobs, end_of
from fluxsched.sched.engine.passes import Passes, hooked_shapes
from fluxsched.sched.engine.policy_queue import GatedJob, GroupHooks, PolicyQueue, WaitingPermit, seen_of
from fluxsched.sched.hooks import (
    ARRIVAL,
    FREE,
    LIMITS,
    RETRY_S,
    START,
    TARGETS,
    Chain,
    JobSeen,
    PermitWaits,
    Plugin,
    PluginFault,
    Refusal,
    Sorts,
    bind,
    labels_of,
    notify,
    permit,
    unreserve,
    wait_text,
)
from fluxsched.sched.ledger import Ledger, SizeRule
from fluxsched.sched.pool.placement import Fits, Shape, Shapes
from fluxsched.sched.queue import PendingJob

ROUNDS_MAX = 8
"""Passes in one call that follow each other since plugins have taken jobs back or let them in; then a second later."""

FAULTS_MAX = 100
"""Faults of plugins that are reported at a time; the others are counted."""

SOON_S = 1.0

NO_USER: Final = 0xFFFFFFFF
"""Userid of a jobspec that is judged without a job (RFC 12)."""


class Plugins:
    """`plugins` by queue, by the empty name for all queues that have none of their own."""

    def __init__(
        self,
        plugins: Mapping[str, Sequence[Plugin]],
        groups: Sequence[Group],
        ledger: Ledger,
        held: HeldJobs,
        counts: dict[str, int],
    ) -> None:
        self.chains = {scope: Chain(scope, each) for scope, each in plugins.items() if each}
        self._groups = groups
        self._ledger = ledger
        self._held = held
        self._counts = counts
        self._faults: list[str] = []
        self._outbox: deque[Effect] = deque()
        self._sorts = Sorts(self.chains)
        self._soon_s = inf
        self._again = False
        self._bound: dict[int, tuple[Chain, JobSeen, Fits]] = {}
        for plugin in [each for chain in self.chains.values() for each in chain.plugins]:
            if isinstance(plugin, SizeRule):
                ledger.elastic.obey(plugin)
        self._hooks: list[tuple[Group, GroupHooks]] = []
        for group in groups if self.chains else ():
            hooks = GroupHooks(group.name, group.pool, group.running, self.chains, self._faults, self._bound)
            self._hooks.append((group, hooks))
            group.hooks = hooks
            self._sorts.check(group.queues, len(groups) == 1)

    @property
    def names(self) -> dict[str, list[str]]:
        """Return the names of the plugins by queue, without the limits of the site."""
        found = {
            scope: [each.name for each in chain.plugins if each.name != LIMITS] for scope, chain in self.chains.items()
        }
        return {scope: names for scope, names in found.items() if names}

    # ---- jobs that arrive

    def shape_of(self, shapes: Shapes, jobspec: Jobspec, userid: int | None, now_s: float | None = None) -> Shape:
        """Return the shape of a job, with the labels that its plugins read; `now_s` if it arrives (wall time,
        seconds).
        """
        if now_s is not None:
            self.at(now_s)
        queue = jobspec.queue or ""
        scope = queue if queue in self.chains else "" if "" in self.chains else None
        if scope is None:
            return shapes.of(jobspec.request)
        owner = NO_USER if userid is None else userid
        return shapes.of(jobspec.request, labels_of(self.chains[scope].reads, jobspec, owner), scope)

    def shape_of_request(self, shapes: Shapes, request: Request, now_s: float) -> Shape:
        """Return the shape of a request that has nothing that plugins read."""
        self.at(now_s)
        return shapes.of(request, (), "" if "" in self.chains else None)

    def at(self, now_s: float) -> None:
        """Set the time of the present events (wall time, seconds)."""
        for _, hooks in self._hooks:
            hooks.now_s = now_s

    def enter(self, group: Group, job: PendingJob, name: str | None, now_s: float) -> list[Effect]:
        """Record that a feasible job arrives about which plugins are asked. Raises LimitExceeded if its queue is
        full.
        """
        hooks = _of(group)
        hooks.gates.happened(ARRIVAL)
        queue = group.queues.get(name or "") or group.queues[""]
        group.renew(job.shape)
        gated = self._gated(group, job, queue, now_s)
        if gated is None:
            return self._join(group, job, queue, now_s)
        told = group.notices.tell_now(job.jobid, gated.why)
        return [] if told is None else [told]

    def _gated(self, group: Group, job: PendingJob, queue: PolicyQueue, now_s: float) -> GatedJob | None:
        hooks = _of(group)
        return hooks.gates.ask(hooks.chains[job.shape.scope or ""], seen_of(job, now_s), job, queue)

    def _join(self, group: Group, job: PendingJob, queue: PolicyQueue, now_s: float) -> list[Effect]:
        """Add the job to its queue at its position. Raise LimitExceeded if the queue is full."""
        sort = self._sorts.of(seen_of(job, now_s))
        if isinstance(sort, PluginFault):
            self._faults.append(sort.why)
            self._wait_at_gate(group, job, queue, sort.why, now_s + RETRY_S)
            return []
        if sort:
            job = job._replace(sort=sort)
        return join(group, job, queue.name, now_s)

    def _wait_at_gate(self, group: Group, job: PendingJob, queue: PolicyQueue, why: str, at_s: float) -> None:
        _of(group).gates.keep(GatedJob(job, queue, why, (), at_s))
        self._say(group.notices.tell_now(job.jobid, why))

    # ---- jobs that hold something

    def adopt(self, jobid: int, priority: int, userid: int, t_submit_s: float, jobspec: object, now_s: float) -> None:
        """Notify plugins of a job found running, so that their counts include it."""
        allocation = self._ledger.get(jobid)
        if allocation is None or not self.chains:
            return
        shapes, shape, limit_s = Shapes(), None, 0.0
        try:
            parsed = jobspec if isinstance(jobspec, Jobspec) else Jobspec.parse(jobspec) if jobspec else None  # type: ignore[arg-type]
        except InvalidValue:
            parsed = None
        if parsed is not None:
            shape, limit_s = self.shape_of(shapes, parsed, userid), parsed.duration_s
        elif "" in self.chains:
            shape = Shape(Request(), (), "")
        if shape is None or shape.scope is None:
            return
        chain = self.chains[shape.scope]
        seen = JobSeen(jobid, priority, userid, t_submit_s, limit_s, shape, now_s, True)
        self._told(chain, seen, Fits(shape, allocation.blocks, 0))

    def adopt_amounts(self, jobid: int, priority: int, started_s: float, now_s: float) -> None:
        """Record that an allocation of a resource manager is held that plugins were not asked about: a fact, or a
        replacement.
        """
        chain = self.chains.get("")
        if chain is None:
            return
        blocks = self._ledger.allocations[jobid].blocks
        amounts = blocks[0].amounts if blocks else ()
        shape = Shape(Request.of_amounts(amounts), (), "")
        self._told(chain, JobSeen(jobid, priority, 0, started_s, 0.0, shape, now_s, True), Fits(shape, blocks, 0))

    def _told(self, chain: Chain, seen: JobSeen, fit: Fits) -> None:
        notify(chain.post_binds, seen, fit, self._faults)
        if chain.frees:
            self._bound[seen.jobid] = chain, seen, fit
        for _, hooks in self._hooks:
            hooks.gates.happened(START)

    def freed(self, jobid: int, now_s: float) -> None:
        """Notify plugins if the job has freed the last of its resources."""
        if jobid in self._ledger.allocations:
            return
        bound = self._bound.pop(jobid, None)
        if bound is not None:
            chain, seen, fit = bound
            notify(chain.frees, seen._replace(now_s=now_s), fit, self._faults)
        self.happened(FREE)

    def happened(self, event: str) -> None:
        """Record an event, one of EVENTS, in all groups."""
        for _, hooks in self._hooks:
            hooks.gates.happened(event)

    # ---- permits

    def answer(self, jobid: int, plugin: str, allow: bool, reason: str, now_s: float) -> list[Effect]:
        """`sched.permit`. Raises Refused if the job does not wait for this plugin's permit."""
        for group, hooks in self._hooks:
            each = hooks.permits.waiting.get(jobid)
            if each is None:
                continue
            if plugin not in each.whys:
                whom = ", ".join(each.whys)
                text = f"job {format_f58(jobid)} does not wait for plugin {plugin!r}, but for {whom}"
                raise Refused(text, errno.EINVAL)
            if not allow:
                self._take_back(group, each, f"plugin {plugin!r}: {reason or 'refused'}", now_s)
            else:
                del each.whys[plugin]
                if not each.whys:
                    self._grant(group, each, now_s)
            return self._taken()
        raise Refused(f"job {format_f58(jobid)} does not wait for a permit of a plugin", errno.ENOENT)

    def cancel(self, jobid: int, now_s: float | None = None) -> list[Effect]:
        """Withdraw the request of a job that waits for a permit; return no effects for any other job."""
        for group, hooks in self._hooks:
            each = hooks.permits.waiting.get(jobid)
            if each is not None:
                self._take_back(group, each, "", hooks.now_s if now_s is None else now_s, is_canceled=True)
                self._counts["canceled"] += 1
                return [*self._taken(), Canceled(jobid)]
        return []

    def targets_lost(self, targets: Idset, now_s: float) -> list[Effect]:
        """Targets go, or go down: jobs that wait there for a permit wait in their queues again."""
        self.happened(TARGETS)
        for group, hooks in self._hooks:
            for each in list(hooks.permits.waiting.values()):
                if any(part.rank in targets for part in each.fit.parts):
                    self._take_back(group, each, f"targets {targets}, where it was to start, went", now_s)
        return self._taken()

    def _grant(self, group: Group, each: WaitingPermit, now_s: float) -> None:
        """Start a permitted job, unless a plugin objects in the end."""
        job, fit = each.job, each.fit
        seen = each.seen._replace(now_s=now_s)
        said = bind(each.chain, seen, fit)
        if isinstance(said, Refusal):
            self._refused(group, each, said, now_s)
            return
        _of(group).permits.pop(job.jobid)
        end_s = end_of(job.duration_s, group.expiration_s, now_s)
        self._held.starts(job.jobid, now_s, end_s)
        self._counts["granted"] += 1
        group.joint.pop(job.jobid, None)
        withdrawn = group.notices.forget(job.jobid)
        self._say(Granted(job.jobid, fit, now_s, end_s, group.pool, each.selection, withdrawn, said))
        self._told(each.chain, seen, fit)

    def _refused(self, group: Group, each: WaitingPermit, said: Refusal, now_s: float) -> None:
        if said.is_fault:
            self._faults.append(f"{said.why} (asked about job {format_f58(each.job.jobid)})")
        self._take_back(group, each, said.why, now_s)

    def _take_back(self, group: Group, each: WaitingPermit, why: str, now_s: float, is_canceled: bool = False) -> None:
        """Unreserve and free the job's resources; it is queued again unless it was canceled."""
        jobid, hooks = each.job.jobid, _of(group)
        hooks.permits.pop(jobid)
        self._again = True
        group.notices.forget(jobid)
        for effect in self._held.freed(jobid, self._ledger.release_all(jobid, now_s)):
            self._say(effect)
        unreserve(each.chain, each.reserved, each.seen, each.fit, self._faults)
        self.happened(FREE)
        if is_canceled:
            group.joint.pop(jobid, None)
            return
        try:
            join(group, each.job, each.queue.name, now_s)
        except LimitExceeded as fault:
            self._wait_at_gate(group, each.job, each.queue, str(fault), now_s + RETRY_S)
            return
        self._say(group.notices.notify(jobid, why, None, now_s))

    def _ask_permits(self, group: Group, now_s: float) -> None:
        """Ask again for permits where another job was added or removed, then end waits that have timed out."""
        permits = _of(group).permits
        while permits.asked:
            scope = permits.asked.pop()
            for each in [each for each in permits.waiting.values() if each.chain.scope == scope]:
                if each.job.jobid not in permits.waiting:
                    continue
                points = [point for point in each.chain.permits if point[0] in each.whys]
                answer = permit(points, each.seen._replace(now_s=now_s), each.fit)
                if isinstance(answer, PermitWaits):
                    each.whys = answer.whys
                elif isinstance(answer, Refusal):
                    self._refused(group, each, answer, now_s)
                else:
                    self._grant(group, each, now_s)
        for each in [each for each in permits.waiting.values() if each.due_s <= now_s]:
            self._take_back(group, each, f"{wait_text(each.whys)}; it has waited for that too long", now_s)

    # ---- turns

    def run(self, passes: Passes, now_s: float) -> Iterator[Effect]:
        """Run what plugins are due for at this time, and the passes, until neither causes more work."""
        self._soon_s = inf
        for _ in range(ROUNDS_MAX):
            self._again = False
            for group, hooks in self._hooks:
                self._turn(group, hooks, now_s)
            yield from self._drained()
            yield from passes.run(now_s)
            for group, _hooks in self._hooks:
                self._ask_permits(group, now_s)
            self._say_faults()
            yield from self._drained()
            if not self._again and not any(hooks.gates.has_events for _, hooks in self._hooks):
                return
        self._soon_s = now_s + SOON_S

    def _turn(self, group: Group, hooks: GroupHooks, now_s: float) -> None:
        hooks.now_s = now_s
        for each in hooks.gates.due(now_s):
            self._offer_again(group, each, now_s)
        self._ask_permits(group, now_s)
        if group.grown and hooks.is_stale(now_s):
            self._renew(group, hooks, now_s)
        self._say_faults()

    def _offer_again(self, group: Group, each: GatedJob, now_s: float) -> None:
        """Ask again about a job at a gate: it is kept there, or added to its queue."""
        job = each.job
        gated = self._gated(group, job, each.queue, now_s)
        if gated is not None:
            if gated.why != each.why:
                self._say(group.notices.tell_now(job.jobid, gated.why))
            return
        withdrawn = group.notices.forget(job.jobid)
        if withdrawn:
            self._say(Annotated(job.jobid, {"sched": withdrawn}))
        why = judge_in(group.joint.get(job.jobid, (group,)), job.shape)
        if why is not None:
            self._outbox.extend(add_infeasible(group, job, each.queue.name, why))
            return
        try:
            self._join(group, job, each.queue, now_s)
        except LimitExceeded as fault:
            self._wait_at_gate(group, job, each.queue, str(fault), now_s + RETRY_S)

    def _renew(self, group: Group, hooks: GroupHooks, now_s: float) -> None:
        """Renew verdicts on pending shapes that may have changed, and judge the queue by them."""
        shapes = hooked_shapes(group)
        changed = [shape for shape in shapes.values() if group.renew(shape)]
        hooks.verdicts.keep(shapes)
        if changed:
            group.invalidate_pass()
            found = judge_all(group, now_s)
            self._counts["denied"] += sum(isinstance(effect, Denied) for effect in found)
            self._outbox.extend(found)

    def _say(self, effect: Effect | None) -> None:
        if effect is not None:
            self._outbox.append(effect)

    def _say_faults(self) -> None:
        faults = self._faults
        if faults:
            more = len(faults) - FAULTS_MAX
            self._outbox.extend([PluginFailed(note) for note in faults[:FAULTS_MAX]])
            if more > 0:
                self._outbox.append(PluginFailed(f"{counted(more, 'more fault')} of plugins"))
            faults.clear()

    def _taken(self) -> list[Effect]:
        effects = list(self._outbox)
        self._outbox.clear()
        return effects

    def _drained(self) -> Iterator[Effect]:
        while self._outbox:
            yield self._outbox.popleft()

    # ---- answers

    @property
    def next_s(self) -> float:
        """Return when something is due even without an event (wall time, seconds; else inf)."""
        return min([self._soon_s, *[hooks.next_s for _, hooks in self._hooks]])

    def why(self, jobid: int) -> Why | None:
        """Why a job waits that is at a gate or waits for a permit; None for any other."""
        for group, hooks in self._hooks:
            gated, each = hooks.gates.gated.get(jobid), hooks.permits.waiting.get(jobid)
            if gated is not None:
                when = "not known: it is up to the plugin"
                held = "" if gated.job.priority else "; it is held, too: raise its urgency"
                at_s = None if gated.at_s == inf else gated.at_s
                asked = when if at_s is None else f"its plugin is asked again {group.time_text(at_s)}"
                rule = "a plugin does not let it into the queue yet"
                return Why(f"{gated.why}{held}", rule, asked, kind=WaitKind.PLUGIN)
            if each is not None:
                rule = f"it holds what it needs, until {group.time_text(each.due_s)} at most"
                text = f"waits for a permit; {wait_text(each.whys)}"
                return Why(text, rule, "as soon as it is permitted", kind=WaitKind.PLUGIN)
        return None

    def counts(self) -> dict[str, int]:
        """Return the numbers of jobs at gates and of jobs that wait for permits."""
        gated = sum(len(hooks.gates.gated) for _, hooks in self._hooks)
        return {"gated": gated, "permits": sum(len(hooks.permits.waiting) for _, hooks in self._hooks)}


def _of(group: Group) -> GroupHooks:
    hooks = group.hooks
    assert hooks is not None
    return hooks
