"""`[fair]` of a configuration: how the accounts of a site share its machine.

Law: this is the one reader, for the file of an instance and for the object that `config.get` gives to a scheduler, ours
or Flux's; what values are right is decided by `FairSettings`, and each fault is noted at its own key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fluxsched.core.amounts import RESERVED, check_kind, in_unit
from fluxsched.core.jsontext import shown
from fluxsched.errors import InvalidParts, InvalidValue, LimitExceeded
from fluxsched.runtime.config.toml_reader import Document, TomlTable
from fluxsched.sched.accounts.measure import RESOURCES_MAX
from fluxsched.sched.accounts.settings import ALL, DOMINANT, SHARES, SIGNALS, USAGES, WEIGHTS, Bank, FairSettings
from fluxsched.sched.accounts.signal import Signal
from fluxsched.sched.accounts.tree import ACCOUNTS_MAX

_COUNTED = frozenset(("core", "gpu"))
_PER_UNIT = re.compile(r"([0-9][0-9.eE+-]*) ?/ ?([A-Za-z]{1,3})", re.ASCII)

DEFAULTS = FairSettings()


def fair_settings(config: Mapping[str, Any]) -> FairSettings:
    """The settings in a configuration as `config.get` gives it. Raises InvalidValue with all that is wrong."""
    document = Document({"fair": config.get("fair", {})}, "the configuration")
    found = read_fair(document.root.table("fair"))
    if document.faults:
        raise InvalidValue("; ".join([fault.text for fault in document.faults]))
    return found


def read_fair(table: TomlTable) -> FairSettings:
    """What a `[fair]` table settles; the defaults where it is wrong, which is noted in its document."""
    signal, usage = table.choice("signal", SIGNALS), table.choice("usage", USAGES)
    shares, half_life_s = table.choice("shares", SHARES), table.duration_s("half-life")
    rate = table.integer("rate", 0)
    cap, budget_min = table.number("cap"), table.number("budget")
    weights, banks = _weights(table.table("weights")), _banks(table.table("banks"))
    table.done()
    try:
        return FairSettings(
            DEFAULTS.signal if signal is None else Signal(signal),
            DEFAULTS.half_life_s if half_life_s is None else half_life_s,
            usage == DOMINANT,
            weights if "weights" in table else WEIGHTS,
            shares == ALL,
            cap,
            budget_min,
            DEFAULTS.rate if rate is None else rate,
            banks if "banks" in table else None,
        )
    except InvalidParts as wrong:
        for path, text in wrong.faults:
            table.fault_at(path, text)
    except LimitExceeded as fault:
        table.fault(None, str(fault))
    return DEFAULTS


def _weights(table: TomlTable) -> dict[str, float]:
    found = {}
    for name in table.names(RESOURCES_MAX):
        weight = table.number_or_text(name, _weight)
        table.accepts(name, _check_resource, name)
        found[name] = 1.0 if weight is None else weight
    return found


def _weight(text: str) -> float:
    """`0.25/GiB`: so much for each of this unit."""
    match = _PER_UNIT.fullmatch(text)
    if match is None:
        raise InvalidValue(f"{shown(text)} is not a weight: give a number, or one by a unit such as '0.25/GiB'")
    try:
        return float(match[1]) / in_unit(1, match[2])
    except ValueError as fault:
        if isinstance(fault, InvalidValue):
            raise
        raise InvalidValue(f"{shown(match[1])} is not a number") from None


def _check_resource(name: str) -> None:
    singular = name.removesuffix("s")
    if name in RESERVED - _COUNTED or singular in _COUNTED - {name}:
        raise InvalidValue(f"{name} is not counted: give weights for core, gpu and countable resources such as memory")
    if name not in _COUNTED:
        check_kind(name)


def _banks(table: TomlTable) -> dict[str, Bank]:
    found = {}
    for name in table.names(ACCOUNTS_MAX):
        given = table.number_or_table(name)
        if isinstance(given, TomlTable):
            found[name] = _bank(given)
        else:
            found[name] = Bank() if given is None else Bank(given)
    return found


def _bank(table: TomlTable) -> Bank:
    weight, parent, cap = table.number("weight"), table.text("parent"), table.number("cap")
    below = table.table("users")
    users = {}
    for name in below.names(ACCOUNTS_MAX):
        given = below.number(name)
        if given is not None:
            users[name] = given
    table.done()
    return Bank(1.0 if weight is None else weight, parent, cap, users)
