"""Jobspecs that were seen before: whoever submits ten thousand equal jobs has one of them read.

A jobspec is a frozen value, so equal bytes may share it; 20,000 jobs then also share its memory. The key is the bytes
as they came, so nothing is believed that was not checked once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from fluxsched.core.jobspec import Jobspec
from fluxsched.protocol import codec

V = TypeVar("V")

SPECS_KEPT = 256
"""Jobspecs kept, least recently used first to go."""
SPEC_BYTES_MAX = 16 * 1024
"""A larger jobspec is read each time: 256 of these are 4 MiB."""


def _object(data: bytes) -> dict[str, Any]:
    return codec.unpack(data, dict[str, Any])


class Specs:
    """Reads jobspecs out of messages, of one codec."""

    def __init__(self, decode: Callable[[bytes], dict[str, Any]] = _object) -> None:
        self._decode = decode
        self._known: OrderedDict[bytes, Jobspec] = OrderedDict()

    def read(self, raw: bytes | msgspec.Raw) -> Jobspec:
        """The jobspec in these bytes. Raises RemoteProtocolError or InvalidValue as reading it anew would."""
        data = bytes(raw)
        known = self._known.get(data)
        if known is not None:
            self._known.move_to_end(data)
            return known
        jobspec = Jobspec.parse(self._decode(data))
        if len(data) <= SPEC_BYTES_MAX:
            self._known[data] = jobspec
            if len(self._known) > SPECS_KEPT:
                self._known.popitem(last=False)
        return jobspec


class Made(Generic[V]):
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
