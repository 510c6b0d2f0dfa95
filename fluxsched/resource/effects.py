"""What the resource module wants done: values that its methods return and the shell performs, in order.

Law: an effect is data. `Save` comes with the change that it makes durable; the shell stores all of a turn before it
answers anybody. Nothing in here knows how an acquirer is reached or where a row is kept.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet

Table: TypeAlias = Literal["drain", "assign", "group", "leaving", "property", "journal"]
"""`drain`, `assign`, `leaving` and `property` are keyed by target (`host` or `host,index`), `group` by its name."""

Event: TypeAlias = dict[str, Any]
"""An RFC 18 event in object form: `timestamp` (seconds), `name` and, but for `truncate`, `context`."""

Properties: TypeAlias = Mapping[str, Idset]


@dataclass(frozen=True, slots=True)
class First:
    """All that a group owns and is not leaving it, once, when it is acquired (RFC 28, grow response)."""

    resources: ResourceSet
    online: Idset
    offline: Idset


@dataclass(frozen=True, slots=True)
class Grow:
    """Targets that joined an acquired group (RFC 28, grow response); typed acquirers only."""

    resources: ResourceSet
    online: Idset
    offline: Idset


@dataclass(frozen=True, slots=True)
class Shrink:
    """Targets that leave the group (RFC 28, shrink response): a typed acquirer owes a release for each."""

    targets: Idset


@dataclass(frozen=True, slots=True)
class Availability:
    """Targets that became usable or unusable (RFC 28, online and offline responses)."""

    online: Idset
    offline: Idset


@dataclass(frozen=True, slots=True)
class Update:
    """A change of R that leaves its targets as they are: expiration (seconds since the epoch), properties."""

    expiration_s: float | None = None
    property_add: Properties = field(default_factory=dict)
    property_remove: Properties = field(default_factory=dict)


Change: TypeAlias = First | Grow | Shrink | Availability | Update


@dataclass(frozen=True, slots=True)
class ToAcquirer:
    """Tell whoever acquired `group` what changed."""

    acquirer: Hashable
    change: Change
    group: str


@dataclass(frozen=True, slots=True)
class Journal:
    """Publish an event to whoever reads the resource journal (RFC 44)."""

    event: Event


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


Effect: TypeAlias = ToAcquirer | Journal | Save | RaiseJobs | Ended


class Saved(NamedTuple):
    """A row as the store hands it back at a restart; `journal` rows come in the order of their events."""

    table: Table
    key: str
    value: Mapping[str, Any]
