"""Quantities as Kubernetes writes them: `2`, `500m`, `4Gi`, `1.5G`, `1e3`; vcore in thousandths, others in their unit.

Law: a quantity is a whole number of units within 0 and AMOUNT_MAX; nothing is rounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from fluxsched.core.amounts import AMOUNT_MAX
from fluxsched.core.jsontext import shown
from fluxsched.errors import InvalidValue, LimitExceeded

VCORE: Final = "vcore"
MEMORY: Final = "memory"
VCORE_UNITS: Final = 1000
"""Number of units of one vcore."""

_QUANTITY: Final = re.compile(r"([0-9]{1,25})(?:\.([0-9]{0,25}))?(?:[eE]([+-]?[0-9]{1,2})|([A-Za-z]{0,2}))", re.ASCII)

_SUFFIXES: Final[Mapping[str, int]] = (
    {"": 1}
    | {suffix: 1000**power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)}
    | {suffix: 1024**power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)}
)


def parse_quantity(kind: str, text: str) -> int:
    """Units of a kind. Raises InvalidValue for what is not a quantity or not whole, LimitExceeded above AMOUNT_MAX."""
    match = _QUANTITY.fullmatch(text.strip())
    suffix = "" if match is None else match[4] or ""
    if match is None or (suffix not in _SUFFIXES and suffix != "m"):
        raise InvalidValue(f"{shown(text)} is not a quantity such as 2, 500m or 4Gi")
    whole, decimals, exponent = match[1], match[2] or "", int(match[3] or 0)
    units = int(whole + decimals) * _SUFFIXES.get(suffix, 1) * (VCORE_UNITS if kind == VCORE else 1)
    tens = exponent - len(decimals) - (3 if suffix == "m" else 0)
    found, rest = divmod(units * _ten_to(tens), _ten_to(-tens))
    if rest:
        raise InvalidValue(f"{shown(text)} is not a whole number of {'thousandths' if kind == VCORE else 'units'}")
    if found > AMOUNT_MAX:
        raise LimitExceeded(f"{shown(text)} is above the limit of {AMOUNT_MAX}")
    return found


def _ten_to(power: int) -> int:
    """1 for a negative power."""
    return int(10 ** max(0, power))


def quantity_text(kind: str, amount: int) -> str:
    """`2`, `500m`, `4Gi`: as it is written in a configuration."""
    if kind == VCORE:
        return f"{amount}m" if amount % VCORE_UNITS else str(amount // VCORE_UNITS)
    suffix = ""
    for larger in ("Ki", "Mi", "Gi", "Ti", "Pi") if kind == MEMORY and amount else ():
        if amount % 1024:
            break
        amount, suffix = amount // 1024, larger
    return f"{amount}{suffix}"
