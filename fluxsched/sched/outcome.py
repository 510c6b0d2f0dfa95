"""What placing a request can come to: a closed set of three (law 9). Exceptions are for bugs.

`Fits` can be granted now, `Insufficient` may fit after a free or when targets come back, `Infeasible` never fits on
what the group owns, whatever the weather (law 10). The last two say why, in words for the person who waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fluxsched.core.jobspec import Request


class Part(NamedTuple):
    """What a job gets of one target: core and GPU ids as bit masks."""

    rank: int
    cores: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Fits:
    """A placement for `request`: one part a rank, `nslots` slots in all."""

    request: Request
    parts: tuple[Part, ...]
    nslots: int


@dataclass(frozen=True, slots=True)
class Insufficient:
    """Not now: too much is busy or down."""

    why: str


@dataclass(frozen=True, slots=True)
class Infeasible:
    """Never, on what the group owns."""

    why: str


Outcome = Fits | Insufficient | Infeasible
