"""Selection of jobs by a constraint, for a listing or for a command on many jobs.

A constraint has RFC 31's shape with the operators of RFC 43, made into one test a job. Ours are `id` (ids and ranges of
ids), `array` (jobs submitted together), `set` (job sets), `targets` (ranks, hosts and sets of targets) and
`name-pattern` (names with `*`, `?` and `[...]`).

Law: a constraint is checked as a whole before the first job is looked at; what it says of states is also known as a
set, so that whole classes of jobs are skipped.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import ge, gt, le, lt
from typing import Any, Final, NamedTuple

from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import parse_jobids
from fluxsched.core.jsontext import shown
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.jobs.job.job import Job
from fluxsched.jobs.job.states import ACTIVE, INACTIVE, NEW, State, state_mask
from fluxsched.jobs.job.table import JobTable
from fluxsched.jobs.query.attributes import FLUX_ATTRIBUTES, RESULT_BITS, result_bit

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

Test = Callable[[Job], bool]
TIMES: Final = tuple(name for name in FLUX_ATTRIBUTES if name.startswith("t_"))
_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {">=": ge, "<=": le, ">": gt, "<": lt}
_LETTERS = {state.name[0]: state for state in State}


def _always(job: Job) -> bool:
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


def parse_query(
    constraint: object, *more: tuple[str, Any], targets: Callable[[str], Idset] | None = None
) -> JobQuery:
    """The query that a constraint means, and each operator of `more` with its one value; None and `{}` mean all jobs.

    `targets` returns the ranks that a list of ranks, hosts and sets names; without it there is no such operator.
    Raises InvalidValue or LimitExceeded.
    """
    parts = [_Reader(targets).read(constraint, 1)] if constraint is not None else []
    parts += [_LEAVES[operator]([value]) for operator, value in more if value is not None]
    return _combined("and", parts)


def find(jobs: JobTable, query: JobQuery, step: int = STEP_JOBS) -> Iterator[list[Job]]:
    """The jobs that are meant, those of each step: active ones from the latest, then ended ones from the last to end.

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


def _candidates(jobs: JobTable, query: JobQuery, step: int) -> Iterator[list[Job]]:
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
            return JobQuery(EVERY_STATE, _time(operator, values))
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

    def test(job: Job) -> bool:
        return job.id in single or any(first <= job.id <= last for first, last in ranges)

    return JobQuery(EVERY_STATE, test)


def _array(values: list[Any]) -> JobQuery:
    arrays = frozenset(_jobids("array", value)[0] for value in values)
    return JobQuery(EVERY_STATE, lambda job: job.array in arrays or job.id in arrays)


def _jobids(operator: str, value: object) -> tuple[int, int]:
    """A job id as number or text (RFC 19); only for `id` also a range of them, as its first and its last."""
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

    def test(job: Job) -> bool:
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


def _time(operator: str, values: list[Any]) -> Test:
    """`>=`, `<=`, `>` or `<` and seconds since the epoch; a time that the job has not reached compares to nothing."""
    texts = _texts(operator, values)
    sign = next((sign for sign in _COMPARISONS if len(texts) == 1 and texts[0].startswith(sign)), None)
    if sign is None:
        raise InvalidValue(f"constraint {operator} {values!r:.80}: give one of >= <= > < and a time")
    compare, get = _COMPARISONS[sign], FLUX_ATTRIBUTES[operator]
    wanted_s = _seconds(operator, texts[0].removeprefix(sign))

    def test(job: Job) -> bool:
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
