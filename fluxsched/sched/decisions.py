"""What a policy may yield: a closed set.

Law: the engine makes each decision real, or refuses it, before it asks for the next (law 2).
"""

from __future__ import annotations

from dataclasses import dataclass

from fluxsched.sched.outcome import Fits


@dataclass(frozen=True, slots=True)
class Start:
    """Grant `fit` to a waiting job, now. Refused if the job no longer waits or the fit no longer holds."""

    jobid: int
    fit: Fits


@dataclass(frozen=True, slots=True)
class Pending:
    """The job waits on; `reason` is for its owner."""

    jobid: int
    reason: str


@dataclass(frozen=True, slots=True)
class Deny:
    """The job can never run here; `note` says why."""

    jobid: int
    note: str


Decision = Start | Pending | Deny
