"""Large parts of jobspecs, which many jobs have in common, are kept once, by content.

Law: a jobspec is read as it was written. It is kept as JSON in which a mark stands for each such part; JSON never has
the bytes of marks. A part is stored before the first row that refers to it, and is found again by content until it is
forgotten, which precedes its removal.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgspec

ENVIRONMENT_MARK: Final = b"\0"
"""What stands for an environment but for its closing brace: variables of the job alone may follow."""
FILES_MARK: Final = b"\1"
PER_JOB: Final = "FLUX_JOB_CC"
"""The variable that differs in each job of an array: it stays with the job, so that the others are shared."""
PART_BYTES_MIN: Final = 128
"""A smaller part stays where it is: a row of its own would take as much."""
PARTS_KNOWN_MAX = 4096
"""Parts that are found again by content (a megabyte); one that comes again after so many others is kept twice."""
OBJECTS_KNOWN_MAX = 64
"""Objects whose content is known: jobs that are submitted together have one environment between them."""
DIGEST_BYTES: Final = 16

_json = msgspec.json.encode

AddPart = Callable[[tuple[int, bytes, bytes]], None]
"""Takes the row of a part that is to be stored now: id, digest and text, which may be compressed there."""


class JobspecRow(NamedTuple):
    """A jobspec as it is kept, and the ids of the parts for which its marks stand (0: none)."""

    text: bytes | bytearray
    environment: int = 0
    files: int = 0

    def whole(self, part: Callable[[int], bytes]) -> bytes:
        """The jobspec's JSON; `part` has the texts by id."""
        text = bytes(self.text)
        if self.environment:
            text = text.replace(ENVIRONMENT_MARK, part(self.environment))
        if self.files:
            text = text.replace(FILES_MARK, part(self.files))
        return text

    def bare(self) -> bytes:
        """The same as if the parts were empty: enough where no task is started."""
        text = bytes(self.text).replace(ENVIRONMENT_MARK + b"}", b"{}").replace(ENVIRONMENT_MARK + b",", b"{")
        return text.replace(FILES_MARK, b"null")


NO_JOBSPEC: Final = ("", 0, 0)
"""The values of a row without one."""


class Parts:
    """The parts that the store has or soon will have."""

    def __init__(self, add: AddPart, known: Iterable[tuple[int, bytes]] = (), last_id: int = 0) -> None:
        """`known`: ids and digests, the one that was added last at the end."""
        self._add = add
        self._ids: OrderedDict[bytes, int] = OrderedDict((digest, number) for number, digest in known)
        self._objects: dict[int, tuple[object, int]] = {}
        self._last_id = last_id

    def split(self, jobspec: dict[str, Any]) -> JobspecRow:
        """The row of a jobspec; its parts have been added by then. The jobspec must not change afterwards."""
        attributes = jobspec.get("attributes") or {}
        system = attributes.get("system") or {}
        environment, files = system.get("environment"), system.get("files")
        if not environment and not files:
            return JobspecRow(bytearray(_json(jobspec)))
        system, numbers = dict(system), [0, 0]
        if environment:
            numbers[0], system["environment"] = self._environment(environment)
        if files:
            numbers[1] = self._object(files, _json)
            system["files"] = msgspec.Raw(FILES_MARK) if numbers[1] else files
        text = _json({**jobspec, "attributes": {**attributes, "system": system}})
        return JobspecRow(bytearray(text), *numbers)

    def forget(self, numbers: Iterable[int]) -> None:
        """Find these no more: their rows are about to be removed."""
        gone = frozenset(numbers)
        for digest in [digest for digest, number in self._ids.items() if number in gone]:
            del self._ids[digest]
        self._objects.clear()

    def _environment(self, environment: dict[str, Any]) -> tuple[int, object]:
        """The id of what is shared of an environment, and what stands for all of it."""
        if PER_JOB not in environment:
            number = self._object(environment, _open)
            return number, msgspec.Raw(ENVIRONMENT_MARK + b"}") if number else environment
        shared = {name: value for name, value in environment.items() if name != PER_JOB}
        number = self._text(_open(shared))
        own = _json({PER_JOB: environment[PER_JOB]})
        return number, msgspec.Raw(ENVIRONMENT_MARK + b"," + own[1:]) if number else environment

    def _object(self, part: object, encode: Callable[[Any], bytes]) -> int:
        known = self._objects.get(id(part))
        if known is not None and known[0] is part:
            return known[1]
        number = self._text(encode(part))
        if len(self._objects) >= OBJECTS_KNOWN_MAX:
            self._objects.clear()
        self._objects[id(part)] = part, number
        return number

    def _text(self, text: bytes) -> int:
        """The id of a part with this text; 0 for one that is too small."""
        if len(text) < PART_BYTES_MIN:
            return 0
        digest = blake2b(text, digest_size=DIGEST_BYTES).digest()
        number = self._ids.get(digest)
        if number is None:
            self._last_id = number = self._last_id + 1
            self._add((number, digest, text))
            self._ids[digest] = number
            if len(self._ids) > PARTS_KNOWN_MAX:
                self._ids.popitem(last=False)
        else:
            self._ids.move_to_end(digest)
        return number


def _open(environment: dict[str, Any]) -> bytes:
    return _json(environment)[:-1]
