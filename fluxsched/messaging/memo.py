"""Caches of decoded values: of ten thousand equal jobs one jobspec is decoded, and values derived from it are computed
once.

Decoded values never change, so equal bytes may share them; 20,000 jobs then also share the memory. The key is the bytes
as received, so nothing is accepted that was not checked once. Caches are bounded in number and in bytes: jobspecs with
an environment are 10 KiB and more, and no two jobs of some sites are alike.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from fluxsched.core.constraint import EVERYTHING
from fluxsched.core.jobspec import DEPTH_MAX, MEMBERS_MAX, Jobspec, read_attributes
from fluxsched.core.request import parse_resources
from fluxsched.core.text import check_shape
from fluxsched.errors import FluxschedError
from fluxsched.protocol import framing
from fluxsched.protocol.messages.jobs import JobspecParts

V = TypeVar("V")

SPECS_KEPT = 2048
"""Jobspecs kept, least recently used first to go: more than sites have banks with jobs of a kind or two each."""
OBJECTS_KEPT = 1024
"""Objects of which derived values are kept: enough for jobs of a thousand banks in turn. With more, the caches of the
processor are too small where no two jobspecs are alike.
"""
SPEC_BYTES_MAX = 16 * 1024
"""A larger jobspec is read each time."""
MEMO_BYTES_MAX = 2 * 1024 * 1024
"""Bytes of all that one memo knows: some 200 jobspecs with an environment each, or all that it may keep without.

What is read of them is three times as large.
"""
ENVIRONMENTS_KEPT = 64
"""Environments of which one copy is kept for all jobs that have the same: of so many users, 8 KiB each."""


class PayloadMemo(Generic[V]):
    """Reads values out of messages: `kept` of at most `bytes_max` bytes are remembered, `memo_bytes_max` in all."""

    def __init__(
        self,
        read: Callable[[bytes], V],
        kept: int,
        bytes_max: int,
        memo_bytes_max: int = MEMO_BYTES_MAX,
        *,
        from_second: bool = False,
    ) -> None:
        """`from_second`: remember values that are read a second time; others, if no two are alike, would only take
        room in the processor's caches.
        """
        self._read = read
        self._seen: set[int] | None = set() if from_second else None
        """Hashes of what was read once."""
        self._memo_bytes_max = memo_bytes_max
        self._kept = kept
        self._bytes_max = bytes_max
        self._known: OrderedDict[bytes, V] = OrderedDict()
        self._known_bytes = 0

    def read(self, raw: bytes | msgspec.Raw) -> V:
        """Return the value of these bytes. Raises the exceptions of decoding them anew."""
        data = bytes(raw)
        known = self._known.get(data)
        if known is not None:
            self._known.move_to_end(data)
            return known
        value = self._read(data)
        if len(data) <= self._bytes_max and (self._seen is None or self._is_second(hash(data), self._seen)):
            self._known[data] = value
            self._known_bytes += len(data)
            while len(self._known) > self._kept or self._known_bytes > self._memo_bytes_max:
                self._known_bytes -= len(self._known.popitem(last=False)[0])
        return value

    def _is_second(self, key: int, seen: set[int]) -> bool:
        if key in seen:
            return True
        if len(seen) >= self._kept:
            seen.clear()
        seen.add(key)
        return False


class Environments:
    """One object for equal environments: ten thousand waiting jobs of a user have one between them.

    Law: found by hash and compared in full, so an environment is never taken for another.
    """

    def __init__(self, kept: int = ENVIRONMENTS_KEPT) -> None:
        self._kept = kept
        self._known: OrderedDict[int, Mapping[str, str | None]] = OrderedDict()

    def shared(self, environment: Mapping[str, str | None]) -> Mapping[str, str | None]:
        """Return the environment as it was first seen, or this one."""
        key = hash(tuple(environment.items()))
        known = self._known.get(key)
        if known is not None and known == environment:
            self._known.move_to_end(key)
            return known
        self._known[key] = environment
        if len(self._known) > self._kept:
            self._known.popitem(last=False)
        return environment


class Codec(NamedTuple):
    """Encoding of jobspecs: `unpack` decodes a value of a given type, `parts` a jobspec in parts."""

    unpack: Callable[[bytes, Any], Any]
    parts: Callable[[bytes], JobspecParts]


MSGPACK = Codec(framing.unpack, msgspec.msgpack.Decoder(JobspecParts).decode)
JSON = Codec(framing.from_json, msgspec.json.Decoder(JobspecParts).decode)


class _Part(NamedTuple):
    """Resources or attributes of jobspecs: their JSON, how many members it has, and what it means."""

    raw: Any
    members: int
    read: Any


_TASK_KEYS = frozenset(("command", "slot", "count"))
"""Keys of a task that is completely checked by parsing it, if it has no other members."""
_TASK_MEMBERS = 16
"""Upper bound of the members of such a task and of the jobspec around it, except the words of the command."""


class JobspecMemo:
    """Reads jobspecs, of one codec. Raises RemoteProtocolError or InvalidValue.

    Jobs that are submitted together mostly differ in a few words of their commands: what they ask for and under which
    conditions they run is read once, and only the tasks anew. What is unusual or wrong is read as a whole.
    """

    def __init__(self, codec: Codec = MSGPACK, environments_kept: int = ENVIRONMENTS_KEPT) -> None:
        self._codec = codec
        self._whole = PayloadMemo(self._read, SPECS_KEPT, SPEC_BYTES_MAX, from_second=True)
        self._resources = PayloadMemo(self._read_resources, SPECS_KEPT, SPEC_BYTES_MAX)
        self._attributes = PayloadMemo(self._read_attributes, SPECS_KEPT, SPEC_BYTES_MAX)
        self._environments = Environments(environments_kept)
        self.read = self._whole.read

    def _read(self, data: bytes) -> Jobspec:
        try:
            found = self._joined(self._codec.parts(data))
        except (FluxschedError, msgspec.MsgspecError, UnicodeError, RecursionError):
            found = None
        return found or Jobspec.parse(self._codec.unpack(data, dict[str, Any]))

    def _joined(self, parts: JobspecParts) -> Jobspec | None:
        tasks = parts.tasks
        if len(tasks) != 1 or not tasks[0].keys() <= _TASK_KEYS:
            return None
        resources = self._resources.read(parts.resources)
        attributes = self._attributes.read(parts.attributes)
        raw = {"version": 1, "resources": resources.raw, "tasks": tasks, "attributes": attributes.raw}
        jobspec = Jobspec.of_read(raw, resources.read, attributes.read)
        members = resources.members + attributes.members + len(jobspec.command) + _TASK_MEMBERS
        return jobspec if members <= MEMBERS_MAX else None

    def _read_resources(self, data: bytes) -> _Part:
        raw = self._codec.unpack(data, list[Any])
        return _Part(raw, _members(raw), parse_resources(raw, EVERYTHING))

    def _read_attributes(self, data: bytes) -> _Part:
        raw = self._codec.unpack(data, dict[str, Any])
        members, found = _members(raw), read_attributes(raw)
        if found.environment:
            found.environment = raw["system"]["environment"] = self._environments.shared(found.environment)
        return _Part(raw, members, found)


def _members(part: object) -> int:
    return check_shape({"": part}, "jobspec", depth_limit=DEPTH_MAX, items_limit=MEMBERS_MAX)


class ObjectMemo(Generic[V]):
    """Cache of values derived from objects, for the objects used last; the objects must not change.

    With `size`, which returns the size of a value, the values have at most `memo_bytes_max`. A full cache is emptied:
    to drop one value for each that comes costs more than what is seldom made twice.
    """

    def __init__(
        self, make: Callable[[Any], V], size: Callable[[V], int] | None = None, memo_bytes_max: int = MEMO_BYTES_MAX
    ) -> None:
        self._make = make
        self._memo_bytes_max = memo_bytes_max
        self._size = size
        self._made: dict[int, tuple[object, V]] = {}
        self._made_bytes = 0

    def clear(self) -> None:
        self._made.clear()
        self._made_bytes = 0

    def get(self, thing: object) -> V:
        """Return the value cached for this object (by identity); compute it if absent."""
        known = self._made.get(id(thing))
        if known is not None and known[0] is thing:
            return known[1]
        value = self._make(thing)
        size = 0 if self._size is None else self._size(value)
        if len(self._made) >= OBJECTS_KEPT or self._made_bytes + size > self._memo_bytes_max:
            self.clear()
        self._made[id(thing)] = (thing, value)
        self._made_bytes += size
        return value
