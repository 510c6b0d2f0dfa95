"""Queries about jobs: attributes, selections, listings, reasons why they wait, sizes over time. Reads only.

Attributes go by the names of `core.jobid`, in both dialects: ours, and Flux's with its numbers. One that has no
value yet, or never will, is None and stays out of a listing. Why a job waits is answered here outside of a scheduler;
while one has its request, `sched/engine/why.py` answers.

Laws: a million jobs may wait, and as many may run as there are cores, so a function that looks at all of them is a
generator: it yields None after each step, between which others are served, and its result at last. A constraint is
checked as a whole before the first job is looked at; what it says of states is also known as a set, so that whole
classes of jobs are skipped. In the sizes of a job, derived from its stored events, a target counts until the job is
told to leave it, so what is said at last is what the job may go on to use.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import nlargest, nsmallest
from itertools import islice
from operator import attrgetter, ge, gt, le, lt
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import JOB_ATTRIBUTES, ended_text, format_f58, parse_jobids, return_code
from fluxsched.core.reasons import WaitKind, Why
from fluxsched.core.request import asked_text
from fluxsched.core.resources import ResourceSet, grown, shrunk
from fluxsched.core.text import shown, some_of
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.jobs.dependencies import RESERVATION
from fluxsched.jobs.job import HELD_PRIORITY, SENT, WAITING, Job, JobSummary
from fluxsched.jobs.lifecycle import Links
from fluxsched.jobs.queues import JobQueue, Queues
from fluxsched.jobs.states import ACTIVE, DEPEND, INACTIVE, NEW, PENDING, RUN, SCHED, State, state_mask
from fluxsched.jobs.table import JobTable, error_text, listed_sizes, result, result_name, shell_status

RESULT_BITS: Final[Mapping[str, int]] = {"COMPLETED": 1, "FAILED": 2, "CANCELED": 4, "TIMEOUT": 8}
"""RFC 43's results as single bits, so that sets of results are plain ints."""

ALL_ATTRIBUTES: Final = "all"
"""The attribute that means all attributes."""

Get = Callable[[JobSummary], Any]


def result_bit(job: JobSummary) -> int | None:
    """Return the job's result as a bit; None until it is inactive."""
    name = result_name(job)
    return None if name is None else RESULT_BITS[name]


def _ended(get: Get) -> Get:
    return lambda job: get(job) if job.state is INACTIVE else None


def _placed(get: Get) -> Get:
    return lambda job: get(job) if job.ranks else None


def _exited(get: Callable[[int], Any]) -> Get:
    return lambda job: None if job.status is None else get(job.status)


def _event_time(name: str) -> Get:
    get = attrgetter(name)
    return lambda job: get(job) or None


def _exception(key: str) -> Get:
    """Return a part of the gravest exception, the first of its kind."""

    def get(job: JobSummary) -> Any:
        if not job.exceptions:
            return None
        return min((event["context"] for event in job.exceptions), key=lambda context: context["severity"])[key]

    return _ended(get)


def _asked_nodes(job: JobSummary) -> int | None:
    nodes = job.jobspec.request.nodes if job.jobspec is not None else None
    return nodes.min if nodes is not None else None


def _asked_cores(job: JobSummary) -> int | None:
    if job.jobspec is None:
        return None
    return job.jobspec.request.least_cores


_GETTERS: Final[Mapping[str, Get]] = {
    "id": attrgetter("id"),
    "state": lambda job: job.state.name,
    "name": attrgetter("name"),
    "userid": attrgetter("userid"),
    "urgency": attrgetter("urgency"),
    "priority": attrgetter("priority"),
    "t_submit": attrgetter("t_submit"),
    "ntasks": attrgetter("ntasks"),
    "duration": attrgetter("duration_s"),
    "annotations": lambda job: job.annotations or {},
    "dependencies": lambda job: list(job.dependencies or ()),
    "command": lambda job: list(job.command),
    "queue": lambda job: job.queue.name,
    "array": lambda job: job.array or None,
    "t_depend": attrgetter("t_submit"),  # a job is validated in the turn in which it is submitted
    "t_priority": _event_time("t_sched"),  # and has its priority in the turn in which it asks for one
    "t_sched": _event_time("t_sched"),
    "t_run": _event_time("t_run"),
    "t_cleanup": _event_time("t_cleanup"),
    "t_inactive": _event_time("t_inactive"),
    "status": attrgetter("status"),
    "waitstatus": _exited(shell_status),
    "exception": attrgetter("fatal"),
    "exception_occurred": _ended(lambda job: bool(job.exceptions)),
    "exception_type": _exception("type"),
    "exception_severity": _exception("severity"),
    "exception_note": _exception("note"),
    "returncode": _exited(return_code),
    "ended": _exited(ended_text),
    "usage": lambda job: None if (used := job.usage) is None else used.to_json(),
    "asked": lambda job: (asked_text(job.jobspec.request) or None) if job.jobspec is not None else None,
    "nodes_asked": lambda job: None if job.ranks else _asked_nodes(job),
    "cores_asked": lambda job: None if job.ranks else _asked_cores(job),
    "nnodes": _placed(lambda job: len(job.ranks)),
    "ncores": _placed(attrgetter("ncores")),
    "ranks": _placed(lambda job: str(job.ranks)),
    "nodelist": _placed(attrgetter("nodelist")),
    "sizes": lambda job: listed_sizes(job) if job.sizes else None,
    "parts": _placed(lambda job: None if job.by_part is None else dict(job.by_part)),
    "switch": _placed(lambda job: job.switch or None),
    "expiration": _placed(attrgetter("expiration_s")),
    "success": _ended(attrgetter("success")),
    "result": result_name,
    "cwd": attrgetter("cwd"),
    "project": lambda job: None,  # accounting of Flux: our instances have none
    "bank": lambda job: job.sharing.bank,
    "job_set": lambda job: job.sharing.job_set,
    "preemptible_after": lambda job: job.sharing.preemptible_after_s,
    "requeue": lambda job: job.sharing.requeue or None,
    "attempt": lambda job: job.attempt and job.attempt.number,
    "requeue_of": lambda job: job.attempt and job.attempt.of,
    "requeued_as": lambda job: job.next_id or None,
}

_FLUX_GETTERS: Final[Mapping[str, Get]] = {
    "state": lambda job: int(job.state),
    "result": result_bit,
    "priority": lambda job: job.priority if job.t_sched else None,
    "annotations": lambda job: job.annotations or None,
    "dependencies": lambda job: list(job.dependencies or ()) or None,
    "nnodes": lambda job: len(job.ranks) or _asked_nodes(job),
    "ncores": lambda job: job.ncores if job.ranks else _asked_cores(job),
    "nodelist": lambda job: job.nodelist or None,
}
"""Attributes in Flux's dialect where it differs: numbers for states and results, requested values until some are
granted.
"""

LISTED: Final[tuple[tuple[str, Get], ...]] = tuple(
    (name, _GETTERS[name]) for name, declared in JOB_ATTRIBUTES.items() if declared.listed
)
"""Attributes listed by job-manager.list."""

FLUX_ATTRIBUTES: Final[Mapping[str, Get]] = MappingProxyType(
    {name: _FLUX_GETTERS.get(name, _GETTERS[name]) for name, declared in JOB_ATTRIBUTES.items() if declared.flux}
)
"""The attributes of Flux's job-list (RFC 43)."""


def info(job: JobSummary) -> dict[str, Any]:
    """Return the attributes of a job in job-manager.list."""
    return {name: value for name, get in LISTED if (value := get(job)) is not None}


def checked_attributes(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of Flux's attributes, `all` expanded. Raises InvalidValue naming those that are unknown."""
    wanted = tuple(names)
    unknown = [name for name in wanted if name != ALL_ATTRIBUTES and name not in FLUX_ATTRIBUTES]
    if unknown:
        known = ", ".join((*FLUX_ATTRIBUTES, ALL_ATTRIBUTES))
        raise InvalidValue(f"unknown job attributes {', '.join(unknown)}; known: {known}")
    return tuple(FLUX_ATTRIBUTES) if ALL_ATTRIBUTES in wanted else wanted


def flux_attributes(job: JobSummary, names: Iterable[str]) -> dict[str, Any]:
    """Return the job's id and those of Flux's named attributes that have a value."""
    found: dict[str, Any] = {"id": job.id}
    for name in names:
        value = FLUX_ATTRIBUTES[name](job)
        if value is not None:
            found[name] = value
    return found


# ---- selection by a constraint

DEPTH_MAX = 16
"""Operators inside one another: clients write three or four, and the reader recurses."""
TERMS_MAX = 1024
"""Operators and values in all: each is looked at for each job."""
PATTERN_CHARS_MAX = 256
"""A pattern of names: each is tried on each job."""
ANY_USER: Final = 0xFFFFFFFF
"""The userid that means all users."""
LIST_MAX = 1000
"""Jobs in one listing unless asked otherwise."""
STEP_JOBS = 4096
"""Jobs looked at in one step: some 4 ms."""
TARGETS: Final = "targets"
"""The operator for sets of targets, such as `property:ssd`, which only an instance knows."""
EVERY_STATE: Final = ACTIVE | INACTIVE

Test = Callable[[JobSummary], bool]
TIMES: Final = tuple(name for name in FLUX_ATTRIBUTES if name.startswith("t_"))
_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {">=": ge, "<=": le, ">": gt, "<": lt}
_LETTERS = {state.name[0]: state for state in State}


def _always(job: JobSummary) -> bool:
    return True


class JobQuery(NamedTuple):
    """A job is meant if its state is in `states` and `matches` holds; of those that have ended, if they did at
    `since_s` or later. With `ids` no other jobs are looked at. A listing shows `max_entries` of them.
    """

    states: int = EVERY_STATE
    matches: Test = _always
    ids: tuple[int, ...] | None = None
    since_s: float = 0.0
    max_entries: int = LIST_MAX


EVERY_JOB: Final = JobQuery()


def parse_query(constraint: object, *more: tuple[str, Any], targets: Callable[[str], Idset] | None = None) -> JobQuery:
    """Return the query that a constraint means, and each operator of `more` with its one value; None and `{}` mean all
    jobs.

    `targets` returns the ranks that a list of ranks, hosts and sets names; without it there is no such operator.
    Raises InvalidValue or LimitExceeded.
    """
    parts = [_Reader(targets).read(constraint, 1)] if constraint is not None else []
    parts += [_LEAVES[operator]([value]) for operator, value in more if value is not None]
    return _combined("and", parts)


def find(jobs: JobTable, query: JobQuery, step: int = STEP_JOBS) -> Iterator[list[JobSummary]]:
    """Yield the jobs that are meant, those of each step: active ones from the latest, then ended ones from the last to
    end.

    There may be a million to look through, so others are served between two steps. Each of the jobs that were there at
    first comes once, as what it is then.
    """
    states, matches, since_s = query.states, query.matches, query.since_s
    for some in _candidates(jobs, query, step):
        yield [
            job
            for job in some
            if job.state & states and (job.state is not INACTIVE or job.t_inactive >= since_s) and matches(job)
        ]


def _candidates(jobs: JobTable, query: JobQuery, step: int) -> Iterator[list[JobSummary]]:
    ids = query.ids
    if ids is not None:
        yield from (jobs.known(ids[at : at + step]) for at in range(0, len(ids), step))
        return
    ended = jobs.walk_ended(step) if query.states & INACTIVE else ()
    if query.states & ACTIVE:
        yield from jobs.walk_active(step)
    for some in ended:
        if some and some[0].t_inactive < query.since_s:
            return
        yield some


class _Reader:
    """Reads one constraint, counting what is in it."""

    def __init__(self, targets: Callable[[str], Idset] | None) -> None:
        self._terms = 0
        self._targets = targets

    def read(self, constraint: object, depth: int) -> JobQuery:
        if depth > DEPTH_MAX:
            raise LimitExceeded(f"the constraint nests deeper than {DEPTH_MAX} operators: flatten it")
        if not isinstance(constraint, dict) or len(constraint) > 1:
            raise InvalidValue(f"constraint {shown(constraint)}: it must be an object with one operator (RFC 31)")
        for operator, values in constraint.items():
            if not isinstance(values, list):
                raise InvalidValue(f"constraint operator {shown(operator)}: its values must be an array")
            self._terms += 1 + len(values)
            if self._terms > TERMS_MAX:
                raise LimitExceeded(f"the constraint has more than {TERMS_MAX} operators and values: ask for less")
            return self._operator(operator, values, depth)
        return EVERY_JOB

    def _operator(self, operator: str, values: list[Any], depth: int) -> JobQuery:
        if operator in ("and", "or", "not"):
            return _combined(operator, [self.read(value, depth + 1) for value in values])
        if operator in TIMES:
            return JobQuery(EVERY_STATE, _time_test(operator, values))
        if operator == TARGETS and self._targets is not None:
            return _ranks([str(self._targets(text)) for text in _texts(TARGETS, values)])
        leaf = _LEAVES.get(operator)
        if leaf is None:
            own = () if self._targets is None else (TARGETS,)
            known = ", ".join(("and", "or", "not", *_LEAVES, *own, *TIMES))
            raise InvalidValue(f"constraint operator {shown(operator)} is unknown; known: {known}")
        return leaf(values)


def _combined(operator: str, parts: list[JobQuery]) -> JobQuery:
    tests = [part.matches for part in parts]
    if operator == "or" and parts:
        states = 0
        for part in parts:
            states |= part.states
        return JobQuery(states, lambda job: any(test(job) for test in tests))
    if operator == "not":
        return JobQuery(EVERY_STATE, lambda job: not all(test(job) for test in tests))
    states = EVERY_STATE
    for part in parts:
        states &= part.states
    tests = [test for test in tests if test is not _always]
    if len(tests) <= 1:
        return JobQuery(states, tests[0] if tests else _always)
    return JobQuery(states, lambda job: all(test(job) for test in tests))


def _userid(values: list[Any]) -> JobQuery:
    if not all(type(value) is int for value in values):
        raise InvalidValue(f"constraint userid: {values!r:.80}: give integers")
    users = frozenset(values)
    if ANY_USER in users:
        return EVERY_JOB
    return JobQuery(EVERY_STATE, lambda job: job.userid in users)


def _name(values: list[Any]) -> JobQuery:
    names = frozenset(_texts("name", values))
    return JobQuery(EVERY_STATE, lambda job: job.name in names)


def _name_pattern(values: list[Any]) -> JobQuery:
    texts = _texts("name-pattern", values)
    long = next((text for text in texts if len(text) > PATTERN_CHARS_MAX), None)
    if long is not None:
        raise LimitExceeded(f"constraint name-pattern: {long[:40]!r}... is longer than {PATTERN_CHARS_MAX} characters")
    whole = re.compile("|".join(map(fnmatch.translate, texts)) or r"(?!)")
    return JobQuery(EVERY_STATE, lambda job: whole.match(job.name) is not None)


def _id(values: list[Any]) -> JobQuery:
    single: set[int] = set()
    ranges: list[tuple[int, int]] = []
    for value in values:
        first, last = _jobids("id", value)
        if first == last:
            single.add(first)
        else:
            ranges.append((first, last))

    def test(job: JobSummary) -> bool:
        return job.id in single or any(first <= job.id <= last for first, last in ranges)

    return JobQuery(EVERY_STATE, test)


def _array(values: list[Any]) -> JobQuery:
    arrays = frozenset(_jobids("array", value)[0] for value in values)
    return JobQuery(EVERY_STATE, lambda job: job.array in arrays or job.id in arrays)


def _jobids(operator: str, value: object) -> tuple[int, int]:
    """Return a job id as number or text (RFC 19); only for `id` also a range of them, as its first and its last."""
    if type(value) is int:
        return value, value
    if not isinstance(value, str) or (operator != "id" and ".." in value):
        raise InvalidValue(f"constraint {operator}: {value!r:.80} is not a job id")
    try:
        return parse_jobids(value)
    except InvalidValue as fault:
        raise InvalidValue(f"constraint {operator}: {fault}") from None


def _queue(values: list[Any]) -> JobQuery:
    names = frozenset(_texts("queue", values))
    return JobQuery(EVERY_STATE, lambda job: job.queue.name in names)


def _set(values: list[Any]) -> JobQuery:
    names = frozenset(_texts("set", values))
    return JobQuery(EVERY_STATE, lambda job: job.sharing.job_set in names)


def _states(values: list[Any]) -> JobQuery:
    mask = 0
    for value in values:
        mask |= _bits("states", value, _state, EVERY_STATE | NEW)
    return JobQuery(mask & EVERY_STATE, lambda job: bool(job.state & mask))


def _results(values: list[Any]) -> JobQuery:
    mask = 0
    for value in values:
        mask |= _bits("results", value, _result, sum(RESULT_BITS.values()))
    return JobQuery(int(INACTIVE), lambda job: bool((result_bit(job) or 0) & mask))


def _hostlist(values: list[Any]) -> JobQuery:
    hosts = frozenset(host for text in _texts("hostlist", values) for host in Hostlist.parse(text))

    def test(job: JobSummary) -> bool:
        return bool(job.nodelist) and not hosts.isdisjoint(Hostlist.parse(job.nodelist))

    return JobQuery(EVERY_STATE, test)


def _ranks(values: list[Any]) -> JobQuery:
    ranks = EMPTY
    for text in _texts("ranks", values):
        ranks = ranks | Idset.parse(text)
    return JobQuery(EVERY_STATE, lambda job: not job.ranks.isdisjoint(ranks))


_LEAVES: Final[Mapping[str, Callable[[list[Any]], JobQuery]]] = {
    "userid": _userid,
    "name": _name,
    "name-pattern": _name_pattern,
    "id": _id,
    "array": _array,
    "queue": _queue,
    "set": _set,
    "states": _states,
    "results": _results,
    "hostlist": _hostlist,
    "ranks": _ranks,
}


def _time_test(operator: str, values: list[Any]) -> Test:
    """`>=`, `<=`, `>` or `<` and seconds since the epoch; a time that the job has not reached compares to nothing."""
    texts = _texts(operator, values)
    sign = next((sign for sign in _COMPARISONS if len(texts) == 1 and texts[0].startswith(sign)), None)
    if sign is None:
        raise InvalidValue(f"constraint {operator} {values!r:.80}: give one of >= <= > < and a time")
    compare, get = _COMPARISONS[sign], FLUX_ATTRIBUTES[operator]
    wanted_s = _seconds(operator, texts[0].removeprefix(sign))

    def test(job: JobSummary) -> bool:
        found_s = get(job)
        return found_s is not None and compare(found_s, wanted_s)

    return test


def _seconds(operator: str, text: str) -> float:
    try:
        found_s = float(text)
    except ValueError:
        found_s = math.nan
    if not 0.0 <= found_s < math.inf:
        raise InvalidValue(f"constraint {operator}: {text[:80]!r} is not a time in seconds since the epoch")
    return found_s


def _texts(operator: str, values: Iterable[Any]) -> list[str]:
    found = [value for value in values if isinstance(value, str)]
    if len(found) != len(list(values)):
        raise InvalidValue(f"constraint {operator}: {values!r:.80}: give texts")
    return found


def _bits(operator: str, value: object, named: Callable[[str], int], known: int) -> int:
    if isinstance(value, str):
        return named(value)
    if type(value) is not int or value & ~known:
        raise InvalidValue(f"constraint {operator}: {value!r:.80} is neither a name nor a sum of bits within {known}")
    return value


def _state(name: str) -> int:
    try:
        return _LETTERS[name.upper()] if len(name) == 1 else state_mask((name,))
    except KeyError:
        raise InvalidValue(f"constraint states: {name[:80]!r} is not a job state (RFC 21)") from None


def _result(name: str) -> int:
    short = {"CD": "COMPLETED", "F": "FAILED", "CA": "CANCELED", "TO": "TIMEOUT"}
    bit = RESULT_BITS.get(short.get(name.upper(), name.upper()))
    if bit is None:
        raise InvalidValue(f"constraint results: {name[:80]!r} is not one of {', '.join(RESULT_BITS)}")
    return bit


# ---- listings

PIECE_JOBS = 128
"""Jobs that a listing looks at in one go: half a millisecond."""


def list_jobs(jobs: JobTable, query: JobQuery, piece_jobs: int = PIECE_JOBS) -> Iterator[list[dict[str, Any]]]:
    """Yield the attributes of the selected jobs in pieces, newest first, active jobs before ended ones.

    Whatever happens between two pieces, no job is listed twice, and each as it is then.
    """
    left = query.max_entries
    for some in find(jobs, query, piece_jobs):
        found = [info(job) for job in islice(some, left)]
        left -= len(found)
        yield found
        if left <= 0:
            return


class Listing(NamedTuple):
    """The first jobs of a selection, and how many it has."""

    jobs: list[JobSummary]
    total: int


def _waited_s(job: JobSummary, now_s: float) -> float:
    return (job.t_run or job.t_inactive or now_s) - job.t_submit


def _runtime_s(job: JobSummary, now_s: float) -> float | None:
    return (job.t_cleanup or job.t_inactive or now_s) - job.t_run if job.t_run else None


_CLOCKED: Final[Mapping[str, Callable[[JobSummary, float], float | None]]] = {
    "waited": _waited_s,
    "runtime": _runtime_s,
}
"""Attributes that need the present time."""


def _at(get: Callable[[JobSummary, float], float | None], now_s: float) -> Get:
    return lambda job: get(job, now_s)


_SORTED: Final[Mapping[str, Get]] = {
    **{name: _GETTERS[name] for name in ("id", "userid", "name", "queue", "bank", "ntasks", "t_submit")},
    **{name: _GETTERS[name] for name in ("urgency", "priority")},
    **{name: _FLUX_GETTERS[name] for name in ("nnodes", "ncores")},
    "state": lambda job: (int(job.state), result_bit(job) or 0),
    "duration": lambda job: job.duration_s or math.inf,
}
ORDERS: Final = (*_SORTED, *_CLOCKED)
"""Attributes by which jobs can be sorted; sizes are those that were asked for until some are granted."""


def sorted_by(
    jobs: JobTable, query: JobQuery, order: str, now_s: float, *, descending: bool = False, step_jobs: int = STEP_JOBS
) -> Iterator[Listing | None]:
    """Yield the first `max_entries` jobs by one of ORDERS; those without a value are last either way."""
    get = _SORTED.get(order) or _at(_CLOCKED[order], now_s)

    def key(job: JobSummary) -> tuple[bool, Any, int]:
        value = get(job)
        return (value is None) != descending, 0 if value is None else value, job.id

    best, count = Best(query.max_entries, key, is_reversed=descending), 0
    for some in find(jobs, query, step_jobs):
        count += len(some)
        for job in some:
            best.append(job)
        yield None
    yield Listing(best.first(), count)


def running_first(jobs: JobTable, query: JobQuery, step_jobs: int = STEP_JOBS) -> Iterator[Listing | None]:
    """Yield the first `max_entries` jobs: those that run, from the latest, those that wait by their place in the queue,
    then those that have ended, from the latest.
    """
    waiting, running = Best(query.max_entries, JobSummary.key), Best(query.max_entries, _latest_start)
    ended: list[JobSummary] = []
    count = 0
    for some in find(jobs, query, step_jobs):
        count += len(some)
        for job in some:
            if job.state is not INACTIVE:
                (waiting if job.state & PENDING else running).append(job)
            elif len(ended) < query.max_entries:
                ended.append(job)
        yield None
    yield Listing((running.first() + waiting.first() + ended)[: query.max_entries], count)


WAITING_LOOKED_MAX = 10_000
"""Jobs of a queue, those that have waited longest, among which its first ones are looked for: 5 ms."""


def first_waiting(
    jobs: JobTable, queue: JobQueue, count: int, userid: int | None = None, looked_max: int = WAITING_LOOKED_MAX
) -> list[int]:
    """Return the ids of the first waiting jobs of a queue by their place in it, of one user if given, `count` at most.

    If more than `looked_max` wait, those are looked at that came first.
    """
    found = [
        job
        for job in jobs.known(islice(queue.pending, looked_max))
        if job.state & PENDING and (userid is None or job.userid == userid)
    ]
    return [job.id for job in nsmallest(count, found, key=JobSummary.key)]


def in_flux_order(jobs: JobTable, query: JobQuery, step_jobs: int = STEP_JOBS) -> Iterator[list[JobSummary] | None]:
    """Yield the first `max_entries` jobs as Flux orders them: those that wait by their place in the queue, then those
    that run and those that have ended, each from the latest.
    """
    waiting = Best(query.max_entries, JobSummary.key)
    running = Best(query.max_entries, _latest_start)
    ended: list[JobSummary] = []
    for some in find(jobs, query, step_jobs):
        for job in some:
            (waiting if job.state & PENDING else ended if job.state is INACTIVE else running).append(job)
        if len(ended) >= query.max_entries:
            break
        yield None
    yield (waiting.first() + running.first() + ended)[: query.max_entries]


def _latest_start(job: JobSummary) -> tuple[float, int]:
    return -job.t_run, -job.id


J = TypeVar("J", bound=JobSummary)


class Best(Generic[J]):
    """The first `count` of many, without keeping the many."""

    def __init__(self, count: int, key: Callable[[J], Any], *, is_reversed: bool = False) -> None:
        self._count = count
        self._key = key
        self._is_reversed = is_reversed
        self._jobs: list[J] = []

    def append(self, job: J) -> None:
        self._jobs.append(job)
        if len(self._jobs) > 2 * self._count + STEP_JOBS:
            self._jobs = self.first()

    def first(self) -> list[J]:
        """Return the first of those so far, in order."""
        jobs = sorted(self._jobs, key=self._key, reverse=self._is_reversed)
        return jobs[: self._count]  # a part is sorted already, so no heap is faster


def newest_ids(jobs: JobTable, query: JobQuery, step_jobs: int = STEP_JOBS) -> Iterator[list[int] | None]:
    """Yield the ids of the latest `max_entries` jobs, from the latest."""
    found: list[int] = []
    for some in find(jobs, query, step_jobs):
        found = nlargest(query.max_entries, [*found, *[job.id for job in some]])
        yield None
    yield found


class Tally(NamedTuple):
    """Jobs a state and jobs a result, by their names."""

    states: Counter[str]
    results: Counter[str]


def tally_jobs(jobs: JobTable, queues: Queues, step_jobs: int = STEP_JOBS) -> Iterator[dict[str | None, Tally] | None]:
    """Yield the jobs of each queue, past and present."""
    found = {queue.name: Tally(Counter(), Counter()) for queue in queues}
    for some in find(jobs, EVERY_JOB, step_jobs):
        for job in some:
            of_queue = found.setdefault(job.queue.name, Tally(Counter(), Counter()))
            of_queue.states[job.state.name] += 1
            ended = result_name(job)
            if ended is not None:
                of_queue.results[ended] += 1
        yield None
    yield found


def total_tally(queues: dict[str | None, Tally]) -> Tally:
    """Return the tallies of all queues together."""
    whole = Tally(Counter(), Counter())
    for found in queues.values():
        whole.states.update(found.states)
        whole.results.update(found.results)
    return whole


def state_counts(whole: Tally) -> dict[str, int]:
    """Jobs a state, in lower case; `inactive` counts those in memory."""
    return {state.name.lower(): whole.states[state.name] for state in State if state & (ACTIVE | INACTIVE)}


# ---- jobs that hold resources, the largest first

RUNNING_JOBS_MAX = 10_000
"""Jobs in one answer: more bars than a picture has pixels; their answer takes a megabyte and 60 ms."""
ENDLESS_S: Final = 1e12
"""For jobs without a limit: longer than all limits, so that they come first, and by their cores."""
STEP_HOLDERS = 512
"""Jobs looked at in one step: half a millisecond."""


class RunningQuery(NamedTuple):
    """Selection of running jobs: those that hold one of `targets`, those of one user; at most `max_entries`."""

    targets: Idset | None = None
    userid: int | None = None
    max_entries: int = RUNNING_JOBS_MAX


class Largest(NamedTuple):
    """The largest of them, and how many more there are."""

    jobs: list[Job]
    left_out: int


def largest(
    jobs: JobTable, holders: Iterable[int], query: RunningQuery, step_holders: int = STEP_HOLDERS
) -> Iterator[Largest | None]:
    """Yield the selected jobs by core-seconds from start to limit; those without a limit are first.

    `holders` are the jobs that hold something now, by the record; what happens later does not change it.
    """
    best, count = Best(query.max_entries, _place), 0
    left = iter(holders)
    while some := list(islice(left, step_holders)):
        for jobid in some:
            job = jobs.active.get(jobid)
            if job is not None and _is_meant(job, query):
                best.append(job)
                count += 1
        yield None
    found = best.first()
    yield Largest(found, count - len(found))


def _is_meant(job: Job, query: RunningQuery) -> bool:
    if query.userid is not None and job.userid != query.userid:
        return False
    return query.targets is None or not query.targets.isdisjoint(job.held)


def _place(job: Job) -> float:
    length_s = job.expiration_s - job.starttime_s if job.expiration_s else ENDLESS_S
    return -job.ncores * length_s


# ---- reasons why a job waits

BEGIN_TIME: Final = "begin-time="
"""Prefix of the description of a begin-time dependency; seconds since the epoch follow."""


def _what_became(job: JobSummary) -> str:
    """Return the reason of a job that waits no longer."""
    ended = result(job)
    if ended is not None:
        again = f"; it was submitted again as job {format_f58(job.next_id)}" if job.next_id else ""
        return f"it has ended: {ended.errstr or 'success'}{again}"
    where = f"on {job.nodelist or 'nothing'}"
    if job.state is RUN:
        return f"it runs {where}"
    return f"it is ending {where}{f': {error_text(job)}' if job.fatal else ''}"


def history(jobs: JobTable, job: JobSummary) -> str | None:
    """Return the number of the attempt and its reason, in words; None for a first attempt."""
    attempt = job.attempt
    if attempt is None:
        return None
    before = jobs.find(attempt.of)
    reason = "what is no longer known" if before is None else error_text(before) or "success"
    if not attempt.number:  # only for reasons that do not count
        return f"submitted again: {format_f58(attempt.of)} ended with {reason}"
    return f"attempt {attempt.number} of {job.sharing.requeue}; {format_f58(attempt.of)} ended with {reason}"


def why(links: Links, job: JobSummary) -> Why:
    """Return the reason why the job waits; the scheduler's own reason if it has given one."""
    if not job.state & PENDING:
        return Why(_what_became(job))
    if job.state is DEPEND:
        return _depends(job)
    if job.priority == HELD_PRIORITY:
        rule = "a job on hold is not started: give it an urgency, fluxsched urgency JOBID default"
        return Why("it is held: its urgency is 0", rule, "not while it is held", kind=WaitKind.HELD)
    queue = job.queue
    if not queue.started:
        rule = "jobs of a stopped queue are not scheduled: it is for an administrator to start it"
        stopped = f"{queue.title} is stopped: {queue.start_reason}"
        return Why(stopped, rule, "not while it is stopped", kind=WaitKind.QUEUE_STOPPED)
    link = links.serving(queue.group)
    if link is None or not link.ready:
        rule = "a scheduler has to serve the group of the job's queue: see fluxsched module list"
        absent = f"no scheduler serves group {queue.groups_text}"
        return Why(absent, rule, "not before one is there", kind=WaitKind.NO_SCHEDULER)
    if job.state is SCHED and job.request == WAITING:
        sent = len(link.outstanding)
        later = f"{sent} jobs are with the scheduler already, its limit; this one comes later"
        return Why(later, kind=WaitKind.BEHIND)
    reason = (job.annotations or {}).get("sched", {}).get("reason_pending") if job.request == SENT else None
    return Why(str(reason)) if reason else Why("the scheduler has not decided yet", kind=WaitKind.BEHIND)


def _depends(job: JobSummary) -> Why:
    """Explain a job that waits for others: times are known, the ends of other jobs are not."""
    waits = job.dependencies or ()
    times = [float(one.removeprefix(BEGIN_TIME)) for one in waits if one.startswith(BEGIN_TIME)]
    when = "not known: the jobs that it depends on come first" if len(times) < len(waits) else "its begin time"
    if any(one.startswith(f"{RESERVATION}=") for one in waits):
        when = "not before its reservation begins: see fluxsched reserve list"
    named = ["begin-time" if one.startswith(BEGIN_TIME) else one for one in waits]  # dates are for the client's zone
    is_time = 0 < len(times) == len(waits)
    return Why(
        "waits for its begin time" if is_time else f"waits for its dependencies: {some_of(named)}",
        "a job is scheduled once all its dependencies are met",
        when,
        max(times) if is_time else None,
        WaitKind.DEPENDENCIES,
    )


# ---- sizes of a job over time


class SizeChange(NamedTuple):
    """One change, at first what the job has `now`: `ranks` is what it is about, `left` what the job has then."""

    event: Literal["now", "grow", "shrink"]
    time_s: float
    ranks: Idset
    left: ResourceSet
    note: str = ""


class SizeChanges:
    """Of one job. `allocated` reads the R that it was started with, once it was."""

    def __init__(self, allocated: Callable[[], Mapping[str, Any] | None]) -> None:
        self._allocated = allocated
        self._left: ResourceSet | None = None
        self._is_told = False

    def take(self, events: Iterable[Mapping[str, Any]]) -> list[SizeChange]:
        """Return the size changes in further events; of the stored ones only the final resources."""
        found: list[SizeChange] = []
        for event in events:
            name, time_s = event["name"], event["timestamp"]
            if name == "alloc":
                given = self._allocated()
                if given is not None:
                    self._left = ResourceSet.parse(given)
                    found.append(SizeChange("now", time_s, self._left.ranks, self._left))
            elif name == "grow" and self._left is not None:
                added = ResourceSet.parse(event["context"]["R"])
                self._left = grown(self._left, added)
                found.append(SizeChange("grow", time_s, added.ranks, self._left))
            elif name == "shrink" and self._left is not None:
                ranks = Idset.parse(event["context"]["ranks"])
                self._left = shrunk(self._left, ranks)
                found.append(SizeChange("shrink", time_s, ranks, self._left, event["context"]["note"]))
            elif name == "clean":
                return []
        if not self._is_told and found:
            self._is_told = True
            return [found[-1]._replace(event="now", ranks=found[-1].left.ranks, note="")]
        return found
