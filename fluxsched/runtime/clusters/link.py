"""What a link to another instance does, whichever it is, and what it tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from fluxsched.leases.lease import Lease, SeenJob

TakeOutput = Callable[[str, bytes, int], None]
"""Takes a piece of output: its stream, the data, the task."""


class LinkEvents(Protocol):
    """What a link tells, in turns."""

    def listed(self, jobs: Sequence[SeenJob]) -> None:
        """These are all jobs of ours that there are."""
        ...

    def changed(self, jobs: Sequence[SeenJob]) -> None:
        """These have changed."""
        ...

    def refused(self, name: str, note: str, *, passes: bool) -> None:
        """A job is not taken; `passes`: at present."""
        ...

    def closed(self, why: str) -> None:
        """Why it accepts or starts no jobs of ours at present; empty if it does."""
        ...

    def displaced(self) -> None:
        """Another instance holds our leases there."""
        ...

    def turned_away(self, name: str, note: str) -> None:
        """A job is refused since none is accepted at present."""
        ...

    def absent(self, name: str) -> None:
        """There is no job of this name, and none under way."""
        ...

    def machine(
        self,
        R: Mapping[str, Any] | None,  # noqa: N803 - RFC 20's name
        states: Mapping[str, str] | None,
        groups: Mapping[str, str] | None,
    ) -> None:
        """What is new of its targets."""
        ...

    def reaches(self, groups: tuple[str, ...] | None) -> None:
        """Jobs of ours can have targets of these groups there (None: of all)."""
        ...


class ClusterLink(Protocol):
    """Speaks with one instance over one connection. What it asks for and gets no answer to, it tells nothing of."""

    def begin(self) -> None:
        """Ask which jobs and targets there are, and follow them."""
        ...

    def submit(self, lease: Lease) -> None:
        """Submit the lease, once by its name."""
        ...

    def withdraw(self, name: str, jobid: int) -> None:
        """Cancel a job unless it was begun."""
        ...

    def cancel(self, name: str, jobid: int, note: str) -> None:
        """End a job."""
        ...

    def signal(self, jobid: int, signum: int) -> None:
        """Signal the tasks of a job."""
        ...

    def limit(self, jobid: int, duration_s: float) -> None:
        """Give a job another time limit, counted from its start."""
        ...

    def settle(self, names: Sequence[str]) -> None:
        """These names need not be remembered."""
        ...

    def output(self, jobid: int, take: TakeOutput, ended: Callable[[str | None], None]) -> None:
        """Follow what the tasks of a job print; `ended` is called once all was taken, or with why there is no more."""
        ...


def why_closed(
    title: str, is_enabled: bool, why_disabled: str | None, is_started: bool, why_stopped: str | None
) -> str:
    """Why a queue accepts no jobs, or starts none; empty if it does both."""
    if not is_enabled:
        return f"{title} accepts none: {why_disabled or 'it is disabled'}"
    return "" if is_started else f"{title} is stopped: {why_stopped or 'no reason is given'}"
