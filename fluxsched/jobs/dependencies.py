"""Dependencies of a job (RFC 26): other jobs, a time, all jobs of its user and name, or the begin of its reservation.

Law: whether a dependency is met depends on its scheme and the antecedent alone, and every dependency can be read back
from its description in the eventlog, so a restart needs nothing else. As in Flux, the antecedents of `singleton` are
the active jobs of the same user and name that are not held by a `singleton` of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple, Protocol

from fluxsched.core.jobfields import ANTECEDENTS_MAX
from fluxsched.core.jobid import format_f58, parse_jobid
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.jobs.states import INACTIVE, State

DESCRIPTION_CHARS_MAX = 256
"""A description names a scheme and a job id or time; this leaves ample room."""

START_SCHEMES: Final = ("after", "afterstart")
"""RFC 26's name, and the one that Flux has given it since."""

JOB_SCHEMES: Final = (*START_SCHEMES, "afterany", "afterok", "afternotok")
SINGLETON: Final = "singleton"
RESERVATION: Final = "reservation"
"""Ours, added to each job that names a reservation: it waits until that begins."""
SCHEMES: Final = (*JOB_SCHEMES, "begin-time", SINGLETON)


class Antecedent(Protocol):
    """Attributes of an antecedent that its dependencies depend on."""

    id: int
    userid: int

    @property
    def state(self) -> State: ...

    @property
    def started(self) -> bool: ...

    @property
    def jobspec(self) -> Jobspec | None: ...

    @property
    def title(self) -> str: ...

    @property
    def success(self) -> bool: ...


class Dependency(NamedTuple):
    """One dependency: on a job (`antecedent`), else on a time (`at_s`, wall seconds), a reservation or a name."""

    description: str
    scheme: str
    antecedent: int | None
    at_s: float | None


class Verdict(NamedTuple):
    """A dependency of `jobid` is met, or never will be (then `failure` says why)."""

    jobid: int
    dependency: Dependency
    failure: str


def parse_dependency(description: str) -> Dependency:
    """Read a description: `scheme=value`, or `singleton`. Raises InvalidValue, naming the schemes or the value."""
    scheme, _, value = description.partition("=")
    if len(description) > DESCRIPTION_CHARS_MAX:
        raise LimitExceeded(f"dependency {description[:40]!r}...: longer than {DESCRIPTION_CHARS_MAX} characters")
    if scheme in JOB_SCHEMES:
        return Dependency(description, scheme, parse_jobid(value), None)
    if scheme == "begin-time":
        return Dependency(description, scheme, None, _parse_time(value))
    if description == SINGLETON or (scheme == RESERVATION and value):
        return Dependency(description, scheme, None, None)
    if scheme == SINGLETON:
        raise InvalidValue(f"dependency {description!r}: {SINGLETON} takes no value, the job's own name counts")
    raise InvalidValue(f"dependency scheme {scheme!r} is not known: use one of {', '.join(SCHEMES)} (RFC 26)")


def depending_on(scheme: str, antecedent: int) -> Dependency:
    """Return a dependency on a job."""
    return Dependency(f"{scheme}={format_f58(antecedent)}", scheme, antecedent, None)


def reserved(name: str) -> Dependency:
    """Return a dependency on the begin of a reservation."""
    return Dependency(f"{RESERVATION}={name}", RESERVATION, None, None)


def beginning(at_s: float) -> Dependency:
    """Return a dependency on a time (wall seconds)."""
    return Dependency(f"begin-time={at_s}", "begin-time", None, at_s)


def parse_dependencies(objects: Iterable[Mapping[str, Any]]) -> list[Dependency]:
    """Return the dependencies of a jobspec, in order, equal ones once. Raises InvalidValue or LimitExceeded."""
    found: dict[str, Dependency] = {}
    for obj in objects:
        description = f"{obj['scheme']}={obj['value']}" if obj["value"] else obj["scheme"]
        dependency = found[description] = parse_dependency(description)
        if dependency.scheme == RESERVATION:
            raise InvalidValue(f"dependency {description!r}: name the reservation by --reservation instead")
        if len(found) > ANTECEDENTS_MAX:
            raise LimitExceeded(f"more than {ANTECEDENTS_MAX} dependencies: let the job depend on a collecting job")
    return list(found.values())


def is_met_by_start(dependency: Dependency, job: Antecedent) -> bool:
    """Return whether the dependency is on the start of the antecedent alone, which has started."""
    return dependency.scheme in START_SCHEMES and job.started


def verdict(jobid: int, dependency: Dependency, job: Antecedent) -> Verdict | None:
    """Return the verdict on a dependency by the antecedent's present state; None while it is open (RFC 26)."""
    scheme = dependency.scheme
    if is_met_by_start(dependency, job):
        return Verdict(jobid, dependency, "")
    if scheme in START_SCHEMES:
        failure = "ended without starting"
    elif scheme == "afterok":
        failure = "" if job.success else "did not succeed"
    elif scheme == "afternotok":
        failure = "succeeded" if job.success else ""
    else:
        failure = ""
    if job.state is not INACTIVE:
        return None
    return Verdict(jobid, dependency, f"{dependency.description}: {job.title} {failure}" if failure else "")


Name = tuple[int, str]
"""The user and the name that jobs have in common."""


def name_of(job: Antecedent) -> Name | None:
    """Return what `singleton` compares; None for a job without a name of its own."""
    name = None if job.jobspec is None else job.jobspec.job_name
    return None if name is None else (job.userid, name)


class _Namesakes:
    """The active jobs of one name: those that wait for the others, in order of arrival, and those that do not."""

    __slots__ = ("free", "waiting")

    def __init__(self) -> None:
        self.free: set[int] = set()
        self.waiting: dict[int, Dependency] = {}


class DependencyIndex:
    """Index of the open dependencies by antecedent, of begin times to come, and of the active jobs of each name."""

    def __init__(self) -> None:
        self.awaited: dict[int, dict[int, list[Dependency]]] = {}
        """By antecedent the jobs that wait for it, with their dependencies; changed here alone."""
        self._times: list[tuple[float, int, Dependency]] = []
        self._reserved: dict[str, dict[int, Dependency]] = {}
        self._names: dict[Name, _Namesakes] = {}
        self.changed_names: dict[Name, None] = {}
        """Names for whose jobs `next_of_names` is to be called."""

    def enter(self, job: Antecedent) -> None:
        """Count an active job among those of its name."""
        name = name_of(job)
        if name is not None:
            self._names.setdefault(name, _Namesakes()).free.add(job.id)

    def leave(self, job: Antecedent) -> None:
        """Forget a job that ends; see `next_of_names`."""
        name = name_of(job)
        if name is None:
            return
        namesakes = self._names[name]
        namesakes.free.discard(job.id)
        namesakes.waiting.pop(job.id, None)
        if namesakes.waiting:
            self.changed_names[name] = None
        elif not namesakes.free:
            del self._names[name]

    def next_of_names(self) -> Iterable[Verdict]:
        """Return for each changed name the job whose wait for the others is over: it is the next that they wait for."""
        changed, self.changed_names = self.changed_names, {}
        decided: list[Verdict] = []
        for name in changed:
            namesakes = self._names.get(name)
            if namesakes is not None and namesakes.waiting and not namesakes.free:
                jobid = next(iter(namesakes.waiting))
                decided.append(Verdict(jobid, namesakes.waiting.pop(jobid), ""))
                namesakes.free.add(jobid)
        return decided

    def add(self, job: Antecedent, dependency: Dependency) -> None:
        """Remember an open dependency of a job; one on its name is decided by `next_of_names`, at once if it can be."""
        if dependency.antecedent is not None:
            self.awaited.setdefault(dependency.antecedent, {}).setdefault(job.id, []).append(dependency)
        elif dependency.at_s is not None:
            heappush(self._times, (dependency.at_s, job.id, dependency))
        elif dependency.scheme == RESERVATION:
            self._reserved.setdefault(dependency.description, {})[job.id] = dependency
        else:
            name = name_of(job)
            assert name is not None, f"job {job.id} has no name whose jobs it could wait for"
            namesakes = self._names[name]
            namesakes.free.discard(job.id)
            namesakes.waiting[job.id] = dependency
            self.changed_names[name] = None

    def forget(self, jobid: int, dependencies: Iterable[Dependency]) -> None:
        """Record that the job waits for no other job. Its times stay in the heap and mean nothing when they come."""
        for dependency in dependencies:
            if dependency.scheme == RESERVATION:
                self._reserved.get(dependency.description, {}).pop(jobid, None)
            antecedent = dependency.antecedent
            dependents = None if antecedent is None else self.awaited.get(antecedent)
            if antecedent is not None and dependents is not None:
                dependents.pop(jobid, None)
                if not dependents:
                    del self.awaited[antecedent]

    def take(self, antecedent: int) -> dict[int, list[Dependency]]:
        """Return the open dependencies on a job, by the jobs that wait; they are forgotten."""
        return self.awaited.pop(antecedent, {})

    def settle(self, job: Antecedent) -> list[Verdict]:
        """Return verdicts by the antecedent's present state; decided dependencies are removed."""
        dependents = self.awaited.pop(job.id, {})
        decided: list[Verdict] = []
        for jobid, dependencies in dependents.items():
            verdicts = [verdict(jobid, dependency, job) for dependency in dependencies]
            decided += [found for found in verdicts if found is not None]
            still = [dep for dep, found in zip(dependencies, verdicts, strict=True) if found is None]
            if still:
                self.awaited.setdefault(job.id, {})[jobid] = still
        return decided

    def begun(self, reservation: str) -> list[Verdict]:
        """Return verdicts on the dependencies on a reservation, which is on."""
        waiting = self._reserved.pop(reserved(reservation).description, {})
        return [Verdict(jobid, dependency, "") for jobid, dependency in waiting.items()]

    def due(self, now_s: float) -> Iterator[Verdict]:
        """Yield the dependencies on times up to `now_s`, in order of time."""
        while self._times and self._times[0][0] <= now_s:
            _, jobid, dependency = heappop(self._times)
            yield Verdict(jobid, dependency, "")

    @property
    def next_time_s(self) -> float | None:
        """The next time that some job waited for, or None."""
        return self._times[0][0] if self._times else None

    def open_of(self, jobid: int, dependencies: Iterable[Dependency]) -> bool:
        """Return whether all these dependencies of the job are in the index (for the whole-state check)."""
        found = {(waiting, dependency) for _, waiting, dependency in self._times}
        found.update((waiting, one) for named in self._names.values() for waiting, one in named.waiting.items())
        found.update((waiting, one) for reserved in self._reserved.values() for waiting, one in reserved.items())
        return all(
            (jobid, dependency) in found
            if dependency.antecedent is None
            else dependency in self.awaited.get(dependency.antecedent, {}).get(jobid, ())
            for dependency in dependencies
        )

    def named(self) -> dict[Name, set[int]]:
        """Return the active jobs of each name (for the whole-state check)."""
        return {name: {*of.free, *of.waiting} for name, of in self._names.items()}

    def dependents(self) -> set[int]:
        """Return the jobs that wait for other jobs (for the whole-state check)."""
        return {jobid for dependents in self.awaited.values() for jobid in dependents}


def _parse_time(text: str) -> float:
    try:
        at_s = float(text)
    except ValueError:
        at_s = math.nan
    if not math.isfinite(at_s) or at_s < 0:
        raise InvalidValue(f"begin-time {text!r} is not a time in seconds since the epoch")
    return at_s
