"""What is to be done about leases: plain values that the shell performs in the order of the list."""

from __future__ import annotations

from typing import NamedTuple

from fluxsched.leases.lease import Lease, SeenJob


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
    """The job's id in the other instance is known now, or its hosts there are."""

    jobid: int
    id_there: int
    nodelist: str


class LeaseBegan(NamedTuple):
    """The job runs."""

    jobid: int


class LeaseFinished(NamedTuple):
    """The job has ended as `seen`."""

    jobid: int
    seen: SeenJob


class LeaseFailed(NamedTuple):
    """The job ends with an exception."""

    jobid: int
    note: str


class LeaseReturned(NamedTuple):
    """The job is submitted anew here, at no cost of attempts."""

    jobid: int
    note: str


class LeaseDropped(NamedTuple):
    """The job, which is to end, has not run."""

    jobid: int


class SaveLease(NamedTuple):
    """Store the lease's state."""

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
