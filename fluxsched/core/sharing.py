"""Attributes by which a job shares the machine: its bank, when it may be preempted, its job set.

Read of `attributes.system`: `bank` and `preemptible-after` (RFC 14), `job.set` and `fluxsched.requeue` (ours).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fluxsched.core import jobfields
from fluxsched.core.jsontext import shown
from fluxsched.errors import InvalidValue, LimitExceeded

DEFAULT_BANK: Final = "default"
"""The bank of jobs that name none."""

NAME_CHARS_MAX = 255
"""Of a bank or a job set: both are shown in tables and kept for each account."""

REQUEUE_MAX = 100
"""Maximum number of times that a job may ask to be submitted again after preemption."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """`preemptible_after_s`: the run time (seconds) after which a job may be preempted, None for never.

    `requeue`: how often it is then submitted again. `bank` is None where the jobspec names none.
    """

    bank: str | None = None
    preemptible_after_s: float | None = None
    requeue: int = 0
    job_set: str | None = None


USUAL: Final = Sharing()
"""Sharing of a job without such attributes."""


def parse_sharing(system: Mapping[str, Any]) -> Sharing:
    """Raises InvalidValue naming the path of the part that is wrong, LimitExceeded above a named limit."""
    bank = check_name(jobfields.text(system, "bank"), "attributes.system.bank")
    job_set = check_name(jobfields.text(jobfields.inner(system, "job"), "set", "job."), "attributes.system.job.set")
    after = system.get("preemptible-after")
    after_s = None if after is None else jobfields.seconds(after, "preemptible-after", "0 means at once")
    requeue = _requeue(jobfields.inner(system, "fluxsched").get("requeue"))
    if bank is None and after_s is None and not requeue and job_set is None:
        return USUAL
    return Sharing(bank, after_s, requeue, job_set)


def sharing_given(system: Mapping[str, Any]) -> Sharing:
    """Return what is said of sharing as it should be; `requeue` counts where jobs are submitted again, not here."""
    bank, job_set = (_name_or_none(jobfields.name_given(system, *keys)) for keys in (("bank",), ("job", "set")))
    try:
        after = system.get("preemptible-after")
        after_s = None if after is None else jobfields.seconds(after, "preemptible-after")
    except InvalidValue:
        after_s = None
    return USUAL if bank is None and after_s is None and job_set is None else Sharing(bank, after_s, 0, job_set)


def _name_or_none(name: str | None) -> str | None:
    try:
        return check_name(name)
    except InvalidValue:
        return None


def check_name(name: str | None, path: str = "") -> str | None:
    """The name of a bank, user or job set, which people see in tables. Raises InvalidValue or LimitExceeded."""
    if name is None:
        return None
    at = f"{path}: " if path else ""
    if len(name) > NAME_CHARS_MAX:
        raise LimitExceeded(f"{at}{len(name)} characters, the limit is {NAME_CHARS_MAX}: choose a shorter name")
    if not name or not name.isprintable():
        raise InvalidValue(f"{at}{shown(name)} is not a name: it needs printable characters, at least one")
    return name


def _requeue(times: object) -> int:
    if times is None:
        return 0
    if type(times) is not int or not 0 <= times <= REQUEUE_MAX:
        path = "attributes.system.fluxsched.requeue"
        raise InvalidValue(f"{path}: {shown(times)} is not a number within 0-{REQUEUE_MAX}")
    return times
