"""Which jobs a list has: what options and queries say, as the constraint of job-manager.list (rfc/jobs.md).

Law: command line, page and screen have the same filters, and they mean the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from fluxsched.errors import InvalidValue
from fluxsched.views.job_row import JOB_STATES, RESULTS

JobConstraint = dict[str, Any]

ANY_USER = "all"
RANGES = "JOBID..JOBID"
"""What stands for ranges of ids among the terms."""
_WILD = frozenset("*?[")


class Jobs(NamedTuple):
    """The operands JOBID...: single jobs, and ranges as texts."""

    ids: tuple[int, ...] = ()
    ranges: tuple[str, ...] = ()


def in_states(*words: str) -> JobConstraint:
    """Jobs in one of these states or with one of these results."""
    states = sorted({state for word in words for state in JOB_STATES.get(word, ())})
    results = sorted(word.upper() for word in words if word in RESULTS)
    parts = [{operator: values} for operator, values in (("states", states), ("results", results)) if values]
    return parts[0] if len(parts) == 1 else {"or": parts}


def named(names: Iterable[str]) -> JobConstraint:
    """Jobs of one of these names; a name with `*`, `?` or `[...]` is also a pattern."""
    texts = list(names)
    patterns = [text for text in texts if not _WILD.isdisjoint(text)]
    exact: JobConstraint = {"name": texts}
    return {"or": [exact, {"name-pattern": patterns}]} if patterns else exact


def on_targets(text: str) -> JobConstraint:
    """Jobs that have resources on one of these hosts or ranks, or in one of these sets, which the instance knows."""
    from fluxsched.core.targets import split_targets

    ranks, hosts, sets = split_targets(text)
    terms = [{"ranks": [str(ranks)]}] if ranks or not (hosts or sets) else []
    terms += [{"hostlist": [str(hosts)]}] if hosts else []
    terms += [{"targets": [",".join(map(str, sets))]}] if sets else []
    return terms[0] if len(terms) == 1 else {"or": terms}


def user_id(text: str) -> int | None:
    """A user by name or number; None for all. Raises InvalidValue."""
    import pwd

    try:
        return None if text == ANY_USER else int(text) if text.isdecimal() else pwd.getpwnam(text).pw_uid
    except (KeyError, ValueError):
        raise InvalidValue(f"there is no user {text!r}") from None


def terms_of(
    jobs: Jobs,
    *,
    user: int | None,
    names: tuple[str, ...],
    queues: tuple[str, ...],
    words: tuple[str, ...] | None,
    array: tuple[int, ...],
    sets: JobConstraint | None,
    targets: JobConstraint | None,
) -> dict[str, JobConstraint]:
    """What each option that was given demands, by the option's name."""
    found: dict[str, JobConstraint] = {}
    if jobs.ranges:
        found[RANGES] = {"id": [*jobs.ranges, *jobs.ids]}
    if user is not None:
        found["--user"] = {"userid": [user]}
    if names:
        found["--name"] = named(names)
    if queues:
        found["--queue"] = {"queue": list(queues)}
    if words:
        found["--filter"] = in_states(*words)
    if array:
        found["--array"] = {"array": list(array)}
    if sets is not None:
        found["--set"] = sets
    if targets is not None:
        found["--include"] = targets
    return found


def list_request(
    terms: Sequence[JobConstraint], ids: Sequence[int], wants_all: bool, since_s: float | None, count: int
) -> dict[str, Any]:
    """The job-manager.list request: active jobs, unless all are wanted or those that ended since."""
    every = [*terms] if wants_all or since_s is not None else [*terms, in_states("active")]
    constraint: JobConstraint | None = every[0] if len(every) == 1 else {"and": every} if every else None
    request = {"max_entries": count, "ids": [*ids] or None, "constraint": constraint, "since": since_s}
    return {key: value for key, value in request.items() if value is not None}
