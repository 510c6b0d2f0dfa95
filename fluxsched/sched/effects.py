"""What the scheduler asks its shell to do: values, so that a test compares lists.

The answers to `sched.alloc` are RFC 27's four (success, annotate, deny, cancel); `Release` and `Raise` are what the
RFC 28 draft asks of a scheduler whose targets are shrunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fluxsched.core.idset import Idset


@dataclass(frozen=True, slots=True)
class Granted:
    """Answer success (RFC 27): `R` is the RFC 20 object of what the job now holds."""

    jobid: int
    R: dict[str, Any]
    annotations: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Annotated:
    """Answer annotate (RFC 27): sent only when something changed."""

    jobid: int
    annotations: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Denied:
    """Answer deny (RFC 27): the request can never be granted; the job is off the queue."""

    jobid: int
    note: str


@dataclass(frozen=True, slots=True)
class Canceled:
    """Answer cancel (RFC 27): the job is off the queue and got nothing."""

    jobid: int


@dataclass(frozen=True, slots=True)
class Release:
    """Give shrunk targets that no job of ours holds any more back: `resource.release` (RFC 28 draft)."""

    group: str
    targets: Idset


@dataclass(frozen=True, slots=True)
class Raise:
    """Raise a fatal exception on a job that holds a part of shrunk targets: `job-manager.raise`, severity 0."""

    jobid: int
    note: str


Effect = Granted | Annotated | Denied | Canceled | Release | Raise
