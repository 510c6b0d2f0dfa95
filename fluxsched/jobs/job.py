"""One job: its values, how each event of its log changes them (RFC 21), and whether and when it is tried again.

Law: whatever the eventlog must be able to reproduce is changed by `apply` alone, live and in a replay alike, so a
replay cannot come out differently. Of its usage a job keeps the sums in its `finish` event, a few numbers, since a
hundred thousand ended jobs are kept; rows of tasks stay in the eventlog.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

import msgspec

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobfields import RETRY_PAUSE_MAX_S, SIGNAL_BASE, USUAL, Sharing
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.quantities import doubled_s
from fluxsched.core.resources import ResourceSet, grown, shrunk
from fluxsched.core.text import with_path
from fluxsched.core.topology import part_texts, switch_above
from fluxsched.errors import InvalidTransition, InvalidValue
from fluxsched.jobs.dependencies import Dependency, parse_dependency
from fluxsched.jobs.grants import Grant
from fluxsched.jobs.queues import JobQueue, PriorityKey
from fluxsched.jobs.states import (
    CANCEL,
    CLEANUP,
    EVENTS,
    EXEC,
    FATAL,
    INACTIVE,
    NEW,
    NODE_FAILURE,
    PREEMPT,
    PROLOG,
    PROLOG_RETRIES,
    REQUEUE,
    RETURN,
    RUN,
    SCHED,
    TRANSITIONS,
    USER,
    Attempt,
    Event,
    State,
    merge,
    read_attempt,
    read_next,
    step,
)

# Not compiled: msgspec decodes into this class by annotations, of which mypyc keeps few


class GpuUsage(msgspec.Struct, frozen=True, gc=False):
    """GPUs of a job that were sampled, their seconds, those that were busy, and the most memory in use on one."""

    count: int
    held_s: float
    busy_s: float
    max_bytes: int


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Wall and CPU time of a job's tasks, the peak of the largest of their processes, and its GPUs if it had some."""

    wall_s: float
    user_s: float
    system_s: float
    max_rss_bytes: int
    max_rss_is_bound: bool = False
    """The peak is no more than this, but how much it was is not known."""
    gpus: GpuUsage | None = None

    def to_json(self) -> dict[str, Any]:
        """As the eventlog has it."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        if not self.max_rss_is_bound:
            del found["max_rss_is_bound"]
        if self.gpus is None:
            del found["gpus"]
        return found


def read_usage(context: Mapping[str, Any]) -> Usage | None:
    """Read the usage in the context of a `finish` event; None where it was not measured (pretended execution, version
    0.1).
    """
    found = context.get("usage")
    if found is None:
        return None
    try:
        return msgspec.convert(found, Usage)
    except msgspec.ValidationError as error:
        raise InvalidValue(f"usage: {error}") from None


# ---- the job

# Not compiled: msgspec makes the class, whose fields have a default_factory


EVENTS_KEPT: Final = 64
"""Names of events kept in memory a job, for error messages; the whole log is in the store."""

HISTORIES_KEPT: Final = 256
"""Number of sequences of such names that are remembered; then all are forgotten."""

KINDS_KEPT: Final = 1024
"""Kinds of ended jobs that are remembered likewise."""

VALUES_KEPT: Final = 8192
"""Annotations that are remembered likewise: some hundred bytes each."""

HELD_PRIORITY: Final = 0
"""The priority that keeps a job from the scheduler (RFC 27's lowest)."""

EXPEDITED_PRIORITY: Final = 4294967295
"""The highest priority (RFC 27)."""

URGENCY_HOLD, URGENCY_DEFAULT, URGENCY_EXPEDITE = 0, 16, 31
"""Special urgencies of RFC 30."""

_decode: Final[Callable[[bytes], Any]] = msgspec.msgpack.Decoder().decode

FormerSize = tuple[float, int, int, Idset]
"""A former size of a job: until when, cores, GPUs and targets."""

# How far the request for resources is (RFC 27), as plain ints
NO_REQUEST, WAITING, SENT, CANCELING = range(4)


class EventNames(dict[str, "EventNames"]):
    """Names of the last events of a job; by the name of the next event these with that one. Nearly all jobs have the
    same few, and share them: one look for each event, where a key of all names would be hashed.
    """

    __slots__ = ("names",)

    def __init__(self, names: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.names = names

    def __missing__(self, name: str) -> EventNames:
        if len(_remembering) >= HISTORIES_KEPT:
            for one in _remembering:
                one.clear()
            _remembering.clear()
        _remembering.append(self)
        found = self[name] = EventNames((*self.names[1 - EVENTS_KEPT :], name))
        return found


NO_EVENTS: Final = EventNames()
_remembering: Final[list[EventNames]] = []
"""Objects that have a next one, each once for every next one."""


class JobKind(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Attributes of ended jobs that mostly many have alike: they share one object."""

    cwd: str | None = None
    ntasks: int = 1
    array: int = 0
    flags: int = 0
    attempt: Attempt | None = None
    next_id: int = 0
    sharing: Sharing = USUAL
    exceptions: list[Event] | None = None
    sizes: list[FormerSize] | None = None
    ngpus: int = 0
    properties: str = ""
    by_part: Mapping[str, str] | None = None
    switch: str = ""
    started: bool = False


class JobSummary(msgspec.Struct, eq=False, gc=False):
    """Attributes of a job that are listed, all that is kept of it once it has ended: a hundred thousand are.

    A struct without garbage collection: nothing in a job refers to jobs, and collections would look through a million.
    """

    id: int
    queue: JobQueue
    name: str = ""
    command: tuple[str, ...] = ()
    duration_s: float = 0.0
    userid: int = 0
    urgency: int = URGENCY_DEFAULT
    priority: int = HELD_PRIORITY
    state: State = NEW
    t_submit: float = 0.0
    t_sched: float = 0.0
    t_run: float = 0.0
    t_cleanup: float = 0.0
    t_inactive: float = 0.0
    kept_annotations: dict[str, Any] | bytes | None = None
    """A dictionary while the job waits, as many jobs share one; from its start on MessagePack."""
    ranks: Idset = EMPTY
    ncores: int = 0
    nodelist: str = ""
    expiration_s: float = 0.0
    status: int | None = None
    fatal: dict[str, Any] | None = None
    packed_usage: bytes | None = None
    """The values of its usage as MessagePack, which take half the memory."""
    kind: JobKind = JobKind()
    """All other attributes of a job that has ended; an active job has its own."""

    @property
    def cwd(self) -> str | None:
        return self.kind.cwd

    @property
    def ntasks(self) -> int:
        return self.kind.ntasks

    @property
    def array(self) -> int:
        return self.kind.array

    @property
    def flags(self) -> int:
        return self.kind.flags

    @property
    def attempt(self) -> Attempt | None:
        """Return the attempt that this job is; None for the first."""
        return self.kind.attempt

    @property
    def next_id(self) -> int:
        """Return the attempt after it, 0 if there is none."""
        return self.kind.next_id

    @property
    def sharing(self) -> Sharing:
        return self.kind.sharing

    @property
    def exceptions(self) -> list[Event] | None:
        return self.kind.exceptions

    @property
    def sizes(self) -> list[FormerSize] | None:
        """Return its former sizes; None if it never grew or shrank."""
        return self.kind.sizes

    @property
    def ngpus(self) -> int:
        return self.kind.ngpus

    @property
    def properties(self) -> str:
        """Return properties of its targets, each in a line."""
        return self.kind.properties

    @property
    def by_part(self) -> Mapping[str, str] | None:
        """Return the ranks of each of several parts, by label."""
        return self.kind.by_part

    @property
    def switch(self) -> str:
        """Return the lowest switch above all of its hosts."""
        return self.kind.switch

    @property
    def started(self) -> bool:
        return self.kind.started

    @property
    def title(self) -> str:
        """The job as its user knows it."""
        return f"job {format_f58(self.id)}"

    @property
    def jobspec(self) -> Jobspec | None:
        """Return the job's jobspec; None once it has ended."""
        return None

    @property
    def dependencies(self) -> dict[str, Dependency] | None:
        """Return the dependencies that are open, by description; None if there never were any."""
        return None

    @property
    def request(self) -> int:
        """Return how far the request for resources is."""
        return NO_REQUEST

    @property
    def annotations(self) -> dict[str, Any] | None:
        """Return the annotations by its scheduler and its user."""
        kept = self.kept_annotations
        return _decode(kept) if isinstance(kept, bytes) else kept

    @annotations.setter
    def annotations(self, value: dict[str, Any] | None) -> None:
        self.kept_annotations = _packed(value) if value and self.state > SCHED else value

    @property
    def usage(self) -> Usage | None:
        """Return what the job's tasks used, once they have ended."""
        if self.packed_usage is None:
            return None
        *figures, gpus = _decode(self.packed_usage)
        figures.append(None if gpus is None else GpuUsage(**gpus))
        return Usage(*figures)

    @usage.setter
    def usage(self, value: Usage | None) -> None:
        self.packed_usage = None if value is None else msgspec.msgpack.encode(msgspec.structs.astuple(value))

    @property
    def success(self) -> bool:
        """Return whether the job ended well: no fatal exception, status 0. Meaningful once the job is inactive.

        Preempted or not, a job that ended with status 0 has done its work.
        """
        return self.status == 0 and (self.fatal is None or self.is_preempted)

    @property
    def is_preempted(self) -> bool:
        """Return whether the job was ended by preemption, and by nothing before."""
        return self.fatal is not None and self.fatal["type"] == PREEMPT

    @property
    def t_first(self) -> float:
        """Return the submission time of its first attempt, by which it is ordered (seconds since the epoch)."""
        return self.t_submit if self.attempt is None else self.attempt.t_first

    def key(self) -> PriorityKey:
        """Return the job's place in the queue: higher priority first, then earlier (first) submit time, then lower
        id.
        """
        return (-self.priority, self.t_first, self.id)


_own: Final = attrgetter(*JobSummary.__struct_fields__[:-1])
_alike: Final = attrgetter(*JobKind.__struct_fields__)


class JobKinds:
    """Kinds of ended jobs by their attributes; jobs that end one after the other mostly are of one."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], JobKind] = {}
        self._last: tuple[Any, ...] = ()
        self._kind = JobKind()

    def get(self, attributes: tuple[Any, ...]) -> JobKind:
        """Return the kind with these attributes; with exceptions, it is remembered for the next job alone."""
        if attributes != self._last:
            self._last = attributes
            try:
                kind = self._known.get(attributes)
            except TypeError:  # there are lists among them
                self._kind = JobKind(*attributes)
                return self._kind
            if kind is None:
                if len(self._known) >= KINDS_KEPT:
                    self._known.clear()
                kind = self._known[attributes] = JobKind(*attributes)
            self._kind = kind
        return self._kind


_kinds: Final = JobKinds()


class Job(JobSummary, eq=False, gc=False):
    """An active job as the manager knows it. Only `apply` and the lifecycle change it; all others read."""

    cwd: str | None = None
    ntasks: int = 1
    array: int = 0
    flags: int = 0
    attempt: Attempt | None = None
    next_id: int = 0
    sharing: Sharing = USUAL
    exceptions: list[Event] | None = None
    sizes: list[FormerSize] | None = None
    ngpus: int = 0
    properties: str = ""
    by_part: Mapping[str, str] | None = None
    switch: str = ""
    started: bool = False
    jobspec: Jobspec | None = None
    dependencies: dict[str, Dependency] | None = None
    overrides: dict[str, Any] | None = None
    packed_r: bytes | None = None
    """R as MessagePack: its tree of dictionaries takes five times as much memory, and 100,000 jobs may run at once."""
    resources: ResourceSet | None = None
    held: Idset = EMPTY
    freed: Idset = EMPTY
    going: Idset = EMPTY
    """Targets that it was shrunk by and has not released."""
    grown: Idset = EMPTY
    """Targets among its own that it has grown by."""
    t_shrunk: float = 0.0
    """Time of its last shrink; 0 if never."""
    starttime_s: float = 0.0
    expiration_asked_s: float | None = None
    asked_for_outage: str = ""
    """The outage for which it is asked to end then; empty if a user asked."""
    moved_end: tuple[str, float] | None = None
    """The outage at whose begin it is to end, and its expiration before."""
    executing: bool = False
    perilog: str = ""
    """The last event about programs before and after its tasks; empty if there was none."""
    request: int = NO_REQUEST
    event_names: EventNames = NO_EVENTS

    def __post_init__(self) -> None:
        jobspec = self.jobspec
        if jobspec is not None:
            self.ntasks = jobspec.least_ntasks
            self.name = jobspec.job_name or jobspec.command[0].rsplit("/", 1)[-1]
            self.command = jobspec.command
            self.cwd = jobspec.cwd
            self.sharing = jobspec.sharing
            self.duration_s = jobspec.duration_s
            if jobspec.array is not None:
                self.array = jobspec.array or self.id

    def summary(self) -> JobSummary:
        """Return what is kept of the job once it has ended; the store has the rest."""
        return JobSummary(*(*_own(self), _kinds.get(_alike(self))))

    @property
    def R(self) -> dict[str, Any] | None:  # noqa: N802 - RFC 20's name
        """Return the resources granted to the job (RFC 20), decoded anew each time; None if none."""
        return None if self.packed_r is None else _decode(self.packed_r)

    @R.setter
    def R(self, value: dict[str, Any]) -> None:  # noqa: N802 - RFC 20's name
        self.packed_r = _packed(value)

    @property
    def recent_events(self) -> tuple[str, ...]:
        """Return the names of the last events."""
        return self.event_names.names

    @property
    def is_free_again(self) -> bool:
        """Return whether the next attempt is none of those that the job may have: it was returned without having begun
        where it was to run, its prolog has failed, or its user has had it requeued.
        """
        return self.fatal is not None and self.fatal["type"] in (RETURN, REQUEUE, PROLOG)

    @property
    def is_unprepared(self) -> bool:
        """Return whether the job was ended because its prolog has failed."""
        return self.fatal is not None and self.fatal["type"] == PROLOG

    @property
    def prologs(self) -> int:
        """Return the number of attempts before this one whose prolog has failed."""
        return 0 if self.attempt is None else self.attempt.prologs

    @property
    def is_due_again(self) -> bool:
        """Return whether the job is to be submitted again if it ends now."""
        if any(_is_cancel(event) for event in self.exceptions or ()):
            return False
        if self.is_free_again:
            return not self.is_unprepared or self.prologs < PROLOG_RETRIES
        return self.attempts < self.sharing.requeue and not self.success and (self.is_preempted or self._is_retried)

    @property
    def attempts(self) -> int:
        """Return the number of attempts before this one that count."""
        return 0 if self.attempt is None else self.attempt.number

    @property
    def _is_retried(self) -> bool:
        """Return whether the job has lost its node, or its tasks have ended in a way after which it is tried again."""
        kind = EXEC if self.fatal is None else self.fatal["type"]
        if kind == NODE_FAILURE:
            return True
        return kind == EXEC and self.status is not None and shell_code(self.status) in self.sharing.retry_on

    @property
    def pause_s(self) -> float:
        """Return the pause before the next attempt (seconds); it doubles from one retry to the next."""
        if self.is_free_again or self.is_preempted:
            return 0.0
        return doubled_s(self.sharing.retry_pause_s, self.attempts, RETRY_PAUSE_MAX_S)

    def apply(self, event: Event) -> None:
        """Let an event happen; see `apply_all`."""
        self.apply_all((event,))

    def apply_all(self, events: Sequence[Event]) -> None:
        """Let events happen, one after the other. Raises InvalidTransition, with the events before, if the table does
        not list one.
        """
        state, names = self.state, self.event_names
        for event in events:
            name = event["name"]
            kind = FATAL if name == "exception" and event["context"]["severity"] == 0 else name
            step = _STEPS[state].get(kind)
            if step is not None:
                target, handler, stamp = step
                if handler is not None:
                    handler(self, event)
                if target is not state:
                    self.state = state = target
                    if stamp is not None:
                        setattr(self, stamp, event["timestamp"])
            elif kind in EVENTS:  # RFC 21: events beyond those listed may appear
                self.event_names = names
                self._refuse(kind)
            names = names[name]
        self.event_names = names

    def grant(self, R: dict[str, Any], grant: Grant) -> None:  # noqa: N803 - RFC 20's name
        """Note the resources that the coming `alloc` event gives (R itself is not in the eventlog)."""
        self.R, self.ranks, self.nodelist = R, grant.ranks, grant.nodelist
        self.ncores, self.ngpus, self.properties = grant.ncores, grant.ngpus, grant.properties
        self.by_part, self.switch = grant.by_part, grant.switch
        self.starttime_s, self.expiration_s = grant.starttime_s, grant.expiration_s
        self._count_tasks()

    def _count_tasks(self) -> None:
        """Of a job that asked for a range: how many tasks it has on what it holds."""
        if self.jobspec is not None and not self.jobspec.request.is_fixed and (R := self.R) is not None:  # noqa: N806
            nslots = R["execution"].get("nslots")
            self.ntasks = self.jobspec.ntasks_on(len(self.ranks), self.ncores, nslots, self.by_part)

    def parsed(self) -> ResourceSet:
        """Return the job's R, parsed once: a job may release a thousand targets one by one."""
        if self.resources is None:
            R = self.R  # noqa: N806 - RFC 20's name
            assert R is not None
            self.resources = ResourceSet.parse(R)
        return self.resources

    def resize(self, resources: ResourceSet, now_s: float) -> None:
        """Record that the job has another R from now on. Properties stay: it counts for those of all targets that it
        ever had.
        """
        self.sizes = [*(self.sizes or ()), (now_s, self.ncores, self.ngpus, self.ranks)]
        R, self.resources = resources.to_json(), resources  # noqa: N806 - RFC 20's name
        self.R = R
        self.ranks, self.nodelist = resources.ranks, ",".join(R["execution"].get("nodelist", ()))
        self.by_part = part_texts(resources.scheduling, resources.ranks)
        self.switch = switch_above(resources.topology, resources.nodelist.hosts)
        self.ncores, self.ngpus = resources.count("core"), resources.count("gpu")
        self._count_tasks()
        names = {*self.properties.split("\n"), *resources.properties} - {""}
        self.properties = "\n".join(sorted(names))

    def remainder(self, ranks: Idset) -> dict[str, Any]:
        """Return the job's R for some of its ranks."""
        whole = self.R if ranks == self.ranks else None
        return self.parsed().restrict(ranks).to_json() if whole is None else whole

    def _refuse(self, kind: str) -> None:
        try:
            step(self.state, kind)
        except InvalidTransition as error:
            past = f"; before it: {', '.join(self.recent_events)}" if self.recent_events else ""
            raise InvalidTransition(f"job {self.id}: {error}{past}") from None


def _packed(value: dict[str, Any]) -> bytes:
    """Return a value as MessagePack. Raises InvalidValue for a number that no message has, as in a damaged row."""
    try:
        return msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeError) as error:
        raise InvalidValue(f"it cannot be kept: {error}") from error


@lru_cache(VALUES_KEPT)
def _shared(value: bytes) -> bytes:
    """Return the annotations that a job of late has, if they are the same: jobs on one core share them."""
    return value


def shell_code(status: int) -> int:
    """Return the exit code of a shell whose program ended with this wait status (RFC 21)."""
    signum = status & 0x7F
    return SIGNAL_BASE + signum if signum else status >> 8 & 0xFF


def priority_of(urgency: int) -> int:
    """Return the priority that an urgency gives (as Flux's built-in plugin does): 0 holds, 31 expedites, else
    itself.
    """
    return EXPEDITED_PRIORITY if urgency == URGENCY_EXPEDITE else urgency


def sched_jobspec(job: Job) -> dict[str, Any]:
    """Return the jobspec for the scheduler (RFC 27): with all updates, without the environment."""
    assert job.jobspec is not None
    tree = job.jobspec.bare
    for path, value in (job.overrides or {}).items():
        tree = with_path(tree, path, value)
    return tree


def _submit(job: Job, event: Event) -> None:
    context = event["context"]
    job.t_submit = event["timestamp"]
    if REQUEUE in context:
        job.attempt = read_attempt(context)
    job.userid, job.urgency, job.flags = context["userid"], context["urgency"], context["flags"]


def _urgency(job: Job, event: Event) -> None:
    job.urgency = event["context"]["urgency"]


def _priority(job: Job, event: Event) -> None:
    job.priority = event["context"]["priority"]


def _dependency_add(job: Job, event: Event) -> None:
    description = event["context"]["description"]
    job.dependencies = {**(job.dependencies or {}), description: parse_dependency(description)}


def _dependency_remove(job: Job, event: Event) -> None:
    if job.dependencies is not None:
        job.dependencies.pop(event["context"]["description"], None)


def _jobspec_update(job: Job, event: Event) -> None:
    job.overrides = {**(job.overrides or {}), **event["context"]}
    job.duration_s = float(event["context"].get("attributes.system.duration", job.duration_s))


def _resource_update(job: Job, event: Event) -> None:
    context = event["context"]
    job.moved_end = (str(context["outage"]), float(context["before"])) if context.get("outage") else None
    job.expiration_s = float(context["expiration"])
    job.duration_s = max(0.0, job.expiration_s - job.starttime_s) if job.expiration_s else 0.0
    held = job.R
    if held is not None:
        job.R = with_path(held, "execution.expiration", job.expiration_s)
        job.resources = None


def _alloc(job: Job, event: Event) -> None:
    job.held = job.ranks
    given = event.get("context", {}).get("annotations")
    annotations = job.annotations if given is None else given
    job.kept_annotations = _shared(_packed(annotations)) if annotations else annotations


def _grow(job: Job, event: Event) -> None:
    added = ResourceSet.parse(event["context"]["R"])
    job.held, job.grown = job.held | added.ranks, job.grown | added.ranks
    if job.packed_r is not None:
        job.resize(grown(job.parsed(), added), event["timestamp"])


def _shrink(job: Job, event: Event) -> None:
    job.going, job.t_shrunk = job.going | Idset.parse(event["context"]["ranks"]), event["timestamp"]


def _start(job: Job, event: Event) -> None:
    job.started = True


def _perilog(job: Job, event: Event) -> None:
    job.perilog = event["name"]


def _memo(job: Job, event: Event) -> None:
    job.annotations = merge(job.annotations or {}, {USER: event["context"]})


def _finish(job: Job, event: Event) -> None:
    context = event["context"]
    job.status = context["status"]
    if "usage" in context:
        job.usage = read_usage(context)


def _release(job: Job, event: Event) -> None:
    text = event["context"]["ranks"]
    if job.state is RUN:
        _left(job, Idset.parse(text), event["timestamp"])
    elif text == "all":
        job.freed, job.held, job.going = job.ranks, EMPTY, EMPTY
    else:
        ranks = Idset.parse(text)
        job.freed, job.held, job.going = job.freed | ranks, job.held - ranks, job.going - ranks


def _left(job: Job, ranks: Idset, now_s: float) -> None:
    """Record that a running job has left targets that it was shrunk by: they are no longer a part of it."""
    job.going, job.grown, job.held = job.going - ranks, job.grown - ranks, job.held - ranks
    if job.packed_r is not None:
        job.resize(shrunk(job.parsed(), ranks), now_s)


def _clean(job: Job, event: Event) -> None:
    if "context" in event:
        job.next_id = read_next(event)


def _is_cancel(event: Event) -> bool:
    return bool(event["context"]["type"] == CANCEL and event["context"]["severity"] == 0)


def _exception(job: Job, event: Event) -> None:
    if job.exceptions is None:
        job.exceptions = []
    job.exceptions.append(event)
    if event["context"]["severity"] == 0:
        job.dependencies = None
        if job.fatal is None:
            job.fatal = event["context"]  # RFC 21: the first one is the root cause
        if job.state <= SCHED:
            job.annotations = None  # RFC 27: discarded if the allocation fails


_HANDLERS: Final[Mapping[str, Callable[[Job, Event], None]]] = {
    "submit": _submit,
    "urgency": _urgency,
    "priority": _priority,
    "dependency-add": _dependency_add,
    "dependency-remove": _dependency_remove,
    "jobspec-update": _jobspec_update,
    "resource-update": _resource_update,
    "alloc": _alloc,
    "grow": _grow,
    "shrink": _shrink,
    "start": _start,
    "memo": _memo,
    "prolog-start": _perilog,
    "prolog-finish": _perilog,
    "epilog-start": _perilog,
    "epilog-finish": _perilog,
    "finish": _finish,
    "release": _release,
    "exception": _exception,
    "clean": _clean,
}

_STAMPS = {SCHED: "t_sched", RUN: "t_run", CLEANUP: "t_cleanup", INACTIVE: "t_inactive"}
"""Fields with the time at which a job entered these states."""

_STEPS = {
    state: {
        kind: (target, _HANDLERS.get("exception" if kind == FATAL else kind), _STAMPS.get(target))
        for kind, target in row.items()
    }
    for state, row in TRANSITIONS.items()
}
"""The table with what each step does: a job has ten events, and is looked up once for each."""
