"""Leases, which are jobs of this instance that run in another one, a cluster: what each event means to one, the jobspec
that is sent there, and the targets of the other instance that are offered here.

Laws of leases: the table `STEPS` is the only place that decides whether something is sent to the other instance, and
whether the job here ends, continues or is returned; a test walks it over all states, wishes and events. A lease is
given up only where it is certain that nothing of it runs or will run in the other instance: it was never sent, the
other instance says so, or an operator vouches for it (`FORGOTTEN`). Nothing is decided about a lease before the other
instance has said on this connection which jobs of ours it has (`listed`), but what `STEPS` allows while it is silent. A
name has one job there: a second one, and one whose lease is not here, is cancelled. Every method returns effects, plain
values that the shell performs in the order of the list.

The jobspec asks for what was granted here, and for nothing that only this instance knows: counts that were ranges are
settled, a constraint names hosts as they are called there, and what was waited for, where it stands in line, and how
often it may be preempted is this instance's business.

The mirror: the group of a cluster has the targets that jobs of ours may get there, under names that say whose they are.
What others use there is not offered here. Where a job of ours runs is the other instance's choice, so what counts is
how many targets are in use, not which: as many as jobs of others have are taken from those that no job here holds.
Switches are called like targets, so none here is above hosts of two clusters.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

import msgspec

from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import fill, format_f58, id_tag
from fluxsched.core.jobspec import OWN_CONSTRAINT, Jobspec
from fluxsched.core.resources import EMPTY_R, LOCAL_PREFIX, ONE_PART, ResourceSet
from fluxsched.core.text import with_path
from fluxsched.core.topology import EMPTY_TOPOLOGY, Switch, Topology
from fluxsched.errors import InvalidValue, Refused


class LeaseState(Enum):
    """State of a lease as stored. The values are those of the column `state`."""

    WANTED = "wanted"
    """No request for the lease was sent."""
    SENT = "sent"
    """The lease may have reached the other instance, and its job has not been seen to run."""
    RUNNING = "running"
    """The job of the lease was seen to run."""
    ENDED = "ended"
    """The lease has ended: its row is removed with the event that ends the job."""


class Wish(Enum):
    """Intention for a lease that has not ended."""

    RUN = "run"
    RETURN = "return"
    """The job was not begun in time: another place is looked for, unless it begins first."""
    END = "end"
    """The job of the lease is to end."""


class LeaseEvent(Enum):
    """Event of a lease, as it was seen in the other instance or decided here."""

    ABSENT = "absent"
    """The other instance has no job of this name."""
    WAITING = "waiting"
    """The other instance has a job of this name, which was not begun."""
    BEGUN = "begun"
    """The other instance has a job of this name, which runs."""
    FINISHED = "finished"
    """The other instance has a job of this name, which was begun and has ended."""
    REFUSED = "refused"
    """The other instance does not accept the job, or ended it before it was begun."""
    CLOSED = "closed"
    """The other instance has no job of this name, and accepts none at present."""
    LATE = "late"
    """The job was not begun within `return-after`."""
    KILLED = "killed"
    """The job is to end."""
    FORGOTTEN = "forgotten"
    """An operator says that nothing of the other instance is left."""


class LeaseAction(Enum):
    """Action that results from an event."""

    NOTHING = "nothing"
    SUBMIT = "submit"
    BEGIN = "begin"
    """The job begins in this instance."""
    FINISH = "finish"
    """The job ends with the result of the other instance's job."""
    FAIL = "fail"
    """The job ends with an exception: it was refused."""
    LOSE = "lose"
    """The job ends with an exception: it was begun, and its result will not be known."""
    RETURN = "return"
    """The job is submitted anew in this instance, at no cost of attempts."""
    DROP = "drop"
    """The job ends without having run, as was wanted."""
    WITHDRAW = "withdraw"
    """The one there is cancelled, unless it was begun."""
    CANCEL = "cancel"
    """The one there is ended."""


class LeaseStep(NamedTuple):
    """The state and the wish that follow, and what is done."""

    state: LeaseState
    wish: Wish
    action: LeaseAction


WANTED, SENT, RUNNING, ENDED = LeaseState
_RUN, _RETURN, _END = Wish
_ACT = LeaseAction
_E = LeaseEvent

_WHEN_OVER = {
    _E.FINISHED: LeaseStep(ENDED, _RUN, _ACT.FINISH),
    _E.REFUSED: LeaseStep(ENDED, _RUN, _ACT.FAIL),
}
"""Steps for a job that is over in the other instance; they hold for every wish."""
_BEGUN = {
    **_WHEN_OVER,
    _E.ABSENT: LeaseStep(ENDED, _RUN, _ACT.LOSE),
    _E.CLOSED: LeaseStep(ENDED, _RUN, _ACT.LOSE),
    _E.LATE: LeaseStep(RUNNING, _RUN, _ACT.NOTHING),
    _E.KILLED: LeaseStep(RUNNING, _END, _ACT.CANCEL),
    _E.FORGOTTEN: LeaseStep(ENDED, _RUN, _ACT.LOSE),
}
"""Steps of a lease that was seen to run: it is never submitted or returned."""
_NOTHING_MORE = dict.fromkeys(_E, LeaseStep(ENDED, _RUN, _ACT.NOTHING))

STEPS: Final[Mapping[tuple[LeaseState, Wish], Mapping[LeaseEvent, LeaseStep]]] = {
    (WANTED, _RUN): {
        **_WHEN_OVER,
        _E.ABSENT: LeaseStep(SENT, _RUN, _ACT.SUBMIT),
        _E.WAITING: LeaseStep(SENT, _RUN, _ACT.NOTHING),
        _E.CLOSED: LeaseStep(ENDED, _RUN, _ACT.RETURN),
        _E.BEGUN: LeaseStep(RUNNING, _RUN, _ACT.BEGIN),
        _E.LATE: LeaseStep(ENDED, _RUN, _ACT.RETURN),
        _E.KILLED: LeaseStep(ENDED, _RUN, _ACT.DROP),
        _E.FORGOTTEN: LeaseStep(ENDED, _RUN, _ACT.RETURN),
    },
    (SENT, _RUN): {
        **_WHEN_OVER,
        _E.ABSENT: LeaseStep(SENT, _RUN, _ACT.SUBMIT),
        _E.WAITING: LeaseStep(SENT, _RUN, _ACT.NOTHING),
        _E.CLOSED: LeaseStep(ENDED, _RUN, _ACT.RETURN),
        _E.BEGUN: LeaseStep(RUNNING, _RUN, _ACT.BEGIN),
        _E.LATE: LeaseStep(SENT, _RETURN, _ACT.WITHDRAW),
        _E.KILLED: LeaseStep(SENT, _END, _ACT.CANCEL),
        _E.FORGOTTEN: LeaseStep(ENDED, _RUN, _ACT.RETURN),
    },
    (SENT, _RETURN): {
        _E.FINISHED: LeaseStep(ENDED, _RUN, _ACT.FINISH),
        _E.REFUSED: LeaseStep(ENDED, _RUN, _ACT.RETURN),
        _E.ABSENT: LeaseStep(ENDED, _RUN, _ACT.RETURN),
        _E.CLOSED: LeaseStep(ENDED, _RUN, _ACT.RETURN),
        _E.WAITING: LeaseStep(SENT, _RETURN, _ACT.WITHDRAW),
        _E.BEGUN: LeaseStep(RUNNING, _RUN, _ACT.BEGIN),
        _E.LATE: LeaseStep(SENT, _RETURN, _ACT.NOTHING),
        _E.KILLED: LeaseStep(SENT, _END, _ACT.CANCEL),
        _E.FORGOTTEN: LeaseStep(ENDED, _RUN, _ACT.RETURN),
    },
    (SENT, _END): {
        _E.FINISHED: LeaseStep(ENDED, _RUN, _ACT.FINISH),
        _E.REFUSED: LeaseStep(ENDED, _RUN, _ACT.DROP),
        _E.ABSENT: LeaseStep(ENDED, _RUN, _ACT.DROP),
        _E.CLOSED: LeaseStep(ENDED, _RUN, _ACT.DROP),
        _E.WAITING: LeaseStep(SENT, _END, _ACT.CANCEL),
        _E.BEGUN: LeaseStep(RUNNING, _END, _ACT.CANCEL),
        _E.LATE: LeaseStep(SENT, _END, _ACT.NOTHING),
        _E.KILLED: LeaseStep(SENT, _END, _ACT.CANCEL),
        _E.FORGOTTEN: LeaseStep(ENDED, _RUN, _ACT.DROP),
    },
    (RUNNING, _RUN): {
        **_BEGUN,
        _E.WAITING: LeaseStep(RUNNING, _RUN, _ACT.NOTHING),
        _E.BEGUN: LeaseStep(RUNNING, _RUN, _ACT.NOTHING),
    },
    (RUNNING, _END): {
        **_BEGUN,
        _E.LATE: LeaseStep(RUNNING, _END, _ACT.NOTHING),
        _E.WAITING: LeaseStep(RUNNING, _END, _ACT.CANCEL),
        _E.BEGUN: LeaseStep(RUNNING, _END, _ACT.CANCEL),
    },
    (ENDED, _RUN): _NOTHING_MORE,
}
"""Steps for each event, by state and wish.

A lease that is not wanted any more while nothing was sent is over at once, so other pairs do not occur.
"""


# ---- one lease

NAME_SEPARATOR = "/"


class SeenJob(NamedTuple):
    """Job of ours in the other instance: `what` is WAITING, BEGUN, FINISHED or REFUSED."""

    name: str
    id: int
    what: LeaseEvent
    status: int = 0
    """Wait status of the job if it is FINISHED."""
    exception: str = ""
    """The type of the exception that ended it, if one did."""
    note: str = ""
    """Why it ended, if not by itself."""
    usage: dict[str, Any] | None = None
    """Usage of the job's tasks, if measured."""
    nodelist: str = ""
    """The hosts there on which it runs, empty if unknown: as many as its targets here, perhaps others."""


@dataclass(slots=True)
class Lease:
    """Job of this instance that is to run in the cluster `cluster`, under `name` there."""

    jobid: int
    attempt: int
    cluster: str
    name: str
    jobspec: dict[str, Any]
    state: LeaseState = LeaseState.WANTED
    wish: Wish = Wish.RUN
    since_s: float = 0.0
    """Wall time at which the lease was granted: `return-after` counts from it."""
    urgency: int = 16
    id_there: int = 0
    """Id of the job in the other instance, 0 while that is unknown."""
    nodelist: str = ""
    """Hosts of the job in the other instance; empty if unknown."""
    is_asked: bool = False
    """True while a submit is under way on this connection."""
    signals: list[int] = field(default_factory=list)
    """Signals for a connection to come."""

    def row(self) -> tuple[int, int, str, str, bytes, str]:
        """Return the row that is stored when the lease is granted."""
        text = msgspec.json.encode(self.jobspec)
        return self.jobid, self.attempt, self.cluster, self.name, text, self.state.value


def lease_name(holder: str, jobid: int) -> str:
    """Return the name of a job's lease: each attempt is a job of its own, so no two leases have one name."""
    return f"{holder}{NAME_SEPARATOR}{format_f58(jobid, ascii=True)}"


def holder_of(name: str) -> str:
    """Return the holder of a lease by the lease's name; empty for a name of another form."""
    return name.rpartition(NAME_SEPARATOR)[0]


# ---- effects


class SubmitThere(NamedTuple):
    """Submit the lease, once by its name."""

    lease: Lease


class WithdrawThere(NamedTuple):
    """Cancel the job of this name unless it was begun, in one step there."""

    name: str
    id: int


class CancelThere(NamedTuple):
    """End this job, whatever it does; `id` is 0 where only the name is known."""

    name: str
    id: int
    note: str


class SignalThere(NamedTuple):
    """Signal the tasks of this job."""

    id: int
    signum: int


class SettleThere(NamedTuple):
    """The end of these names is stored here, or they are no leases of this state: they need not be remembered."""

    names: tuple[str, ...]


class LeaseSeen(NamedTuple):
    """Report of the job's id in the other instance, or of its hosts there."""

    jobid: int
    id_there: int
    nodelist: str


class LeaseBegan(NamedTuple):
    """Report that the job of a lease runs."""

    jobid: int


class LeaseFinished(NamedTuple):
    """Report that the job has ended as `seen`."""

    jobid: int
    seen: SeenJob


class LeaseFailed(NamedTuple):
    """Report that the job ends with an exception."""

    jobid: int
    note: str


class LeaseReturned(NamedTuple):
    """Report that the job is submitted anew in this instance, at no cost of attempts."""

    jobid: int
    note: str


class LeaseDropped(NamedTuple):
    """Report that the job, which is to end, has not run."""

    jobid: int


class SaveLease(NamedTuple):
    """Effect that stores the lease's state."""

    lease: Lease


LeaseEffect = (
    SubmitThere
    | WithdrawThere
    | CancelThere
    | SignalThere
    | SettleThere
    | LeaseSeen
    | LeaseBegan
    | LeaseFinished
    | LeaseFailed
    | LeaseReturned
    | LeaseDropped
    | SaveLease
)


# ---- the table of leases

_OVER_EVENTS = (LeaseEvent.FINISHED, LeaseEvent.REFUSED)


class LeaseTable:
    """The leases of one cluster by name. `return_after_s`: how long one may wait to be begun (seconds)."""

    def __init__(self, cluster: str, return_after_s: float) -> None:
        self.cluster = cluster
        self.return_after_s = return_after_s
        self.is_known = False
        """True once the other instance has sent its list of jobs on this connection."""
        self.leases: dict[str, Lease] = {}
        self._names: dict[int, str] = {}
        self._ending: dict[int, str] = {}
        """Names of leases that are over, by job, until that is on disk: a crash would have them back."""

    def __len__(self) -> int:
        return len(self.leases)

    def of_job(self, jobid: int) -> Lease | None:
        """Return the job's lease, if it has one in this table."""
        return self.leases.get(self._names.get(jobid, ""))

    def counts(self) -> dict[str, int]:
        """Return the number of leases in each state."""
        found = {state.value: 0 for state in LeaseState if state is not LeaseState.ENDED}
        for lease in self.leases.values():
            found[lease.state.value] += 1
        return found

    # -- what is asked here

    def want(self, lease: Lease) -> list[LeaseEffect]:
        """Return the effects of a new lease, or of one of before a restart, which may have been sent."""
        self.leases[lease.name] = lease
        self._names[lease.jobid] = lease.name
        return self._step(lease, LeaseEvent.ABSENT) if self.is_known else []

    def kill(self, jobid: int) -> list[LeaseEffect]:
        """Return the effects of ending the job."""
        lease = self.of_job(jobid)
        return [] if lease is None else self._step(lease, LeaseEvent.KILLED)

    def signal(self, jobid: int, signum: int) -> list[LeaseEffect]:
        """Signal the job's tasks: now, or when the other instance is heard again and they run."""
        lease = self.of_job(jobid)
        if lease is None or lease.wish is Wish.END:
            return []
        lease.signals.append(signum)
        return list(self._signals(lease))

    def forget(self) -> list[LeaseEffect]:
        """Return the effects of an operator's statement that nothing of the other instance is left."""
        return self._each(self.leases.values(), LeaseEvent.FORGOTTEN)

    def stored(self, jobid: int) -> list[LeaseEffect]:
        """Return the effects of the job's end being on disk: its name is not needed any more."""
        name = self._ending.pop(jobid, None)
        return [] if name is None else [SettleThere((name,))]

    # -- time

    @property
    def next_late_s(self) -> float | None:
        """Return the wall time at which `late` is to be called next."""
        waiting = [lease.since_s for lease in self.leases.values() if _may_be_late(lease)]
        return min(waiting) + self.return_after_s if waiting else None

    def expire(self, now_s: float) -> list[LeaseEffect]:
        """Return the effects for leases that have not begun within `return-after` by `now_s`."""
        late_s = now_s - self.return_after_s
        due = [lease for lease in self.leases.values() if _may_be_late(lease) and lease.since_s <= late_s]
        return self._each(due, LeaseEvent.LATE)

    # -- what is heard

    def listed(self, jobs: Iterable[SeenJob]) -> list[LeaseEffect]:
        """Return the effects of the complete list of our jobs in the other instance."""
        self.is_known = True
        found: dict[str, SeenJob] = {}
        out: list[LeaseEffect] = []
        for seen in jobs:
            known = found.get(seen.name)
            if known is None or _comes_before(seen, known):
                found[seen.name], seen = seen, known if known is not None else seen
            if known is not None:
                out += _cancel(seen, "a second copy of a lease")
        for lease in list(self.leases.values()):
            here = found.pop(lease.name, None)
            if here is None:
                out += self._step(lease, LeaseEvent.ABSENT)
            else:
                out += self._found(lease, here)
        for stray in found.values():
            out += self._stray(stray)
        return out

    def seen(self, seen: SeenJob) -> list[LeaseEffect]:
        """Return the effects of a change of a job of ours there."""
        lease = self.leases.get(seen.name)
        if lease is None:
            return self._stray(seen)
        if lease.id_there not in (0, seen.id):
            return _cancel(seen, "a second copy of a lease")
        return self._found(lease, seen)

    def refused(self, name: str, note: str) -> list[LeaseEffect]:
        """Return the effects of a final refusal by the other instance."""
        lease = self.leases.get(name)
        if lease is None:
            return []
        return self._step(lease, LeaseEvent.REFUSED, SeenJob(name, 0, LeaseEvent.REFUSED, note=note))

    def absent(self, name: str) -> list[LeaseEffect]:
        """Return the effects of the other instance having no job of this name, and none under way."""
        lease = self.leases.get(name)
        if lease is None:
            return []
        lease.is_asked = False
        return self._step(lease, LeaseEvent.ABSENT)

    def closed(self, name: str, note: str) -> list[LeaseEffect]:
        """Likewise, and it takes none at present."""
        lease = self.leases.get(name)
        if lease is None:
            return []
        return self._step(lease, LeaseEvent.CLOSED, SeenJob(name, 0, LeaseEvent.CLOSED, note=note))

    def lost(self) -> None:
        """Note the loss of the connection: requests under way may arrive or not."""
        self.is_known = False
        for lease in self.leases.values():
            lease.is_asked = False

    # -- within

    def _each(self, leases: Iterable[Lease], event: LeaseEvent) -> list[LeaseEffect]:
        return [one for lease in list(leases) for one in self._step(lease, event)]

    def _found(self, lease: Lease, seen: SeenJob) -> list[LeaseEffect]:
        out: list[LeaseEffect] = []
        lease.is_asked = False
        nodelist = seen.nodelist or lease.nodelist
        if (lease.id_there, lease.nodelist) != (seen.id, nodelist):
            lease.id_there, lease.nodelist = seen.id, nodelist
            out.append(LeaseSeen(lease.jobid, seen.id, nodelist))
        out += self._step(lease, seen.what, seen)
        return out + list(self._signals(lease))

    def _signals(self, lease: Lease) -> Iterator[LeaseEffect]:
        if self.is_known and lease.state is LeaseState.RUNNING:
            signals, lease.signals = lease.signals, []
            for signum in signals:
                yield SignalThere(lease.id_there, signum)

    def _stray(self, seen: SeenJob) -> list[LeaseEffect]:
        """Return the effects for a job there without a lease in this table: the lease was abandoned, or this state is
        older than it.
        """
        cancelled = _cancel(seen, "its lease is no longer held")
        return cancelled if seen.name in self._ending.values() else [*cancelled, SettleThere((seen.name,))]

    def _step(self, lease: Lease, event: LeaseEvent, seen: SeenJob | None = None) -> list[LeaseEffect]:
        before = lease.state
        if event is LeaseEvent.ABSENT:
            lease.id_there = 0  # one that had an id is gone with the state of the other instance
        lease.state, lease.wish, action = STEPS[before, lease.wish][event]
        out: list[LeaseEffect] = []
        if lease.state is LeaseState.ENDED:
            del self.leases[lease.name]
            self._ending[lease.jobid] = self._names.pop(lease.jobid)
        elif lease.state is not before:
            out.append(SaveLease(lease))
        return out + list(self._performed(lease, action, event, seen))

    def _performed(
        self, lease: Lease, action: LeaseAction, event: LeaseEvent, seen: SeenJob | None
    ) -> Iterator[LeaseEffect]:
        jobid, name = lease.jobid, lease.name
        match action:
            case LeaseAction.SUBMIT if not lease.is_asked:
                lease.is_asked = True
                yield SubmitThere(lease)
            case LeaseAction.BEGIN:
                yield LeaseBegan(jobid)
            case LeaseAction.FINISH if seen is not None:
                yield LeaseFinished(jobid, seen)
            case LeaseAction.FAIL:
                why = seen.note if seen is not None and seen.note else "it was ended before it started"
                yield LeaseFailed(jobid, f"cluster {self.cluster}: {why}")
            case LeaseAction.LOSE:
                text = f"cluster {self.cluster} no longer knows the job, which had started there: its end is unknown"
                yield LeaseFailed(jobid, text)
            case LeaseAction.RETURN:
                yield LeaseReturned(jobid, self._why_returned(event, seen))
            case LeaseAction.DROP:
                yield LeaseDropped(jobid)
            case LeaseAction.WITHDRAW if self.is_known:
                yield WithdrawThere(name, lease.id_there)
            case LeaseAction.CANCEL if self.is_known:
                yield CancelThere(name, lease.id_there, "its job was ended")

    def _why_returned(self, event: LeaseEvent, seen: SeenJob | None) -> str:
        if event is LeaseEvent.FORGOTTEN:
            return f"not started in cluster {self.cluster}, which was forgotten"
        if event is LeaseEvent.CLOSED and seen is not None:
            return f"cluster {self.cluster} takes no jobs at present: {seen.note}"
        return f"not started in cluster {self.cluster} within {self.return_after_s:g} s"


def _may_be_late(lease: Lease) -> bool:
    return lease.wish is Wish.RUN and lease.state in (LeaseState.WANTED, LeaseState.SENT)


def _comes_before(one: SeenJob, other: SeenJob) -> bool:
    """Return whether `one` is kept of two jobs of one name: one that has run before one that has not, the first before
    the second.
    """
    return (one.what is LeaseEvent.WAITING, one.id) < (other.what is LeaseEvent.WAITING, other.id)


def _cancel(seen: SeenJob, note: str) -> list[LeaseEffect]:
    return [] if seen.what in _OVER_EVENTS else [CancelThere(seen.name, seen.id, note)]


# ---- jobspec

HOST_SEPARATOR: Final = ":"
"""Separator between the name of a cluster and that of a host of it."""

_OURS: Final = ("queue", "bank", "dependencies", "array", "preemptible-after")
"""Keys of `attributes.system` that are settled in this instance, or have another meaning there."""
_OURS_OF_OWN: Final = ("requeue", "retry-on", "retry-pause", "elastic", "notify")
"""Keys of `attributes.system.fluxsched` that are not sent to another instance."""


def mirrored_host(cluster: str, host: str) -> str:
    """Return the name of a cluster's host in this instance: hosts of two clusters may have one name."""
    return f"{cluster}{HOST_SEPARATOR}{host}"


def is_mirrored(host: str) -> bool:
    """Return whether a host is one of a cluster."""
    return HOST_SEPARATOR in host


def size_is_settled(jobid: int) -> Refused:
    """Why a job that runs in another instance does not change its size."""
    text = f"job {format_f58(jobid)} runs in another instance: its size was settled when it was sent"
    return Refused(text, errno.EOPNOTSUPP)


def jobspec_for(
    jobspec: Jobspec, jobid: int, cluster: str, queue: str | None, duration_s: float, granted: ResourceSet
) -> dict[str, Any]:
    """Return the jobspec of a job that was `granted` targets of a cluster; `queue` is one there.

    Raises InvalidValue for a constraint that names ranks, which are others there.
    """
    raw = with_path(jobspec.raw, "attributes.system.duration", duration_s)
    system = {key: value for key, value in raw["attributes"]["system"].items() if key not in _OURS}
    if queue is not None:
        system["queue"] = queue
    own = {key: value for key, value in (system.pop("fluxsched", None) or {}).items() if key not in _OURS_OF_OWN}
    if own:
        system["fluxsched"] = own
    job = {key: value for key, value in (system.pop("job", None) or {}).items() if key == "name"}
    if job:
        system["job"] = job
    constraint = _constraint(system.pop("constraints", None) or {}, cluster)
    if constraint:
        system["constraints"] = constraint
    sent: dict[str, Any] = {**raw, "attributes": {**raw["attributes"], "system": system}}
    sent["resources"] = [_settled(vertex, granted, cluster) for vertex in raw["resources"]]
    return _with_paths(sent, jobspec, jobid)


def _settled(vertex: Mapping[str, Any], granted: ResourceSet, cluster: str) -> dict[str, Any]:
    """Return a top-level vertex with its count as granted, and with the constraint of its part alone."""
    found = dict(vertex)
    if own := _constraint(found.pop(OWN_CONSTRAINT, None) or {}, cluster):
        found[OWN_CONSTRAINT] = own
    count = vertex.get("count")
    if isinstance(count, int) or vertex["type"] not in ("node", "slot"):
        return found
    if vertex["type"] == "node":
        label = next((str(below.get("label")) for below in vertex["with"] if below["type"] == "slot"), "")
        return found | {"count": len(granted.parts.get(label, granted.ranks))}
    cores = next((leaf["count"] for leaf in vertex["with"] if leaf["type"] == "core"), 1)
    return found | {"count": max(1, granted.count("core") // max(1, int(cores)))}


def _constraint(constraint: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """Return the constraint with the cluster's own host names, and without membership of queues of this instance; empty
    if nothing is left.
    """
    found: dict[str, Any] = {}
    for operator, values in constraint.items():
        if operator == "ranks":
            raise InvalidValue(f"the constraint names ranks, which differ in cluster {cluster}: name hosts")
        if operator == "hostlist":
            found[operator] = [value.replace(f"{cluster}{HOST_SEPARATOR}", "") for value in values]
        elif operator == "properties":
            if kept := [value for value in values if not value.startswith(LOCAL_PREFIX)]:
                found[operator] = kept
        elif kept := [inner for value in values if (inner := _constraint(value, cluster))]:
            found[operator] = kept
    return found


def _with_paths(sent: dict[str, Any], jobspec: Jobspec, jobid: int) -> dict[str, Any]:
    """Return the jobspec with the job's id here in the names of its files: its id there is another."""
    for stream, template in (("stdout", jobspec.output), ("stderr", jobspec.error)):
        if template is not None and "{{" in template:
            filled = fill(template, lambda tag: id_tag(tag, jobid))
            sent = with_path(sent, f"attributes.system.shell.options.output.{stream}.path", filled)
    return sent


# ---- mirror


class Mirror:
    """The other instance's targets, in its own ranks; `has_parts`: it knows jobs of several parts."""

    def __init__(self, cluster: str, *, has_parts: bool) -> None:
        self._cluster = cluster
        self._has_parts = has_parts
        self._whole = EMPTY_R
        self._states: dict[str, Idset] = {}
        self._groups: dict[str, Idset] = {}
        self._offered = EMPTY_R
        self._offered_of: tuple[ResourceSet, Idset] = EMPTY_R, EMPTY
        """Offered targets, with the inputs from which they were computed: states change often, the targets rarely."""
        self.wanted_groups: tuple[str, ...] | None = None
        """The groups there that our jobs can have; None: all."""

    def change(
        self,
        R: Mapping[str, Any] | None,  # noqa: N803
        states: Mapping[str, str] | None,
        groups: Mapping[str, str] | None,
    ) -> None:
        """Apply changes of R, of targets by their state, and of groups. Raises InvalidValue for invalid ones."""
        if R is not None:
            self._whole = ResourceSet.parse(R)
            self._states = {name: ranks & self._whole.ranks for name, ranks in self._states.items()}
        if states is not None:
            changed = {name: Idset.parse(text) for name, text in states.items()}
            for ranks in changed.values():
                self._states = {name: known - ranks for name, known in self._states.items()}
            for name, ranks in changed.items():
                self._states[name] = self._states.get(name, EMPTY) | ranks
        if groups is not None:
            self._groups = {name: Idset.parse(text) for name, text in groups.items()}

    @property
    def resources(self) -> ResourceSet:
        """Return the offered targets, with their names in this instance; the same value while it is equal."""
        whole, away = self._whole, self._state("lost") | self._state("excluded") | self._state("spare")
        ranks = whole.ranks - away
        if self.wanted_groups is not None:
            wanted = EMPTY
            for name in self.wanted_groups:
                wanted |= self._groups.get(name, EMPTY)
            ranks &= wanted
        known, of = self._offered_of
        if known is not whole or of != ranks:
            self._offered_of, self._offered = (whole, ranks), self._renamed(whole, ranks)
        return self._offered

    def _renamed(self, whole: ResourceSet, ranks: Idset) -> ResourceSet:
        foreign = Idset.of([rank for rank in ranks if is_mirrored(whole.host(rank))])
        found, cluster = whole.restrict(ranks - foreign).job_view(), self._cluster
        hosts = Hostlist.of([mirrored_host(cluster, host) for host in found.nodelist])
        topology = mirrored_topology(cluster, found.topology)
        properties = found.properties if self._has_parts else {**found.properties, ONE_PART: found.ranks}
        return ResourceSet(found.entries, hosts, properties, topology=topology)

    @property
    def usable(self) -> Idset:
        """Return the targets on which jobs may run."""
        return self._state("free") | self._state("allocated")

    @property
    def in_use(self) -> Idset:
        """Return the targets on which a job runs, ours or another's."""
        return self._state("allocated")

    def _state(self, name: str) -> Idset:
        return self._states.get(name, EMPTY)


def mirrored_topology(cluster: str, topology: Topology) -> Topology:
    """Return a cluster's switches with their names in this instance."""
    if not topology:
        return EMPTY_TOPOLOGY
    return Topology(
        [
            Switch(
                mirrored_host(cluster, switch.name),
                Hostlist(tuple([mirrored_host(cluster, host) for host in switch.hosts.hosts])),
                tuple([mirrored_host(cluster, below) for below in switch.switches]),
            )
            for switch in topology.switches.values()
        ]
    )


def taken_by_others(in_use: Idset, held: Idset) -> Idset:
    """Return the targets that count as taken by jobs of others, of those `in_use` there, where jobs of this instance
    hold `held`.
    """
    more = max(0, len(in_use) - len(held))
    return Idset.of(list(in_use - held)[:more]) if more else EMPTY
