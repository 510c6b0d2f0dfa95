"""What plugins read of a job (`READS`), as labels of its shape.

Law: labels are hashable, and jobs with equal labels and requests are of one shape. What a job lacks is no label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from json import dumps
from typing import Any, Final

from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.sched.hooks.api import READABLE
from fluxsched.sched.shape import Labels

READS_MAX = 16
"""What the plugins of a queue read in all: each multiplies the shapes."""

LABEL_CHARS_MAX = 1000
"""Of a label that is a text: it is kept for each shape."""

SYSTEM: Final = "attributes.system."
BULK: Final = ("environment", "files")
"""What a scheduler does not get (RFC 27)."""


def check_reads(plugin: str, reads: object) -> tuple[str, ...]:
    """Raises InvalidValue for what a plugin cannot read."""
    if isinstance(reads, str) or not isinstance(reads, Sequence):
        raise InvalidValue(f"plugin {plugin!r}: READS is {reads!r}; it should be a tuple of names such as ('user',)")
    for name in reads:
        if not isinstance(name, str) or not (name in READABLE or name.startswith(SYSTEM)):
            allowed = ", ".join(READABLE)
            raise InvalidValue(f"plugin {plugin!r}: READS names {name!r}; it may name {allowed} and {SYSTEM}KEY")
        keys = name.removeprefix(SYSTEM).split(".")
        if not all(keys) or (name.startswith(SYSTEM) and keys[0] in BULK):
            raise InvalidValue(f"plugin {plugin!r}: READS names {name!r}, which schedulers are not sent: name a KEY")
    return tuple(reads)


def all_reads(reads: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """What several plugins read together, in a fixed order. Raises LimitExceeded above READS_MAX."""
    found = tuple(sorted({name for each in reads for name in each}))
    if len(found) > READS_MAX:
        raise LimitExceeded(f"plugins read {len(found)} labels of each job: the limit is {READS_MAX}; use fewer")
    return found


def labels_of(reads: Sequence[str], jobspec: Jobspec, userid: int) -> Labels:
    """The labels of a job, those that it has."""
    found = []
    for name in reads:
        value = _value(name, jobspec, userid)
        if value is not None:
            found.append((name, value))
    return tuple(found)


def _value(name: str, jobspec: Jobspec, userid: int) -> Any:
    if name == "user":
        return userid
    if name == "bank":
        return jobspec.sharing.bank
    if name == "queue":
        return jobspec.queue
    if name == "name":
        return jobspec.job_name
    found: Any = jobspec.bare.get("attributes", {}).get("system")
    for key in name.removeprefix(SYSTEM).split("."):
        if not isinstance(found, Mapping) or key not in found:
            return None
        found = found[key]
    if isinstance(found, (dict, list)):
        found = dumps(found, sort_keys=True)
    return found[:LABEL_CHARS_MAX] if isinstance(found, str) else found
