"""Effects of the resource module: values that its methods return and the shell performs, in order.

Law: an effect is data. `Save` comes with the change that it makes durable; the shell stores all of a turn before it
answers any request. Nothing here knows how an acquirer is reached or where a row is kept.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from fluxsched.core.group_change import GroupChange
from fluxsched.core.idset import Idset

Table: TypeAlias = Literal["drain", "assign", "group", "leaving", "property", "journal"]
"""`drain`, `assign`, `leaving` and `property` are keyed by target (`host` or `host,index`), `group` by its name."""

JournalEvent: TypeAlias = dict[str, Any]
"""An RFC 18 event in object form: `timestamp` (seconds), `name` and, but for `truncate`, `context`."""


@dataclass(frozen=True, slots=True)
class ToAcquirer:
    """Tell the acquirer of `group` what changed; its first change is all that the group has."""

    acquirer: Hashable
    change: GroupChange
    group: str


@dataclass(frozen=True, slots=True)
class Journal:
    """Publish an event to the readers of the resource journal (RFC 44)."""

    event: JournalEvent


@dataclass(frozen=True, slots=True)
class Save:
    """Store a row, or delete it when `value` is None; on disk before the request that caused it is answered."""

    table: Table
    key: str
    value: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class RaiseJobs:
    """Raise a fatal exception on these jobs, each once: their targets are leaving and the acquirer is lost."""

    targets: Idset
    jobids: tuple[int, ...]
    note: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The stream of this acquisition is over, with the errno and text of its last response."""

    acquirer: Hashable
    errnum: int
    text: str
    group: str


ResourceEffect: TypeAlias = ToAcquirer | Journal | Save | RaiseJobs | Ended


class Saved(NamedTuple):
    """A row as the store hands it back at a restart; `journal` rows come in the order of their events."""

    table: Table
    key: str
    value: Mapping[str, Any]
