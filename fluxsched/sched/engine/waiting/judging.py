"""What becomes of waiting jobs when their group cannot hold them any more, or can again: set aside, denied, back.

Law: the words are those of `shortage`. A job of several groups is set aside in each that cannot hold it; its owner is
told once none can, and it is denied only then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fluxsched.core.why import in_groups
from fluxsched.errors import LimitExceeded
from fluxsched.sched.effects import Annotated, Denied
from fluxsched.sched.engine.waiting.group import Group
from fluxsched.sched.engine.waiting.policy_queue import PolicyQueue
from fluxsched.sched.engine.waiting.set_aside import SetAside
from fluxsched.sched.queue.pending import Waiting


def judge_all(group: Group, now_s: float = 0.0, first: bool = False) -> list[Denied | Annotated]:
    """Judges all waiting jobs again at `now_s`, held jobs too, after targets or properties have changed.

    A job that was set aside and fits is back; one that has become infeasible is set aside, or denied. With the
    `first` targets no job has been judged before.
    """
    if group.quotas is not None:
        return []
    found = _judge_set_aside(group, now_s)
    for queue in group.queues.values():
        if all(group.judge(shape) is None for shape, _ in queue.jobs.shapes()):
            continue
        for job in queue.jobs.everyone():
            why = group.judge(job.shape)
            if why is None:
                continue
            is_new = first and group.refuses(job.t_submit_s, False)
            if (group.is_patient and not is_new) or group.offers_elsewhere(job.jobid):
                found += _put_aside(group, job, queue, why, now_s, lost=not first)
            else:
                group.remove(job.jobid, queue)
                found.append(Denied(job.jobid, _in_each(group, job.jobid, why)))
                for other in group.joint.pop(job.jobid, ()):
                    other.withdraw(job.jobid)
    return found


def add_infeasible(group: Group, job: Waiting, name: str | None, why: str) -> list[Denied | Annotated]:
    """A job that arrives infeasible, and was accepted before, or may run in another group."""
    queue = group.queues.get(name or "") or group.queues[""]
    aside = group.set_aside[job.jobid] = SetAside(job, queue, why, group.short_since_s, False, None)
    return _tell(group, aside)


def why_set_aside(group: Group, jobid: int) -> str | None:
    """What is missing for a job that is set aside, and since when; None for any other, which may run elsewhere."""
    if jobid not in group.set_aside or group.offers_elsewhere(jobid):
        return None
    groups: Sequence[Group] = group.joint.get(jobid, (group,))
    reasons = [(each.name, each.set_aside[jobid].reason(each.time_text)) for each in groups if jobid in each.set_aside]
    return in_groups(reasons) if len(groups) > 1 else reasons[0][1]


def set_aside_in(groups: Iterable[Group]) -> dict[int, str]:
    """Why each job waits that was accepted and that no group of its queue can hold any more."""
    found: dict[int, str] = {}
    for group in groups:
        for jobid in group.set_aside:
            why = why_set_aside(group, jobid)
            if why is not None:
                found[jobid] = why
    return found


def _in_each(group: Group, jobid: int, why: str) -> str:
    """Why a job of several groups can run in none; of one group: why it cannot run there."""
    groups = group.joint.get(jobid)
    if groups is None:
        return why
    whys = [(each.name, why if each is group else each.set_aside[jobid].why) for each in groups]
    return in_groups(whys)


def _put_aside(
    group: Group, job: Waiting, queue: PolicyQueue, why: str, now_s: float, lost: bool
) -> list[Denied | Annotated]:
    queue.jobs.remove(job.jobid)
    queue.removed(job, group.running)
    had = group.had(job.shape)
    aside = group.set_aside[job.jobid] = SetAside(job, queue, why, now_s, lost, had)
    if job.jobid in group.joint:
        group.notices.reasons.pop(job.jobid, None)
    return _tell(group, aside)


def _tell(group: Group, aside: SetAside) -> list[Denied | Annotated]:
    jobid = aside.job.jobid
    why = why_set_aside(group, jobid)
    if why is None:
        return []
    for other in group.joint.get(jobid, ()):
        group.notices.take_over(jobid, other.notices)
    told = group.notices.tell_now(jobid, why)
    return [] if told is None else [told]


def _passed_gates(group: Group, jobid: int) -> bool:
    """Whether a job that another group offers is in the line there."""
    return any(each.queue_of(jobid) is not None for each in group.joint[jobid])


def _judge_set_aside(group: Group, now_s: float) -> list[Denied | Annotated]:
    found: list[Denied | Annotated] = []
    for jobid, aside in list(group.set_aside.items()):
        why = group.judge(aside.job.shape)
        if why is not None:
            if why != aside.why:
                aside.why = why
                found += _tell(group, aside)
            continue
        was_told = not group.offers_elsewhere(jobid)
        if not was_told and not _passed_gates(group, jobid):
            continue  # it joins all lines then
        try:
            if was_told and group.hooks is not None and aside.job.shape.scope is not None:
                group.hooks.gates.ask_soon(aside.job, aside.queue)
            else:
                aside.queue.add(aside.job, group.running, now_s)
        except LimitExceeded:  # the queue is full meanwhile: it is judged again with the next change
            continue
        del group.set_aside[jobid]
        if was_told:
            for other in group.joint.get(jobid, ()):
                group.notices.take_over(jobid, other.notices)
            withdrawn = group.notices.forget(jobid)
            if withdrawn is not None:
                found.append(Annotated(jobid, {"sched": withdrawn}))
    return found
