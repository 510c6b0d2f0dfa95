"""Count of a resource in a jobspec (RFC 14, `count`): one number, a range (RFC 45) or a list (RFC 22).

Law: a Count is never expanded to be stored, compared or asked for its largest value that fits; `1-67108864` costs what
`1` costs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fluxsched.core.idset import Idset
from fluxsched.core.jsontext import shown
from fluxsched.core.text import kind_of
from fluxsched.errors import InvalidValue, LimitExceeded

COUNT_MAX = 1 << 26
"""Eight times the cores of the largest machine of today: a larger count is a slip of the finger, not a job."""

LISTED_MAX = 4096
"""Counts that a list may name one by one: what has no rule is written by hand, and what has one is a range."""

_KEYS: Final = frozenset(("min", "max", "operator", "operand"))
_RANGE = re.compile(r"(\[?)([1-9][0-9]{0,15})(?:(\+)|-([1-9][0-9]{0,15}))(?::([1-9][0-9]{0,15})(?::([+*^]))?)?(\]?)")
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,15}")


@dataclass(frozen=True, slots=True)
class Count:
    """`min`, then each value that `operator` and `operand` make of the one before, up to `max` (None: without end).

    With `listed` the acceptable counts are just these; `min` and `max` are its ends.
    """

    min: int
    max: int | None
    operand: int = 1
    operator: str = "+"
    listed: Idset | None = None

    @classmethod
    def fixed(cls, count: int) -> Count:
        """Return the count of exactly this number."""
        return cls(count, count)

    @classmethod
    def parse(cls, obj: object) -> Count:
        """From an integer, a dictionary with `min`, a range text such as `2-4` or `2+:2:*`, or an idset text.

        Raises InvalidValue for what RFC 14 does not allow, LimitExceeded above COUNT_MAX.
        """
        if type(obj) is int:
            number = _positive("count", obj)
            return cls(number, number)
        if isinstance(obj, str):
            return _parse_text(obj)
        if isinstance(obj, dict):
            return _parse_dict(obj)
        raise InvalidValue(f"count must be an integer, a range or an object with min, not {kind_of(obj)}")

    def to_json(self) -> int | str | dict[str, int | str]:
        """An integer where it is one, else the dictionary of RFC 14, or the idset of the listed counts."""
        if self.listed is not None:
            return str(self.listed)
        if self.min == self.max:
            return self.min
        obj: dict[str, int | str] = {"min": self.min}
        if self.max is not None:
            obj["max"] = self.max
        return {**obj, "operator": self.operator, "operand": self.operand}

    def __str__(self) -> str:
        """The shortest RFC 45 text, or the idset of the listed counts; `parse` gives the same Count back."""
        if self.listed is not None:
            return str(self.listed)
        if self.min == self.max:
            return str(self.min)
        text = f"{self.min}+" if self.max is None else f"{self.min}-{self.max}"
        if self.operator != "+":
            return f"{text}:{self.operand}:{self.operator}"
        return text if self.operand == 1 else f"{text}:{self.operand}"

    @property
    def is_fixed(self) -> bool:
        """Return whether only one number is allowed."""
        return self.min == self.max

    def values(self, limit: int) -> Sequence[int]:
        """The acceptable counts up to `limit`, ascending; a `range` where steps are equal, so it costs nothing."""
        last = limit if self.max is None else min(limit, self.max)
        if self.listed is not None:
            return [count for count in self.listed if count <= last]
        if self.operator == "+":
            return range(self.min, last + 1, self.operand)
        return _powers(self.min, last, self.operand, self.operator)

    def largest(self, limit: int) -> int | None:
        """The largest acceptable count up to `limit`, or None when even `min` is more."""
        found = self.values(limit)
        return found[-1] if found else None

    def after(self, count: int) -> int | None:
        """The least acceptable count above this one, or None when it is the largest."""
        if count < self.min:
            return self.min
        if self.max is not None and count >= self.max:
            return None
        if self.listed is not None:
            return next((value for value in self.listed if value > count), None)
        if self.operator == "+":
            value = count + self.operand - (count - self.min) % self.operand
            return value if self.max is None or value <= self.max else None
        limit = COUNT_MAX if self.max is None else self.max
        return next((value for value in _powers(self.min, limit, self.operand, self.operator) if value > count), None)

    def __contains__(self, count: int) -> bool:
        return self.largest(count) == count


ONE: Final = Count(1, 1)


def _positive(what: str, number: object) -> int:
    if type(number) is not int:
        raise InvalidValue(f"{what} must be an integer, not {kind_of(number)}")
    if number < 1:
        raise InvalidValue(f"{what} must be 1 or more, not {shown(number)}")
    if number > COUNT_MAX:
        raise LimitExceeded(f"{what} is above the limit of {COUNT_MAX}")
    return number


def _powers(first: int, last: int, operand: int, operator: str) -> list[int]:
    """Values of the operators that grow fast: there are at most some thirty below COUNT_MAX."""
    found = []
    value = first
    while value <= last:
        found.append(value)
        if operator == "*":
            value *= operand
        elif (value.bit_length() - 1) * operand > last.bit_length():
            break  # the next one is above `last`: do not compute what may have millions of digits
        else:
            value **= operand
    return found


def _make(first: int, last: int | None, operand: int, operator: str) -> Count:
    if last is not None and last < first:
        raise InvalidValue(f"max {last} is less than min {first}")
    if operator != "+" and operand < 2:
        raise InvalidValue(f"operand must be 2 or more with the operator {operator!r}, not {operand}")
    if operator == "^" and first < 2:
        raise InvalidValue(f"min must be 2 or more with the operator '^', not {first}")
    return Count(first, last) if first == last else Count(first, last, operand, operator)


def _parse_dict(obj: dict[object, object]) -> Count:
    unknown = sorted(map(str, obj.keys() - _KEYS))
    if unknown:
        raise InvalidValue(f"unknown {', '.join(unknown)[:80]}: a range has min, max, operator and operand")
    if "min" not in obj:
        raise InvalidValue("a range needs min")
    if ("operator" in obj) != ("operand" in obj):
        raise InvalidValue("operator and operand come together or not at all")
    operator = obj.get("operator", "+")
    if operator not in ("+", "*", "^") or not isinstance(operator, str):
        raise InvalidValue(f"operator must be '+', '*' or '^', not {shown(operator)}")
    last = _positive("max", obj["max"]) if "max" in obj else None
    return _make(_positive("min", obj["min"]), last, _positive("operand", obj.get("operand", 1)), operator)


def _parse_text(text: str) -> Count:
    if _NUMBER.fullmatch(text):
        return Count.parse(int(text))
    match = _RANGE.fullmatch(text)
    if match is not None and bool(match[1]) == bool(match[7]):
        last = _positive("max", int(match[4])) if match[4] else None
        operand = _positive("operand", int(match[5] or 1))
        return _make(_positive("min", int(match[2])), last, operand, match[6] or "+")
    if ":" in text or "+" in text:
        raise InvalidValue(f"count {shown(text)} is not a range such as '2-4', '2+' or '2-16:2:*' (RFC 45)")
    listed = Idset.parse(text)
    if not listed or 0 in listed:
        raise InvalidValue(f"count {shown(text)} must list numbers of 1 or more")
    first, last = listed.min(), listed.max()
    if last - first + 1 == len(listed):
        return Count(first, last)
    if len(listed) > LISTED_MAX:
        raise LimitExceeded(f"count lists {len(listed)} numbers: the limit is {LISTED_MAX}; give a range with a step")
    return Count(first, last, listed=listed)
