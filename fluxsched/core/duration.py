"""Flux Standard Durations (RFC 23): a number and a unit, seconds if there is none, or `infinity`.

Law: what is printed parses back to the very same number of seconds; short units are preferred over rounded long ones.
"""

from __future__ import annotations

import math
import re
from typing import Final

from fluxsched.core.text import kind_of
from fluxsched.errors import InvalidValue, LimitExceeded

TEXT_CHARS_MAX = 400
"""The longest text looked at: any double fits in some 330 decimal digits."""

_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DECIMAL: Final = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_HEXADECIMAL: Final = r"0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?[0-9]+)?"
_FSD: Final = re.compile(rf"\+?(?:({_HEXADECIMAL})|({_DECIMAL}))(ms|[smhd])?", re.ASCII)
_CLOCK: Final = re.compile(r"(?:([0-9]{1,6})-)?([0-9]{1,6})(?::([0-9]{1,2})(?::([0-9]{1,2}))?)?", re.ASCII)
_INFINITY: Final = re.compile(r"\+?inf(?:inity)?", re.ASCII | re.IGNORECASE)


def parse_duration(value: object) -> float:
    """Seconds of an RFC 23 text (C99 number, unit ms, s, m, h or d; `inf` or `infinity` without) or of a number.

    Raises InvalidValue for what is no duration, not a number or negative, LimitExceeded above the range of a double.
    """
    if isinstance(value, str):
        return _parse_text(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidValue(f"duration must be a number of seconds or a text such as '1.5h', not {kind_of(value)}")
    try:
        seconds = float(value)
    except OverflowError:
        raise _too_long("given") from None
    if math.isnan(seconds) or seconds < 0:
        raise InvalidValue(f"duration {seconds} is not in 0..infinity seconds")
    return seconds


def parse_clock(text: str) -> float:
    """Seconds of a time limit as Slurm has it: `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM` or `D-HH:MM:SS`.

    Raises InvalidValue.
    """
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise InvalidValue(f"time {text[:40]!r} is not MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS")
    days, first, second, third = [int(found) if found else 0 for found in match.groups()]
    if match[1] is not None or match[4] is not None:
        return float(((days * 24 + first) * 60 + second) * 60 + third)
    return float(first * 60 + second)


def format_duration(duration_s: float) -> str:
    """Return the RFC 23 text of this many seconds, exact: in the largest unit that needs six digits at most, else in
    seconds.

    Raises InvalidValue for a negative or undefined number.
    """
    seconds = parse_duration(duration_s)
    if math.isinf(seconds):
        return "infinity"
    if seconds < 0.1 and seconds and _exact(text := f"{seconds * 1000:.6g}ms", seconds):
        return text
    for unit in "dhms":
        if seconds >= _UNITS_S[unit] and _exact(text := f"{seconds / _UNITS_S[unit]:.6g}{unit}", seconds):
            return text
    return f"{int(seconds)}s" if seconds == int(seconds) else f"{seconds!r}s"


def _exact(text: str, duration_s: float) -> bool:
    try:
        return _parse_text(text) == duration_s
    except LimitExceeded:  # rounding up went beyond the largest double
        return False


def _too_long(text: str) -> LimitExceeded:
    return LimitExceeded(f"duration {text} is beyond the range of a double: use 'infinity'")


def _parse_text(text: str) -> float:
    match = _FSD.fullmatch(text) if len(text) <= TEXT_CHARS_MAX else None
    if match is None:
        if len(text) <= TEXT_CHARS_MAX and _INFINITY.fullmatch(text):
            return math.inf
        raise InvalidValue(f"duration {text[:40]!r} is not a number >= 0 with a unit of ms, s, m, h, d or none")
    hexadecimal, decimal, unit = match.groups(default="")
    try:
        number = float.fromhex(hexadecimal) if hexadecimal else float(decimal)
    except OverflowError:
        number = math.inf
    # dividing gives the double nearest to the text, multiplying by 0.001 does not
    seconds = number / 1000 if unit == "ms" else number * _UNITS_S[unit]
    if math.isinf(seconds):
        raise _too_long(repr(text[:40]))
    return seconds
