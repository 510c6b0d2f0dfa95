"""Events of a simulated site, which change its targets: the reader of site files, and what each event does.

`do` is drain, undrain, offline, online, assign or include, as an administrator or an agent would cause them, or one of
two that are made of these: `outage` (the targets are gone for a while, and so are the jobs on them) and `maintenance`
(an outage before which the targets are drained for the time of `notice`). Law: the file is ours, so every fault in it
is an error with its line, all at once. Where outages of a target overlap it is back when the last of them ends, and
likewise undrained after the last maintenance.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

from fluxsched.core.duration import parse_duration
from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.core.targets import parse_targets
from fluxsched.errors import InvalidValue
from fluxsched.resource.effects import ResourceEffect
from fluxsched.resource.module import ResourceModule
from fluxsched.system.files import read_text

SITE_BYTES_MAX = 1 << 26
"""A million events of 64 bytes: a change every minute for two years."""

FAULTS_SHOWN_MAX = 20
"""Enough to fix at a time."""

OUTAGE: Final = "strike"
"""The step of an outage that ends jobs: the targets go offline and take the jobs there with them."""

_PLAIN = {
    "drain": {"reason"}, "undrain": set(), "offline": set(), "online": set(), "assign": {"group", "graceful"},
    "include": {"graceful"}, "outage": {"for"}, "maintenance": {"for", "notice"},
}  # fmt: skip
_ENDED_BY = {OUTAGE: "online", "drain": "undrain"}
_ALWAYS = {"at", "do", "targets"}
_NEEDED = {"assign": "group", "outage": "for", "maintenance": "for"}


class SiteEvent(NamedTuple):
    """One change: `do` is a plain one or OUTAGE."""

    when_s: float
    do: str
    targets: Idset
    text: str = ""
    graceful: bool = False


def read_site(path: Path, resources: ResourceSet) -> list[SiteEvent]:
    """Return the steps of a file. Raises InvalidValue with a line for each fault."""
    text = read_text(path, "site file", SITE_BYTES_MAX)
    return parse_site(text.splitlines(), str(path), resources)


def parse_site(lines: Iterable[str], name: str, resources: ResourceSet) -> list[SiteEvent]:
    """Return steps in order of time, those of one time in the order of the lines."""
    steps: list[tuple[SiteEvent, int]] = []
    faults: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            steps += _steps(_load(line), resources)
        except InvalidValue as fault:
            faults.append(f"{name}:{number}: {fault}")
    if faults:
        more = len(faults) - FAULTS_SHOWN_MAX
        raise InvalidValue("\n".join(faults[:FAULTS_SHOWN_MAX] + ([f"{name}: and {more} more"] if more > 0 else [])))
    return _joined(sorted(steps, key=_when_s))


def _when_s(row: tuple[SiteEvent, int]) -> float:
    return row[0].when_s


def _joined(rows: Iterable[tuple[SiteEvent, int]]) -> list[SiteEvent]:
    """Return the steps, in order of time, without the targets of an end that another outage or maintenance goes on
    having.
    """
    open_at: Counter[tuple[str, int]] = Counter()  # by what ends it, and rank
    found: list[SiteEvent] = []
    for _, group in groupby(rows, _when_s):
        same = list(group)
        for step, change in same:
            if change > 0:
                open_at.update((_ENDED_BY[step.do], rank) for rank in step.targets)
        for step, change in same:
            if change < 0:
                open_at.subtract((step.do, rank) for rank in step.targets)
                step = step._replace(targets=Idset.of([rank for rank in step.targets if not open_at[step.do, rank]]))
            if step.targets:
                found.append(step)
    return found


def _load(line: str) -> dict[str, Any]:
    try:
        obj = json.loads(line)
    except (ValueError, RecursionError):
        raise InvalidValue("not JSON") from None
    do = obj.get("do") if isinstance(obj, dict) else None
    if not isinstance(do, str) or do not in _PLAIN:
        raise InvalidValue(f"do is {str(do)[:20]!r}, not one of {', '.join(_PLAIN)}")
    assert isinstance(obj, dict)
    if unknown := sorted(obj.keys() - _ALWAYS - _PLAIN[do]):
        allowed = ", ".join(sorted(_ALWAYS | _PLAIN[do]))
        raise InvalidValue(f"{do}: unknown key {', '.join(unknown)[:40]}: the keys are {allowed}")
    if missing := sorted({*_ALWAYS, _NEEDED.get(do, "do")} - obj.keys()):
        raise InvalidValue(f"{do} needs {', '.join(missing)}")
    for key in ("targets", "group", "reason"):
        if not isinstance(obj.get(key, ""), str):
            raise InvalidValue(f"{key} is not a text")
    return obj


def _steps(obj: dict[str, Any], resources: ResourceSet) -> list[tuple[SiteEvent, int]]:
    """Return the steps of a line; 1 with what lasts until a step with -1, else 0."""
    at_s = _time(obj, "at")
    targets = parse_targets(obj["targets"], resources)
    if not targets:
        raise InvalidValue("no targets: name at least one")
    do: str = obj["do"]
    if do == "outage":
        return [(SiteEvent(at_s, OUTAGE, targets), 1), (SiteEvent(at_s + _time(obj, "for"), "online", targets), -1)]
    if do == "maintenance":
        back_s = at_s + _time(obj, "for")
        return [
            (SiteEvent(max(0.0, at_s - _time(obj, "notice")), "drain", targets, "maintenance"), 1),
            (SiteEvent(at_s, OUTAGE, targets), 1),
            (SiteEvent(back_s, "online", targets), -1),
            (SiteEvent(back_s, "undrain", targets), -1),
        ]
    text = obj.get("group") or obj.get("reason") or ""
    return [(SiteEvent(at_s, do, targets, text, bool(obj.get("graceful"))), 0)]


def _time(obj: dict[str, Any], key: str) -> float:
    try:
        seconds = parse_duration(obj.get(key, 0))
    except InvalidValue as fault:
        raise InvalidValue(f"{key}: {fault}") from None
    if seconds == float("inf"):
        raise InvalidValue(f"{key}: give a finite time")
    return seconds


def effects_of(step: SiteEvent, module: ResourceModule, now_s: float) -> list[ResourceEffect]:
    """Return the effects of the event, as the resource module reports them."""
    targets = step.targets
    match step.do:
        case "drain":
            return module.drain(targets, step.text or None, "update", None, now_s)
        case "undrain":
            return module.undrain(targets, None, "update", None, now_s)
        case "online":
            return module.set_online(targets, now_s)
        case "assign":
            return module.assign(targets, step.text, now_s, step.graceful)
        case "include":
            return module.include(targets, now_s, step.graceful)
        case _:
            return module.set_offline(targets, now_s)
