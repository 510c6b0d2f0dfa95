"""One lease, and a job of the other instance as it was seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from fluxsched.core.jobid import format_f58
from fluxsched.leases.states import LeaseEvent, LeaseState, Wish

NAME_SEPARATOR = "/"


class SeenJob(NamedTuple):
    """A job of ours in the other instance: `what` is WAITING, BEGUN, FINISHED or REFUSED."""

    name: str
    id: int
    what: LeaseEvent
    status: int = 0
    """Its wait status if it is FINISHED."""
    exception: str = ""
    """The type of the exception that ended it, if one did."""
    note: str = ""
    """Why it ended, if not by itself."""
    usage: dict[str, Any] | None = None
    """What its tasks used, if that was measured."""
    nodelist: str = ""
    """The hosts there on which it runs, empty if unknown: as many as its targets here, perhaps others."""


@dataclass(slots=True)
class Lease:
    """A job of this instance that is to run in the cluster `cluster`, under `name` there."""

    jobid: int
    attempt: int
    cluster: str
    name: str
    jobspec: dict[str, Any]
    state: LeaseState = LeaseState.WANTED
    wish: Wish = Wish.RUN
    since_s: float = 0.0
    """When it was granted (wall time): from then on `return-after` counts."""
    urgency: int = 16
    id_there: int = 0
    """Its id in the other instance, 0 while that is unknown."""
    nodelist: str = ""
    """Its hosts there; empty if unknown."""
    is_asked: bool = False
    """Whether a submit is under way on this connection."""
    signals: list[int] = field(default_factory=list)
    """Signals for a connection to come."""

    def row(self) -> tuple[int, int, str, str, bytes, str]:
        """What is stored of it when it is granted."""
        text = msgspec.json.encode(self.jobspec)
        return self.jobid, self.attempt, self.cluster, self.name, text, self.state.value


def lease_name(holder: str, jobid: int) -> str:
    """The name of a job's lease: each attempt is a job of its own, so no two leases have one name."""
    return f"{holder}{NAME_SEPARATOR}{format_f58(jobid, ascii=True)}"


def holder_of(name: str) -> str:
    """Whose lease it is by its name; empty for what is none."""
    return name.rpartition(NAME_SEPARATOR)[0]
