"""Limits of a site on users, banks and queues: whom each is about, and how much they may have at once.

Law: a limit counts the jobs of one holder. Its holder is the user, bank and queue that it names together; `*` makes a
holder of each user, bank or queue. The job manager refuses submits by `waiting`, and jobs that are too large or too
long in themselves; schedulers hold back starts by the other bounds, under every policy.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fluxsched.core.jobfields import DEFAULT_BANK
from fluxsched.core.quantities import format_duration
from fluxsched.core.request import Request

EACH: Final = "*"
"""Stands for each user, bank or queue by itself."""

LIMITS_MAX = 256
"""Limits of a site: each is looked at whenever a job is submitted or may start."""

Holder = tuple[str, ...]
"""Values of what a limit names, by which its jobs are counted together."""


class SiteLimit(NamedTuple):
    """One limit. A user is a user id or EACH, and what is None is not looked at; a bound that is None is none.

    `running`, `nodes`, `cores` and `gpus` count what the holder's jobs have at once, `waiting` those that wait;
    `minutes` is the longest time limit of one. `user_name` is the user for people.
    """

    user: int | str | None = None
    bank: str | None = None
    queue: str | None = None
    running: int | None = None
    waiting: int | None = None
    nodes: int | None = None
    cores: int | None = None
    gpus: int | None = None
    minutes: float | None = None
    user_name: str = ""

    @property
    def title(self) -> str:
        """Return whom the limit is about: `each user in bank physics`."""
        names = (("user", self.user_name or None), ("bank", self.bank), ("queue", self.queue))
        said = [f"each {kind}" if name == EACH else f"{kind} {name}" for kind, name in names if name is not None]
        return f"limit of {' in '.join(said)}"

    def holder(self, userid: int, bank: str | None, queue: str | None) -> Holder | None:
        """Return the holder with whose jobs such a job counts; None if the limit is not about it."""
        found: list[str] = []
        if self.user is not None:
            if self.user != EACH and self.user != userid:
                return None
            found.append(str(userid))
        for wanted, own in ((self.bank, bank or DEFAULT_BANK), (self.queue, queue)):
            if wanted is not None:
                if own is None or wanted not in (EACH, own):
                    return None
                found.append(own)
        return tuple(found)

    @property
    def sizes(self) -> tuple[tuple[str, int | None], ...]:
        """Return the bounds of what running jobs have, by the words for it."""
        return (("running jobs", self.running), ("nodes", self.nodes), ("cores", self.cores), ("gpus", self.gpus))

    def exceeded(self, held: tuple[int, ...], more: tuple[int, ...]) -> str | None:
        """Return the bound that amounts in the order of `sizes` exceed together, in words; None if there is none."""
        for (what, most), has, asked in zip(self.sizes, held, more, strict=True):
            if most is not None and has + asked > most:
                return f"{self.title}: {has} + {asked} {what} exceed {most}"
        return None

    def too_long(self, duration_s: float) -> str | None:
        """Return the fault of a time limit (seconds, 0: none) above `minutes`, in words; None if there is none."""
        if self.minutes is None or 0 < duration_s <= self.minutes * 60:
            return None
        asked = format_duration(duration_s) if duration_s else "infinity (none was asked for)"
        most = format_duration(self.minutes * 60)
        return f"duration {asked}, {self.title} {most}: ask for at most {most}"


def least_amounts(request: Request) -> tuple[int, ...]:
    """Return the least that a job has of each of `SiteLimit.sizes`."""
    return (1, request.least_nodes, request.least_cores, request.least_gpus)


NOTHING: Final = (0, 0, 0, 0)
"""Amounts of a holder without running jobs."""
