"""Inputs made from others: structure is kept mostly, and broken in one or a few places.

Law: chance comes in as an argument, so the same seed makes the same input.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgpack

from tests.fuzz.target import Shape, Target, text_of

INTEGERS = (
    0, 1, 2, 7, 31, 63, 64, 255, 256, 4096, 65535, 65536, 1 << 22, (1 << 22) + 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1,
    1 << 32, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -1, -2, -(1 << 31), -(1 << 63),
)  # fmt: skip
FLOATS = (0.0, -0.0, 0.5, 1e-300, 1e300, -1.5, 1e18, float("inf"), float("-inf"), float("nan"), 5e-324)
TEXTS = (
    "", " ", "0", "-", ",", "0-", "[", "]", "[0-3]", "{", "}", "{{", "}}", "\0", "\n", "\t", "\r\n", "\ufeff", "\u202e",
    "é", "٣", "²", "𝟘", "\U0001f600", "\ud800", "nan", "inf", "-inf", "1e999", "0x", "0x10", "1_0", "+1", "٠", "ƒ",
    "a" * 300, "9" * 40, "9" * 5000, "0" * 400 + "1", "[" * 60, "(" * 60, "!" * 60, "{" * 60, "null", "true", "%s",
    "../", "default", "\\", "'", '"', "'''", '"""', "#", ";", ":", "=", "|", "&", "1.5", ".5", "5.", "--",
)  # fmt: skip
NUMBER = re.compile(r"[0-9]+")
DEEP = (20, 40, 200, 2000)
STEPS_MAX = 4


class Mutator:
    """Makes inputs for one target."""

    def __init__(self, target: Target, seeds: Sequence[bytes]) -> None:
        self._words = (*target.words, *TEXTS)
        self._shape = target.shape
        self._seeds = list(seeds) or [b""]
        self._trees = [tree for tree in map(self._read, self._seeds) if tree is not None]

    def mutate(self, data: bytes, limit_bytes: int, chance: Random) -> bytes:
        """An input near `data`."""
        tree = self._read(data) if self._shape is not Shape.TEXT else None
        if tree is None or chance.random() < 0.05:
            made = self._text(data, chance)
        else:
            made = self._write(self._tree(tree, chance), data)
        return made[:limit_bytes]

    # -- trees --------------------------------------------------------------------------------------------------

    def _read(self, data: bytes) -> Any:
        try:
            if self._shape is Shape.JSON:
                return json.loads(data)
            return msgpack.unpackb(data, strict_map_key=False) if self._shape is Shape.MSGPACK else None
        except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException):
            return None

    def _write(self, tree: Any, otherwise: bytes) -> bytes:
        try:
            if self._shape is Shape.JSON:
                return json.dumps(tree).encode()
            made: bytes = msgpack.packb(tree, unicode_errors="surrogatepass")
            return made
        except (ValueError, TypeError, OverflowError, RecursionError):
            return otherwise

    def _tree(self, tree: Any, chance: Random) -> Any:
        root = [copy.deepcopy(tree)]
        for _ in range(chance.randint(1, STEPS_MAX)):
            holder, key = self._place(root, chance)
            self._change(holder, key, chance)
            if not root:
                root = [None]
        return root[0]

    def _place(self, root: list[Any], chance: Random) -> tuple[Any, Any]:
        """Some part of a tree: what holds it, and under which key."""
        holder: Any = root
        while True:
            key = chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
            inner = holder[key]
            if not isinstance(inner, dict | list) or not inner or chance.random() < 0.15:
                return holder, key
            holder = inner

    def _change(self, holder: Any, key: Any, chance: Random) -> None:
        value = holder[key]
        draw = chance.randrange(12)
        if draw == 0:
            del holder[key]
        elif draw == 1:
            holder[key] = self._anything(chance)
        elif draw == 2 and self._trees:
            holder[key] = self._borrowed(key, chance)
        elif draw == 3:
            holder[key] = chance.choice(([value], {"a": value}, [value, value], [], {}, None))
        elif draw == 4 and isinstance(holder, list):
            holder.insert(chance.randrange(len(holder) + 1), self._anything(chance))
        elif draw == 5 and isinstance(holder, dict):
            holder[self._word(chance)] = self._anything(chance)
        elif draw == 6 and isinstance(holder, dict) and isinstance(key, str):
            holder[self._near(key, chance)] = holder.pop(key)
        elif draw == 7 and chance.random() < 0.2:
            for _ in range(chance.choice(DEEP)):
                value = chance.choice(([value], {"a": value}))
            holder[key] = value
        else:
            holder[key] = self._near(value, chance)

    def _borrowed(self, key: Any, chance: Random) -> Any:
        """A part of another seed, if possible one under the same key."""
        root = [copy.deepcopy(chance.choice(self._trees))]
        for _ in range(20):
            holder, found = self._place(root, chance)
            if found == key:
                break
        return holder[found]

    def _near(self, value: Any, chance: Random) -> Any:
        if isinstance(value, str):
            return text_of(self._text(value.encode("utf-8", "surrogatepass"), chance))
        if isinstance(value, bytes):
            return self._bytes(value, chance)
        if isinstance(value, bool) or value is None:
            return self._anything(chance)
        if isinstance(value, int):
            return chance.choice(
                (value + 1, value - 1, -value, value * 2, chance.choice(INTEGERS), float(value % 1000))
            )
        if isinstance(value, float):
            return chance.choice((*FLOATS, value + 1, -value, int(value) if abs(value) < 1e18 else 0))
        return self._anything(chance)

    def _bytes(self, value: bytes, chance: Random) -> bytes:
        """Binary within a tree: a header, a topic, or msgpack of its own."""
        if value and chance.random() < 0.5:
            try:
                inner = msgpack.unpackb(value, strict_map_key=False)
                made: bytes = msgpack.packb(self._tree(inner, chance), unicode_errors="surrogatepass")
                return made
            except (ValueError, TypeError, OverflowError, RecursionError, msgpack.exceptions.UnpackException):
                pass
        if value and chance.random() < 0.7:
            at = chance.randrange(len(value))
            return value[:at] + bytes([chance.choice((value[at] ^ 1 << chance.randrange(8), 0, 255))]) + value[at + 1 :]
        return self._text(value, chance)

    def _anything(self, chance: Random) -> Any:
        draw = chance.randrange(8)
        if draw < 3:
            return self._word(chance)
        if draw < 5:
            return chance.choice(INTEGERS)
        return chance.choice((None, True, False, [], {}, chance.choice(FLOATS), [self._word(chance)], {"a": 1}))

    def _word(self, chance: Random) -> str:
        return chance.choice(self._words)

    # -- texts --------------------------------------------------------------------------------------------------

    def _text(self, data: bytes, chance: Random) -> bytes:
        for _ in range(chance.randint(1, STEPS_MAX)):
            data = chance.choice(self._text_steps)(self, data, chance)
        return data

    def _insert(self, data: bytes, chance: Random) -> bytes:
        at = chance.randrange(len(data) + 1)
        return data[:at] + self._word(chance).encode("utf-8", "surrogatepass") + data[at:]

    def _number(self, data: bytes, chance: Random) -> bytes:
        found = list(NUMBER.finditer(text := data.decode("latin-1")))
        if not found:
            return self._insert(data, chance)
        one = chance.choice(found)
        value = int(one[0][:30])
        new = chance.choice((value + 1, value - 1, value * 10, chance.choice(INTEGERS)))
        return (text[: one.start()] + str(new) + text[one.end() :]).encode("latin-1")

    def _delete(self, data: bytes, chance: Random) -> bytes:
        begin, end = _span(data, chance)
        return data[:begin] + data[end:]

    def _repeat(self, data: bytes, chance: Random) -> bytes:
        begin, end = _span(data, chance)
        return data[:end] + data[begin:end] * chance.choice((1, 1, 1, 2, 16)) + data[end:]

    def _move(self, data: bytes, chance: Random) -> bytes:
        begin, end = _span(data, chance)
        rest = data[:begin] + data[end:]
        at = chance.randrange(len(rest) + 1)
        return rest[:at] + data[begin:end] + rest[at:]

    def _splice(self, data: bytes, chance: Random) -> bytes:
        other = chance.choice(self._seeds)
        begin, end = _span(other, chance)
        at = chance.randrange(len(data) + 1)
        return data[:at] + other[begin:end] + data[at + chance.choice((0, end - begin)) :]

    def _flip(self, data: bytes, chance: Random) -> bytes:
        if not data:
            return bytes([chance.randrange(256)])
        at = chance.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]

    _text_steps: tuple[Callable[[Mutator, bytes, Random], bytes], ...] = (
        _insert, _insert, _number, _number, _delete, _repeat, _move, _splice, _splice, _flip,
    )  # fmt: skip


def _span(data: bytes, chance: Random) -> tuple[int, int]:
    begin = chance.randrange(len(data) + 1)
    return begin, min(len(data), begin + chance.choice((1, 1, 2, 4, 8, 16, 64, 1024)))
