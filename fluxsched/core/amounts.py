"""Amounts of countable resources: memory in bytes, licences, whatever a site names; so many of a kind, none with an id.

Law: an amount is a whole number within 1 and AMOUNT_MAX, in the smallest unit of its kind; bytes where a unit of bytes
is given. Amounts are a sorted tuple of (kind, amount), so equal ones are equal and hash alike; () is none. Their
algebra is that of bags: union takes the larger amount, intersection the smaller one, a difference stops at nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

from fluxsched.core.documents import shown
from fluxsched.core.text import kind_of
from fluxsched.errors import InvalidValue, LimitExceeded

Amounts: TypeAlias = tuple[tuple[str, int], ...]

AMOUNT_MAX = 1 << 60
"""An exbibyte: more than the memory of any machine, and twice eight times it still fits in the 64 bits of msgpack."""

AMOUNT_KINDS_MAX = 16
"""Kinds that one target, one instance or one request may have: each is looked at whenever a job is placed."""

MEMORY: Final = "memory"
"""The kind in bytes: it is discovered, shown in binary units, and limits the jobs that ask for it."""

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
    """Return the name of a countable kind: a letter, then letters, digits and `_.-`, 64 in all, none of RFC 25's types.
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
