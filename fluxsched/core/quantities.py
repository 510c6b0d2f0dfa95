"""Quantities as people write them: amounts of countable resources, and durations (RFC 23).

An amount is one of memory in bytes, of licences, of whatever a site names: so many of a kind, none with an id. A
duration is a number and a unit, seconds if there is none, or `infinity`.

Laws: an amount is a whole number within 1 and AMOUNT_MAX, in the smallest unit of its kind; bytes where a unit of bytes
is given. Amounts are a sorted tuple of (kind, amount), so equal ones are equal and hash alike; () is none. Their
algebra is that of bags: union takes the larger amount, intersection the smaller one, a difference stops at nothing. A
duration that is printed parses back to the very same number of seconds; short units are preferred over rounded long
ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Final, TypeAlias

from fluxsched.core.text import kind_of, shown
from fluxsched.errors import InvalidValue, LimitExceeded

Amounts: TypeAlias = tuple[tuple[str, int], ...]

AMOUNT_MAX = 1 << 60
"""An exbibyte: more than the memory of any machine, and twice eight times it still fits in the 64 bits of msgpack."""

AMOUNT_KINDS_MAX = 16
"""Kinds that one target, one instance or one request may have: each is looked at whenever a job is placed."""

MEMORY: Final = "memory"
"""The kind in bytes: it is discovered, shown in binary units, and limits the jobs that ask for it."""

DOUBLINGS_KEPT: Final = 64
"""Doublings of a pause that count: after some hundred more it would be beyond the range of a double."""

RESERVED: Final = frozenset(("node", "slot", "core", "gpu"))
"""Types of RFC 25 that are no amounts: two group others, two have ids."""

_KIND: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", re.ASCII)

_NUMBER_UNIT: Final = re.compile(r"([0-9]{1,19}) ?([A-Za-z]{0,3})", re.ASCII)

_UNITS: Final = {"": 1, "B": 1} | {
    f"{prefix}{suffix}": base**power
    for suffix, base in (("B", 1000), ("iB", 1024))
    for power, prefix in enumerate(("k" if base == 1000 else "K", "M", "G", "T", "P"), 1)
}
_BINARY: Final = ("KiB", "MiB", "GiB", "TiB", "PiB")


def check_kind(kind: object) -> str:
    """Return the name of a countable kind: a letter, then letters, digits and `_.-`, 64 in all, none of RFC 25's
    types.
    """
    if type(kind) is not str or _KIND.fullmatch(kind) is None or kind in RESERVED:
        raise InvalidValue(f"{shown(kind)} is not the name of a countable resource, such as memory")
    return kind


def check_amount(amount: object) -> int:
    """Return an amount as R and jobspecs have it."""
    if type(amount) is not int or amount < 1:
        raise InvalidValue(f"an amount must be a whole number of 1 or more, not {shown(amount)}")
    if amount > AMOUNT_MAX:
        raise LimitExceeded(f"the amount {amount} is above the limit of {AMOUNT_MAX}")
    return amount


def parse_amounts(obj: object) -> Amounts:
    """From an object of kind: amount, or None for none. Raises InvalidValue naming the kind that is wrong."""
    if obj is None:
        return ()
    if not isinstance(obj, dict):
        raise InvalidValue(f"amounts must be an object such as {{'memory': 1024}}, not {kind_of(obj)}")
    if len(obj) > AMOUNT_KINDS_MAX:
        raise LimitExceeded(f"amounts lists {len(obj)} kinds: the limit is {AMOUNT_KINDS_MAX}")
    found = []
    for kind, amount in obj.items():
        try:
            found.append((check_kind(kind), check_amount(amount)))
        except InvalidValue as fault:
            raise type(fault)(f"amounts[{shown(kind)}]: {fault}") from None
    return tuple(sorted(found))


def in_unit(count: int, unit: str) -> int:
    """Return a count of a unit: of bytes (`GB`, `GiB`, ... give bytes), or "" for the kind's own."""
    factor = _UNITS.get(unit)
    if factor is None:
        raise InvalidValue(f"unit {shown(unit)} is not known: give {', '.join(list(_UNITS)[1:])}, or none")
    return check_amount(count * factor)


def parse_amount(value: object) -> int:
    """Return the amount that is written in a configuration or a command: a whole number, or a text such as `512GiB` or
    `2`.
    """
    if not isinstance(value, str):
        return check_amount(value)
    match = _NUMBER_UNIT.fullmatch(value)
    if match is None:
        raise InvalidValue(f"{shown(value)} is not an amount such as 2 or 512GiB")
    return in_unit(int(match[1]), match[2])


def amount_text(kind: str, amount: int) -> str:
    """`8 GiB memory`, `2 matlab`, for people."""
    amount, unit = _largest_unit(kind, amount)
    return f"{amount} {unit} {kind}" if unit else f"{amount} {kind}"


def amounts_setting(amounts: Amounts) -> str:
    """`matlab=2,memory=8GiB`, as they are asked for."""
    return ",".join(["{}={}{}".format(kind, *_largest_unit(kind, amount)) for kind, amount in amounts])


def _largest_unit(kind: str, amount: int) -> tuple[int, str]:
    """Memory in the largest binary unit that divides it, other kinds as they are."""
    unit = ""
    for name in _BINARY if kind == MEMORY and amount else ():
        if amount % 1024:
            break
        amount, unit = amount // 1024, name
    return amount, unit


def times(amounts: Amounts, n: int) -> Amounts:
    """`n` times as much of each."""
    return tuple([(kind, amount * n) for kind, amount in amounts]) if amounts else ()


def total(one: Amounts, other: Amounts) -> Amounts:
    """Return the sum as of bags."""
    return _each(int.__add__, one, other)


def larger(one: Amounts, other: Amounts) -> Amounts:
    """Return the union as of bags."""
    return _each(max, one, other)


def smaller(one: Amounts, other: Amounts) -> Amounts:
    """Return the intersection as of bags."""
    return _each(min, one, other)


def less(one: Amounts, other: Amounts) -> Amounts:
    """Return the difference as of bags."""
    return _each(int.__sub__, one, other)


def _each(op: Callable[[int, int], int], one: Amounts, other: Amounts) -> Amounts:
    if not one and not other:
        return ()
    mine, theirs = dict(one), dict(other)
    both = [(kind, op(mine.get(kind, 0), theirs.get(kind, 0))) for kind in sorted(mine.keys() | theirs.keys())]
    return tuple([(kind, amount) for kind, amount in both if amount > 0])


# ---- duration

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


def parse_time_limit(text: str) -> float:
    """Return the seconds of an FSD whose bare number is minutes, as in Flux, or of a time limit as Slurm has it;
    0 and infinity set none. Raises InvalidValue.
    """
    if ":" in text or "-" in text.lstrip("-"):
        return parse_clock(text)
    try:
        seconds = parse_duration(f"{text}m")
    except LimitExceeded:
        raise
    except InvalidValue:  # it has a unit, or is none
        seconds = parse_duration(text)
    return 0.0 if math.isinf(seconds) else seconds


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


def rough_duration(duration_s: float) -> str:
    """Return a time as people say it: from ten minutes on in whole minutes, from ten seconds on in whole seconds."""
    unit_s = 60 if duration_s >= 600 else 1 if duration_s >= 10 else 0.01
    return format_duration(round(round(max(duration_s, 0.0) / unit_s) * unit_s, 2))


def doubled_s(first_s: float, failures: int, most_s: float) -> float:
    """Return a pause (seconds) that is doubled by each failure: `first_s` before any, `most_s` at the most."""
    return min(math.ldexp(first_s, min(failures, DOUBLINGS_KEPT)), most_s)


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
