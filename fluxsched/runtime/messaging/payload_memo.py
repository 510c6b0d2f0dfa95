"""What was seen before: whoever submits ten thousand equal jobs has one jobspec read, and what is made of it made once.

What is read here never changes, so equal bytes may share it; 20,000 jobs then also share its memory. The key is the
bytes as they came, so nothing is believed that was not checked once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from fluxsched.core.jobspec import Jobspec
from fluxsched.protocol.framing import codec

V = TypeVar("V")

SPECS_KEPT = 256
"""Jobspecs kept, least recently used first to go."""
SPEC_BYTES_MAX = 16 * 1024
"""A larger jobspec is read each time: 256 of these are 4 MiB."""


class PayloadMemo(Generic[V]):
    """Reads values out of messages: `kept` of at most `bytes_max` bytes are remembered."""

    def __init__(self, read: Callable[[bytes], V], kept: int, bytes_max: int) -> None:
        self._read = read
        self._kept = kept
        self._bytes_max = bytes_max
        self._known: OrderedDict[bytes, V] = OrderedDict()

    def read(self, raw: bytes | msgspec.Raw) -> V:
        """The value of these bytes. Raises what reading it anew would raise."""
        data = bytes(raw)
        known = self._known.get(data)
        if known is not None:
            self._known.move_to_end(data)
            return known
        value = self._read(data)
        if len(data) <= self._bytes_max:
            self._known[data] = value
            if len(self._known) > self._kept:
                self._known.popitem(last=False)
        return value


def _object(data: bytes) -> dict[str, Any]:
    return codec.unpack(data, dict[str, Any])


class JobspecMemo(PayloadMemo[Jobspec]):
    """Reads jobspecs, of one codec. Raises RemoteProtocolError or InvalidValue."""

    def __init__(self, decode: Callable[[bytes], dict[str, Any]] = _object) -> None:
        super().__init__(lambda data: Jobspec.parse(decode(data)), SPECS_KEPT, SPEC_BYTES_MAX)


class ObjectMemo(Generic[V]):
    """What is made of an object again and again, kept for the objects seen last; the object must not change."""

    def __init__(self, make: Callable[[Any], V]) -> None:
        self._make = make
        self._made: OrderedDict[int, tuple[object, V]] = OrderedDict()

    def of(self, thing: object) -> V:
        """What is made of this very object."""
        known = self._made.get(id(thing))
        if known is not None and known[0] is thing:
            return known[1]
        value = self._make(thing)
        self._made[id(thing)] = (thing, value)
        if len(self._made) > SPECS_KEPT:
            self._made.popitem(last=False)
        return value
