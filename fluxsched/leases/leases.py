"""Leases of one cluster, compared with what the other instance says of them, and what each event means to one.

Law: the table `STEPS` is the only place that decides whether something is sent to the other instance, and whether the
job here ends, continues or is returned; a test walks it over all states, wishes and events. A lease is given up only
where it is certain that nothing of it runs or will run in the other instance: it was never sent, the other instance
says so, or an operator vouches for it (`FORGOTTEN`). Nothing is decided about a lease before the other instance has
said on this connection which jobs of ours it has (`listed`), but what `STEPS` allows while it is silent. A name has one
job there: a second one, and one whose lease is not here, is cancelled. Every method returns effects, plain values that
the shell performs in the order of the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

import msgspec

from fluxsched.core.jobid import format_f58


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
    """Event of a lease."""

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
