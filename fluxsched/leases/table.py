"""The leases of one cluster, compared with what the other instance says of them.

Law: nothing is decided about a lease before the other instance has said on this connection which jobs of ours it has
(`listed`), but what `states.STEPS` allows while it is silent. A name has one job there: a second one, and one whose
lease is not here, is cancelled.

Every method returns the effects, for the shell to perform in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fluxsched.leases import effects as effect
from fluxsched.leases.effects import LeaseEffect
from fluxsched.leases.lease import Lease, SeenJob
from fluxsched.leases.states import STEPS, LeaseAction, LeaseEvent, LeaseState, Wish

_OVER = (LeaseEvent.FINISHED, LeaseEvent.REFUSED)


class LeaseTable:
    """The leases of one cluster by name. `return_after_s`: how long one may wait to be begun (seconds)."""

    def __init__(self, cluster: str, return_after_s: float) -> None:
        self.cluster = cluster
        self.return_after_s = return_after_s
        self.is_known = False
        """Whether the other instance has said on this connection which jobs it has."""
        self.leases: dict[str, Lease] = {}
        self._names: dict[int, str] = {}
        self._ending: dict[int, str] = {}
        """Names of leases that are over, by job, until that is on disk: a crash would have them back."""

    def __len__(self) -> int:
        return len(self.leases)

    def of_job(self, jobid: int) -> Lease | None:
        """The job's lease, if it has one here."""
        return self.leases.get(self._names.get(jobid, ""))

    def counts(self) -> dict[str, int]:
        """How many leases there are in each state."""
        found = {state.value: 0 for state in LeaseState if state is not LeaseState.ENDED}
        for lease in self.leases.values():
            found[lease.state.value] += 1
        return found

    # -- what is asked here

    def want(self, lease: Lease) -> list[LeaseEffect]:
        """A new lease, or one of before a restart: then it may have been sent."""
        self.leases[lease.name] = lease
        self._names[lease.jobid] = lease.name
        return self._step(lease, LeaseEvent.ABSENT) if self.is_known else []

    def kill(self, jobid: int) -> list[LeaseEffect]:
        """The job is to end."""
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
        """An operator says that nothing of the other instance is left."""
        return self._each(self.leases.values(), LeaseEvent.FORGOTTEN)

    def stored(self, jobid: int) -> list[LeaseEffect]:
        """The end of the job is on disk: its name is not needed any more."""
        name = self._ending.pop(jobid, None)
        return [] if name is None else [effect.SettleThere((name,))]

    # -- time

    @property
    def next_late_s(self) -> float | None:
        """When `late` is to be called next (wall time)."""
        waiting = [lease.since_s for lease in self.leases.values() if _may_be_late(lease)]
        return min(waiting) + self.return_after_s if waiting else None

    def late(self, now_s: float) -> list[LeaseEffect]:
        """So late is it now."""
        late_s = now_s - self.return_after_s
        due = [lease for lease in self.leases.values() if _may_be_late(lease) and lease.since_s <= late_s]
        return self._each(due, LeaseEvent.LATE)

    # -- what is heard

    def listed(self, jobs: Iterable[SeenJob]) -> list[LeaseEffect]:
        """The other instance has these jobs of ours, and no others."""
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
        """A job of ours there has changed."""
        lease = self.leases.get(seen.name)
        if lease is None:
            return self._stray(seen)
        if lease.id_there not in (0, seen.id):
            return _cancel(seen, "a second copy of a lease")
        return self._found(lease, seen)

    def refused(self, name: str, note: str) -> list[LeaseEffect]:
        """The other instance does not take the job, and will not."""
        lease = self.leases.get(name)
        if lease is None:
            return []
        return self._step(lease, LeaseEvent.REFUSED, SeenJob(name, 0, LeaseEvent.REFUSED, note=note))

    def absent(self, name: str) -> list[LeaseEffect]:
        """The other instance has no job of this name, and none is under way."""
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
        """The connection is lost: what is under way may arrive or not."""
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
            out.append(effect.LeaseSeen(lease.jobid, seen.id, nodelist))
        out += self._step(lease, seen.what, seen)
        return out + list(self._signals(lease))

    def _signals(self, lease: Lease) -> Iterator[LeaseEffect]:
        if self.is_known and lease.state is LeaseState.RUNNING:
            signals, lease.signals = lease.signals, []
            for signum in signals:
                yield effect.SignalThere(lease.id_there, signum)

    def _stray(self, seen: SeenJob) -> list[LeaseEffect]:
        """A job there whose lease is not here: it was given up, or this state is older than that."""
        cancelled = _cancel(seen, "its lease is no longer held")
        return cancelled if seen.name in self._ending.values() else [*cancelled, effect.SettleThere((seen.name,))]

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
            out.append(effect.SaveLease(lease))
        return out + list(self._performed(lease, action, event, seen))

    def _performed(
        self, lease: Lease, action: LeaseAction, event: LeaseEvent, seen: SeenJob | None
    ) -> Iterator[LeaseEffect]:
        jobid, name = lease.jobid, lease.name
        match action:
            case LeaseAction.SUBMIT if not lease.is_asked:
                lease.is_asked = True
                yield effect.SubmitThere(lease)
            case LeaseAction.BEGIN:
                yield effect.LeaseBegan(jobid)
            case LeaseAction.FINISH if seen is not None:
                yield effect.LeaseFinished(jobid, seen)
            case LeaseAction.FAIL:
                why = seen.note if seen is not None and seen.note else "it was ended before it was begun"
                yield effect.LeaseFailed(jobid, f"cluster {self.cluster}: {why}")
            case LeaseAction.LOSE:
                text = f"cluster {self.cluster} no longer knows the job, which was begun there: how it ended is unknown"
                yield effect.LeaseFailed(jobid, text)
            case LeaseAction.RETURN:
                yield effect.LeaseReturned(jobid, self._why_returned(event, seen))
            case LeaseAction.DROP:
                yield effect.LeaseDropped(jobid)
            case LeaseAction.WITHDRAW if self.is_known:
                yield effect.WithdrawThere(name, lease.id_there)
            case LeaseAction.CANCEL if self.is_known:
                yield effect.CancelThere(name, lease.id_there, "its job was ended")

    def _why_returned(self, event: LeaseEvent, seen: SeenJob | None) -> str:
        if event is LeaseEvent.FORGOTTEN:
            return f"not begun in cluster {self.cluster}, which was forgotten"
        if event is LeaseEvent.CLOSED and seen is not None:
            return f"cluster {self.cluster} takes no jobs at present: {seen.note}"
        return f"not begun in cluster {self.cluster} within {self.return_after_s:g} s"


def _may_be_late(lease: Lease) -> bool:
    return lease.wish is Wish.RUN and lease.state in (LeaseState.WANTED, LeaseState.SENT)


def _comes_before(one: SeenJob, other: SeenJob) -> bool:
    """Of two jobs of one name the one that is kept: what has run before what has not, the first before the second."""
    return (one.what is LeaseEvent.WAITING, one.id) < (other.what is LeaseEvent.WAITING, other.id)


def _cancel(seen: SeenJob, note: str) -> list[LeaseEffect]:
    return [] if seen.what in _OVER else [effect.CancelThere(seen.name, seen.id, note)]
