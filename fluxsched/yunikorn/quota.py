"""Plugin `quota`: a tree of queues over the jobs of an instance, whatever policy orders them.

    fluxsched start --plugin quota:config=q.yaml

The file has the partitions format of YuniKorn, of which the partition `default` counts, else the first. A job is an
application of its own: so `maxapplications` counts jobs that run. Its queue follows from `placementrules`; what they
call provided is `root.BANK` (`a/b` as `root.a.b`), without a bank the job's queue, else `root.default`, and it has the
tags `bank` and `queue`. A job without a bank for which there is no queue is not limited. Kinds are `core`
(also as `vcore`), `gpu`, `node`, and countable resources by their names.

Law: what a job holds is booked before it is committed, or it does not start; what ran before is a fact.
"""

from __future__ import annotations

import errno
import pwd
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Final

from fluxsched.core.jobid import format_f58
from fluxsched.core.quantities import Amounts, amount_text, times, total
from fluxsched.core.request import Request
from fluxsched.core.text import some_of
from fluxsched.errors import InvalidValue, Refused
from fluxsched.sched.hooks import PASS, SKIP, Fits, GroupSeen, JobSeen, Later, Never, Option, Pass, Shape, Skip
from fluxsched.sched.pool.placement import instance_amounts, parts_in
from fluxsched.system.log import logger
from fluxsched.yunikorn.config import (
    DEFAULT_PARTITION,
    FAIR_ORDER,
    PREEMPTION_DELAY,
    PREEMPTION_POLICY,
    PRIORITY_OFFSET,
    PRIORITY_POLICY,
    SORT_POLICY,
    SORT_PRIORITY,
    WEIGHTS,
    PartitionSettings,
    read_config,
)
from fluxsched.yunikorn.placement import Submission, groups_of_host, make_queue, place_application
from fluxsched.yunikorn.tree.queues import Application, QueueSettings, QueueTree

log = logger("quota")

CORE, VCORE, GPU, NODE = "core", "vcore", "gpu", "node"
VCORE_UNITS: Final = 1000

DEFAULT_QUEUE: Final = "root.default"


class Quota:
    """Bounds what banks, queues, users and groups hold at once, by a tree of queues."""

    name: ClassVar[str] = "quota"
    READS: ClassVar[Sequence[str]] = ("bank", "queue", "user")
    OPTIONS: ClassVar[Mapping[str, Option]] = {"config": Option("", help="a YAML file with partitions and queues")}

    def __init__(self, config: str = "") -> None:
        self._bounds = Bounds(_read(config))
        self.generation = 0

    def pre_filter(self, shape: Shape, group: GroupSeen) -> Pass | Skip | Later | Never:
        """Return whether one more job of the shape would exceed a limit; SKIP where no queue is for it."""
        try:
            asking = self._bounds.asking(shape.label("user"), shape.label("bank"), shape.label("queue"))
        except Refused as refusal:
            return Never(str(refusal))
        if asking is None:
            return SKIP
        least = asked_amounts(shape.request)
        never = beyond(asking, least)
        if never is not None:
            return Never(never)
        held_back = self._bounds.tree.held_back(asking, least)
        return PASS if held_back is None else Later(held_back)

    def reserve(self, job: JobSeen, fit: Fits) -> Pass | Later:
        """Books what the job gets, which may be more than it asks for."""
        held_back = self._bounds.book(job, fit, is_fact=False)
        if held_back is not None:
            return Later(held_back)
        self.generation += 1
        return PASS

    def unreserve(self, job: JobSeen, fit: Fits) -> None:
        """Record that the job has not started."""
        self._bounds.free(job.jobid)
        self.generation += 1

    def post_bind(self, job: JobSeen, fit: Fits) -> None:
        """Book a job that ran before this scheduler started, whatever it exceeds."""
        if job.adopted:
            self._bounds.book(job, fit, is_fact=True)
            self.generation += 1

    def on_free(self, job: JobSeen, fit: Fits) -> None:
        """Record that the job holds nothing any more."""
        self._bounds.free(job.jobid)
        self.generation += 1


class Bounds:
    """The tree, with an application for each job that holds something, and one that never does for each who asks."""

    def __init__(self, partition: PartitionSettings) -> None:
        self.tree = QueueTree(partition.root)
        self._partition = partition
        self._asking: dict[tuple[int, str | None, str | None], Application | None] = {}
        self._holding: dict[int, Application] = {}

    def asking(self, userid: int, bank: str | None, queue: str | None) -> Application | None:
        """In whose name a user asks, in the queue where such jobs go; None if no queue is for jobs without a bank.

        Raises Refused for a bank without a queue, which is not a way around quotas, and where a queue refuses the user.
        """
        key = userid, bank, queue
        if key not in self._asking:
            user, groups = user_and_groups(userid)
            provided = f"root.{bank.replace('/', '.')}" if bank else queue or DEFAULT_QUEUE
            tags = {"bank": bank or "", "queue": queue or ""}
            submission = Submission(provided, user, frozenset(groups), tags)
            try:
                placed = place_application(self._partition, self.tree, submission)
            except Refused as refusal:
                if bank or refusal.errnum != errno.ENOENT:
                    raise
                self._asking[key] = None
                return None
            leaf = make_queue(self.tree, placed)
            self._asking[key] = self.tree.add_application(f"asking {key}", leaf, user, groups, 0.0)
        return self._asking[key]

    def book(self, job: JobSeen, fit: Fits, *, is_fact: bool) -> str | None:
        """Books what the job gets, unless that exceeds something: then what that is. What is nowhere is not booked."""
        try:
            asking = self.asking(job.label("user"), job.label("bank"), job.label("queue"))
        except Refused as refusal:
            return str(refusal)
        if asking is None:
            return None
        name, held = format_f58(job.jobid), held_amounts(fit)
        application = self.tree.add_application(name, asking.queue, asking.user, asking.groups, job.t_submit_s)
        held_back = None if is_fact else self.tree.held_back(application, held)
        if held_back is not None:
            self.tree.remove_application(application)
            return held_back
        self.tree.book(application, job.jobid, held)
        self._holding[job.jobid] = application
        return None

    def free(self, jobid: int) -> None:
        """Record that a job holds nothing any more."""
        application = self._holding.pop(jobid, None)
        if application is not None:
            self.tree.free(application, jobid, (), True)
            self.tree.remove_application(application)


def asked_amounts(request: Request) -> Amounts:
    """Return the amounts that a request gets at least."""
    nodes = request.least_nodes
    slots = request.slots.min * nodes
    found = _kinds(request.least_cores, request.least_gpus, nodes)
    found = total(found, times(request.amounts, slots))
    return total(total(found, times(request.node_amounts, nodes)), request.shared)


def held_amounts(fit: Fits) -> Amounts:
    """Return the amounts that a job gets."""
    cores = gpus = nodes = 0
    found = instance_amounts(fit.blocks)
    for part in parts_in(fit.blocks):
        cores, gpus, nodes = cores + part.cores.bit_count(), gpus + part.gpus.bit_count(), nodes + 1
        found = total(found, part.amounts)
    return total(found, _kinds(cores, gpus, nodes))


def _kinds(cores: int, gpus: int, nodes: int) -> Amounts:
    kinds = (CORE, cores), (GPU, gpus), (NODE, nodes), (VCORE, cores * VCORE_UNITS)
    return tuple([each for each in kinds if each[1]])


def beyond(application: Application, amounts: Amounts) -> str | None:
    """Return the maximum or limit that is exceeded even if nothing else is held; None if there is none."""
    bounds = [(f"queue {queue.path}", queue.bounds) for queue in application.path]
    bounds += [(f"limit of {meter.name} in queue {meter.queue.path}", meter.bounds) for meter in application.meters]
    for where, most in bounds:
        for kind, amount in amounts:
            if amount > most.get(kind, amount):
                return f"{where}: {amount_text(kind, amount)} exceeds the maximum of {amount_text(kind, most[kind])}"
    return None


def user_and_groups(userid: int) -> tuple[str, tuple[str, ...]]:
    """Return the name of a user of this host and those of their groups; the number where there is none."""
    try:
        name = pwd.getpwuid(userid).pw_name
    except (KeyError, OverflowError):
        return str(userid), ()
    return name, groups_of_host(name)


def ignored_settings(partition: PartitionSettings) -> list[str]:
    """Return what a partition settles that has no effect on jobs, which the policy of their queue orders."""
    found = ["preemption"] if partition.preemption else []
    if partition.node_order != FAIR_ORDER or dict(partition.weights) != dict(WEIGHTS):
        found.append("nodesortpolicy")
    plain = QueueSettings("")
    below = [(partition.root.name, partition.root)]
    while below:
        path, queue = below.pop(0)
        below += [(f"{path}.{child.name}", child) for child in queue.children]
        found += [f"{name} of {path}" for name, field in _IGNORED if getattr(queue, field) != getattr(plain, field)]
    return found


_IGNORED: Final = (
    ("resources.guaranteed", "guaranteed"),
    (SORT_POLICY, "sort"),
    (SORT_PRIORITY, "by_priority"),
    (PRIORITY_OFFSET, "priority_offset"),
    (PRIORITY_POLICY, "priority_fence"),
    (PREEMPTION_POLICY, "preemption"),
    (PREEMPTION_DELAY, "preemption_delay_s"),
)
"""Settings of a queue that are for the scheduler interface, and the fields of QueueSettings that have them."""


def _read(config: str) -> PartitionSettings:
    if not config:
        raise InvalidValue("plugin 'quota' needs a file of queues: quota:config=q.yaml")
    try:
        partitions = read_config(Path(config).read_text("utf-8"))
    except ModuleNotFoundError:
        raise InvalidValue("plugin 'quota' reads YAML, which needs PyYAML: pip install 'fluxsched[si]'") from None
    except (OSError, UnicodeError) as fault:
        why = fault.strerror if isinstance(fault, OSError) else "it is not UTF-8"
        raise InvalidValue(f"plugin 'quota' cannot read {config}: {why}") from None
    except InvalidValue as fault:
        raise InvalidValue(f"plugin 'quota': {config}: {fault}") from None
    found = next((each for each in partitions if each.name == DEFAULT_PARTITION), partitions[0])
    ignored = ignored_settings(found)
    if ignored:
        _warn(config, some_of(ignored))
    return found


@lru_cache(64)
def _warn(config: str, ignored: str) -> None:
    """Once a process: studies make many plugins of one file."""
    log.warning("plugin 'quota': %s: without effect, since the policy of a queue orders its jobs: %s", config, ignored)
