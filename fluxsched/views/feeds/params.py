"""The parameters of a subscription: values from a program, or texts from a query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxsched.core.text import some_of
from fluxsched.errors import InvalidValue, LimitExceeded

SHOWN_CHARS = 40
RELATIVE_BELOW_S = 1e8
"""Times nearer to zero than this are seconds from now: -3600 is an hour ago."""


class Params:
    """Those of one topic; what is None or empty is absent. Raises InvalidValue naming all that are unknown."""

    def __init__(self, topic: str, given: Mapping[str, Any], *known: str) -> None:
        self._topic = topic
        self._given = {name: value for name, value in given.items() if value is not None and value != ""}
        if unknown := [name for name in self._given if name not in known]:
            raise InvalidValue(f"view {topic}: {some_of(unknown)}: no such parameter; there are {some_of(known)}")

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def get(self, name: str) -> Any:
        """As it was given, or None."""
        return self._given.get(name)

    def text(self, name: str) -> str:
        """A text, empty if absent."""
        value = self._given.get(name, "")
        if not isinstance(value, str):
            raise self._wrong(name, "a text")
        return value

    def words(self, name: str) -> tuple[str, ...]:
        """A comma separated list."""
        return tuple([word.strip() for word in self.text(name).split(",") if word.strip()])

    def number(self, name: str) -> float | None:
        """A number, None if absent."""
        value = self._given.get(name)
        if value is None:
            return None
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise self._wrong(name, "a number") from None
        if not -1e15 < number < 1e15:
            raise self._wrong(name, "a number of sensible size")
        return number

    def count(self, name: str, default: int, limit: int, least: int = 1) -> int:
        """A whole number from `least` on. Raises LimitExceeded above the limit."""
        number = self.number(name)
        if number is None:
            return default
        if number < least or number != int(number):
            raise self._wrong(name, f"a whole number, at least {least}")
        if number > limit:
            raise LimitExceeded(f"view {self._topic}: {name} {int(number)} is above the limit of {limit}")
        return int(number)

    def _wrong(self, name: str, wanted: str) -> InvalidValue:
        return InvalidValue(f"view {self._topic}: {name} {str(self._given[name])[:SHOWN_CHARS]!r} is not {wanted}")


class Period:
    """`since` and `until`, as wall times or in seconds from now; the defaults are seconds from now."""

    def __init__(self, params: Params, since_s: float, until_s: float) -> None:
        self._since_s, self._until_s = params.number("since"), params.number("until")
        self._default_s = since_s, until_s

    def bounds_s(self, now_s: float) -> tuple[float, float]:
        """Both as wall times, in order."""
        since_s = _wall(self._since_s, self._default_s[0], now_s)
        return since_s, max(since_s, _wall(self._until_s, self._default_s[1], now_s))


def _wall(value: float | None, default_s: float, now_s: float) -> float:
    time_s = default_s if value is None else value
    return now_s + time_s if abs(time_s) < RELATIVE_BELOW_S else time_s
