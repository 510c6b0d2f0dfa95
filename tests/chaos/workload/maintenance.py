"""What administrators do with parts of the machine beside the usual drains: outages that they plan or write into the
configuration, reservations, drains of cores and GPUs, and losses where there are spares; and jobs with begin times and
deadlines.

It is drawn apart from the other actions, so that these are what they were, and only for some of the seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from tests.chaos.checkers.base import DRAIN_REASON, OUTAGE_REASON, OUTAGE_SET
from tests.chaos.faults.faults import AFTER_S, Fault
from tests.chaos.observations import EPOCH_S
from tests.chaos.wire import text_of
from tests.chaos.workload.actions import Action
from tests.chaos.workload.generated import ADMINISTRATOR, USERS
from tests.chaos.workload.sites import CORES, GPUS, RUNAWAY_S, ChaosSite

AHEAD_S = (-5.0, 0.0, 1.0, 5.0, 20.0, 60.0)
"""How long after it is planned an outage begins (seconds)."""
LASTS_S = (0.5, 3.0, 10.0, 45.0)
ENDING_S = 90.0
"""How long an outage lasts that is to end a job: long enough to tell that this does not run on (seconds)."""
NAMES = ("upd", "net", "fan")
OUTAGES = 0.5
"""Which share of the seeds has outages."""
DEDICATED = 0.2
"""Which share has dedicated time."""
RESERVED, CONFIGURED, TIMED = 0.4, 0.3, 0.4
"""Which shares of the later seeds have reservations, outages in the configuration, and jobs with a deadline."""
RESERVATIONS = ("res1", "res2")
OTHERS = "54321"
"""A user who is not the one of the tests."""

Make = Callable[[Random, ChaosSite, float], Iterator[Action]]


def make_maintenance(chance: Random, site: ChaosSite, count: int, horizon_s: float) -> list[Action]:
    """Up to `count` actions and what follows on them, in order of time."""
    kinds: list[Make] = [_outage, _outage, _outage, _crossed] if chance.random() < OUTAGES else []
    made = _made(chance, site, kinds, count, horizon_s) if kinds else []
    if site.has_parts:
        made += _made(chance, site, [_part], count, horizon_s)
    if site.site.spares:
        made += _made(chance, site, [_loss], count, horizon_s)
    if chance.random() < DEDICATED:
        made += _made(chance, site, [_dedicated], count, horizon_s)
    return sorted(made, key=lambda action: action.at_s)


def make_bookings(
    chance: Random, site: ChaosSite, count: int, horizon_s: float, *, is_due: bool = False
) -> list[Action]:
    """Up to `count` of each of what came later, and what follows on them, in order of time; `is_due`: of all."""
    made: list[Action] = []
    for share, make in ((RESERVED, _reserved), (CONFIGURED, _configured), (TIMED, _timed)):
        if is_due or chance.random() < share:
            made += _made(chance, site, [make], count, horizon_s)
    if site.site.spares:
        made += _made(chance, site, [_too_large], count, horizon_s)
    return sorted(made, key=lambda action: action.at_s)


def _made(chance: Random, site: ChaosSite, kinds: list[Make], count: int, horizon_s: float) -> list[Action]:
    made: list[Action] = []
    for _ in range(chance.randint(1, count)):
        made += chance.choice(kinds)(chance, site, round(chance.uniform(0.5, horizon_s), 3))
    return made


def make_turn_faults(chance: Random, actions: list[Action], horizon_s: float) -> list[Fault]:
    """Some when an outage begins or ends."""
    planned = [action.arguments for action in actions if action.verb in OUTAGE_SET]
    turns_s = [outage[key] - EPOCH_S for outage in planned for key in ("from", "until")]
    made = []
    for at_s in sorted(turns_s):
        if 0.0 < at_s < horizon_s and chance.random() < 0.3:
            kind = chance.choice(("kill-instance", "kill-instance-at-effect", "kill-scheduler", "cut"))
            count = float(chance.randint(1, 12)) if kind.endswith("effect") else 0.0
            after_s = chance.choice(AFTER_S) * chance.choice((-1.0, 1.0))
            victim = "sched-main" if kind in ("kill-scheduler", "cut") else ""
            made.append(Fault(round(max(0.0, at_s + after_s), 4), kind, victim, count))
    return made


def _targets(chance: Random, site: ChaosSite) -> str:
    return text_of(set(chance.sample(range(site.hosts), min(site.hosts, chance.choice((1, 1, 2, 3, 6))))))


def _outage(chance: Random, site: ChaosSite, at_s: float) -> Iterator[Action]:
    """One is planned, often changed, and sometimes called off, before its begin or while it is on."""
    name = chance.choice(NAMES)
    yield Action(at_s, ADMINISTRATOR, "resource.outage-add", _planned(chance, site, at_s, name))
    if chance.random() < 0.3:
        at_s = round(at_s + chance.choice((0.01, 1.0, 10.0)) * chance.random(), 3)
        yield Action(at_s, ADMINISTRATOR, "resource.outage-update", _planned(chance, site, at_s, name))
    if chance.random() < 0.4:
        at_s = round(at_s + chance.choice((0.01, 1.0, 10.0, 60.0)) * chance.random(), 3)
        yield Action(at_s, ADMINISTRATOR, "resource.outage-remove", {"name": name})


def _dedicated(chance: Random, site: ChaosSite, at_s: float) -> Iterator[Action]:
    """Targets are a queue's for a while, and jobs of it and of others want them."""
    queue, others = chance.choice((("lab", "batch"), ("batch", "lab")))
    ranks = [rank for rank, group in site.site.groups.items() if group == site.site.queues[others]]
    targets = text_of(set(chance.sample(ranks, chance.randint(1, len(ranks)))))
    planned = _planned(chance, site, at_s, "ded") | {"targets": targets, "every": 0.0, "end_jobs": False}
    yield Action(at_s, ADMINISTRATOR, "resource.outage-add", planned | {"queue": queue})
    bank = {"bank": site.banks[0]} if site.banks else {}
    for name in (queue, others):
        wanted = {
            "urgency": 20, "queue": name, "cores": CORES, "nodes": 1, "count": 2, "run_s": chance.choice((1.0, 10.0)),
            "duration_s": chance.choice((5.0, 20.0)),
        }  # fmt: skip
        yield Action(round(at_s + chance.uniform(0.0, 5.0), 3), USERS[0], "submit", wanted | bank)
    if chance.random() < 0.3:
        at_s = round(at_s + chance.choice((1.0, 10.0)) * chance.random(), 3)
        yield Action(at_s, ADMINISTRATOR, "resource.outage-remove", {"name": "ded"})


def _crossed(chance: Random, site: ChaosSite, at_s: float) -> Iterator[Action]:
    """A long job, and an outage that is to end it."""
    bank = {"bank": site.banks[0]} if site.banks else {}
    long = {"urgency": 31, "queue": "batch", "cores": 1, "nodes": 0, "count": 1, "run_s": 300.0, "duration_s": 120.0}
    yield Action(at_s, USERS[0], "submit", long | bank)
    at_s = round(at_s + 2.0 + chance.random(), 3)
    planned = _planned(chance, site, at_s, NAMES[0]) | {"targets": text_of(set(range(site.hosts))), "end_jobs": True}
    from_s = EPOCH_S + at_s + 1.0
    yield Action(at_s, ADMINISTRATOR, "resource.outage-add", planned | {"from": from_s, "until": from_s + ENDING_S})


def _part(chance: Random, site: ChaosSite, at_s: float) -> Iterator[Action]:
    """Some cores or GPUs are drained, now and then all, while jobs want them; mostly they come back."""
    targets = _targets(chance, site)
    parts = {"cores": text_of(set(chance.sample(range(CORES), chance.choice((1, 1, 2, CORES)))))}
    if chance.random() < 0.3:
        parts = {"gpus": text_of(set(chance.sample(range(GPUS), chance.choice((1, GPUS)))))}
        bank = {"bank": site.banks[0]} if site.banks else {}
        wanted = {
            "urgency": 16, "queue": "batch", "cores": 1, "nodes": 0, "count": chance.choice((1, 4)), "gpus": 1,
            "run_s": chance.choice((0.2, 3.0)), "duration_s": RUNAWAY_S,
        }  # fmt: skip
        yield Action(at_s, USERS[0], "submit", wanted | bank)
        at_s = round(at_s + chance.choice((0.0, 0.01, 1.0)) * chance.random(), 3)
    drain: dict[str, Any] = {"targets": targets, "reason": DRAIN_REASON} | parts
    drain |= chance.choice(({}, {"mode": "update"}, {"mode": "overwrite"}))
    if drain.get("mode") != "update" and chance.random() < 0.4:
        drain["for"] = chance.choice((0.5, 3.0, 20.0))
    yield Action(at_s, ADMINISTRATOR, "resource.drain", drain)
    if chance.random() < 0.6:
        at_s = round(at_s + chance.choice((0.01, 1.0, 10.0, 60.0)) * chance.random(), 3)
        mode = chance.choice(({}, {"mode": "update"}))
        yield Action(at_s, ADMINISTRATOR, "resource.undrain", {"targets": targets} | parts | mode)


def _loss(chance: Random, site: ChaosSite, at_s: float) -> Iterator[Action]:
    """A target fails, now and then a spare, while a job of its group runs; mostly it is repaired."""
    spares = sorted(site.site.spares)
    target = chance.choice((*range(site.hosts), *spares))
    yield Action(at_s, ADMINISTRATOR, "resource.drain", {"targets": str(target), "reason": DRAIN_REASON})
    if target not in spares and chance.random() < 0.5:
        group = site.site.groups[target]
        bank = {"bank": site.banks[0]} if site.banks else {}
        wanted = {
            "urgency": 20, "queue": "lab" if group == "lab" else "batch", "cores": CORES, "nodes": 1,
            "count": list(site.site.groups.values()).count(group), "run_s": chance.choice((1.0, 60.0)),
            "duration_s": 120.0,
        }  # fmt: skip
        yield Action(round(at_s + 0.01, 3), USERS[0], "submit", wanted | bank)
    if chance.random() < 0.7:
        at_s = round(at_s + chance.choice((0.01, 1.0, 10.0, 60.0)) * chance.random(), 3)
        yield Action(at_s, ADMINISTRATOR, "resource.undrain", {"targets": str(target)})


def _bank(site: ChaosSite) -> dict[str, str]:
    return {"bank": site.banks[0]} if site.banks else {}


def _reserved(chance: Random, site: ChaosSite, at_s: float) -> Iterator[Action]:
    """A reservation, now and then for others, with jobs that name it and one that wants its targets."""
    name, queue = chance.choice(RESERVATIONS), chance.choice(("batch", "batch", "lab"))
    reserved = {"reservation": True, "users": [OTHERS] if chance.random() < 0.2 else []}
    ranks = [rank for rank, group in site.site.groups.items() if group == site.site.queues[queue]]
    targets = text_of(set(chance.sample(ranks, chance.randint(1, len(ranks)))))
    planned = _planned(chance, site, at_s, name) | reserved | {"targets": targets}
    lasts_s = chance.choice((5.0, 15.0, 45.0))
    planned["from"] = round(EPOCH_S + at_s + chance.choice((-1.0, 1.0, 5.0, 20.0)), 3)
    planned |= {"until": planned["from"] + lasts_s, "every": planned["every"] and 2 * lasts_s}
    yield Action(at_s, ADMINISTRATOR, "resource.outage-add", planned)
    for _ in range(chance.choice((1, 2, 3))):
        wanted = {
            "urgency": 16, "queue": queue, "cores": chance.choice((1, CORES)), "nodes": chance.choice((0, 1)),
            "count": chance.choice((1, 2)), "run_s": chance.choice((0.2, 3.0, 60.0)),
            "duration_s": lasts_s - chance.choice((1.0, 3.0, 4.0)),
        }  # fmt: skip
        if chance.random() < 0.7:
            wanted["reservation"] = name
        yield Action(round(at_s + chance.choice((0.1, 1.0, 5.0)), 3), USERS[0], "submit", wanted | _bank(site))
    if chance.random() < 0.3:
        later_s = round(at_s + chance.choice((0.01, 1.0, 10.0)) * chance.random(), 3)
        again = _planned(chance, site, later_s, name) | reserved
        yield Action(later_s, ADMINISTRATOR, "resource.outage-update", again)
    if chance.random() < 0.4:
        later_s = round(at_s + chance.choice((1.0, 10.0, 60.0)) * chance.random(), 3)
        yield Action(later_s, ADMINISTRATOR, "resource.outage-remove", {"name": name})


def _configured(chance: Random, site: ChaosSite, at_s: float) -> Iterator[Action]:
    """The file names outages, other ones later, and in the end often none."""
    for _ in range(chance.choice((1, 2, 3))):
        names = chance.choice((("cfg1",), ("cfg1", "cfg2"), ("cfg2",), ()))
        rows = tuple(_planned(chance, site, at_s, name) for name in names)
        for row in rows:
            del row["every"]
        yield Action(at_s, ADMINISTRATOR, "configure", {"outages": rows})
        at_s = round(at_s + chance.choice((0.01, 2.0, 20.0)) * chance.random(), 3)


def _timed(chance: Random, site: ChaosSite, at_s: float) -> Iterator[Action]:
    """Jobs that begin later, or are to be over by a time, some of which others keep waiting."""
    for _ in range(chance.choice((1, 2))):
        limit_s = chance.choice((5.0, 20.0))
        wanted = {
            "urgency": 20, "queue": chance.choice(("batch", "lab")), "cores": CORES, "nodes": 0,
            "count": chance.choice((1, 3, 8)), "run_s": chance.choice((0.2, 3.0, 10.0)), "duration_s": limit_s,
        }  # fmt: skip
        if chance.random() < 0.5:
            wanted["begin_s"] = round(EPOCH_S + at_s + chance.choice((-1.0, 1.0, 10.0, 40.0)), 3)
        if chance.random() < 0.7:
            lasts_s = limit_s + chance.choice((0.01, 1.0, 10.0, 30.0))
            wanted["deadline_s"] = round(EPOCH_S + at_s + lasts_s, 3)
        yield Action(round(at_s + chance.uniform(0.0, 0.5), 3), USERS[0], "submit", wanted | _bank(site))


def _too_large(chance: Random, site: ChaosSite, at_s: float) -> Iterator[Action]:
    """A target that has a spare fails, and a job wants one node more than the group has."""
    target = chance.randrange(site.hosts)
    yield Action(at_s, ADMINISTRATOR, "resource.drain", {"targets": str(target), "reason": DRAIN_REASON})
    group = site.site.groups[target]
    wanted = {
        "urgency": 16, "queue": "lab" if group == "lab" else "batch", "cores": 1, "run_s": 0.2, "duration_s": 60.0,
        "nodes": list(site.site.groups.values()).count(group) + chance.choice((0, 1, 1)), "count": 1,
    }  # fmt: skip
    yield Action(round(at_s + 1.0, 3), USERS[0], "submit", wanted | _bank(site))
    if chance.random() < 0.5:
        yield Action(round(at_s + 3.0, 3), ADMINISTRATOR, "resource.undrain", {"targets": str(target)})


def _planned(chance: Random, site: ChaosSite, at_s: float, name: str) -> dict[str, Any]:
    from_s = round(EPOCH_S + at_s + chance.choice(AHEAD_S) + chance.random(), 3)
    lasts_s = chance.choice(LASTS_S)
    planned: dict[str, Any] = {
        "name": name, "targets": _targets(chance, site), "from": from_s, "until": from_s + lasts_s,
        "reason": OUTAGE_REASON, "every": 0.0, "end_jobs": False,
    }  # fmt: skip
    if chance.random() < 0.2:
        planned["every"] = lasts_s * chance.choice((1.5, 4.0))
    if chance.random() < 0.4:
        planned["end_jobs"] = True
    return planned
