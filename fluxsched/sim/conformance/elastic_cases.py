"""The cases of elastic jobs: ordinary days with them, and some that have the machine when others come.

Law: as in `cases`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.sim.conformance.cases import FAR_S, LIMITS_S, MACHINE, STEP_S, arrive, days, spec_of, take_away
from fluxsched.sim.conformance.harness import GRACE_S, Harness, MakeHarness
from fluxsched.sim.conformance.rule_broken import RuleBroken
from fluxsched.sim.conformance.sizes import EXTRAS
from fluxsched.system.clock import Chance

FULL = 3
"""Passes after which an elastic job has all of an idle machine, as large as it may be."""

TURNS = 8
"""Passes within which those in line have what others had beyond their minima: each takes some, one after the other."""

TARGETS = 8
"""Targets of the machine in `extras`, all of which elastic jobs have at first."""

USERS = 3
"""Users whose jobs come then, at most."""


def elastic_spec(limit_s: float, least: int, most: int) -> Jobspec:
    """A job that may have from `least` to `most` whole targets while it runs."""
    return spec_of(limit_s, nodes=f"{least}-{most}", exclusive=True, elastic=True)


def parts_spec(limit_s: float, least: int, most: int) -> Jobspec:
    """The same of a second part, beside one target of the first."""
    nodes = []
    for label, count in (("lead", 1), ("work", {"min": least, "max": most, "operator": "+", "operand": 1})):
        slot = {"type": "slot", "count": 1, "label": label, "with": [{"type": "core", "count": 1}]}
        nodes.append({"type": "node", "count": count, "exclusive": True, "with": [slot]})
    tasks = [{"command": ["true"], "slot": label, "count": {"per_slot": 1}} for label in ("lead", "work")]
    system = {"duration": limit_s, "fluxsched": {"elastic": True}}
    return Jobspec.parse({"version": 999, "resources": nodes, "tasks": tasks, "attributes": {"system": system}})


def elastic(make: MakeHarness, chance: Chance) -> bool:
    """Elastic jobs among others, on a machine whose targets come and go."""
    harness = make(MACHINE)

    def come(harness: Harness, chance: Chance) -> None:
        what = chance.random()
        if what < 0.2:
            take_away(harness, chance)
        elif what < 0.5:
            harness.restore()
        else:
            spec, limit_s = chance.choice((elastic_spec, parts_spec)), chance.choice(LIMITS_S)
            least = chance.randint(1, 3)
            harness.submit(spec(limit_s, least, least + chance.randint(1, 4)), limit_s)

    days(harness, chance, come)
    harness.restore()
    arrive(harness, chance, 1)
    harness.finish()
    return True


def extras(make: MakeHarness, chance: Chance) -> bool:
    """Elastic jobs have the machine, when others come that all fit beside the minima, each within its user's share.

    Targets that come free at that moment are not for growing either.
    """
    harness = make(f"{TARGETS}x4")
    users = chance.randint(1, USERS)
    asked = [chance.randint(1, TARGETS // (users + 1)) for _ in range(users)]  # within equal shares of all users
    ends = harness.submit(_whole(chance.randint(1, sum(asked))), FAR_S) if chance.random() < 0.5 else None
    elastic = [harness.submit(spec, FAR_S) for spec in _elastic_specs(chance, TARGETS - sum(asked))]
    for _ in range(FULL):
        harness.decide()
        harness.advance(harness.now_s + STEP_S)
    held = sum([len(held.ranks) for held in harness.running.values()])
    if held < TARGETS or not harness.running.keys() >= set(elastic):
        return False  # whether those start that wait is for other rules
    if ends is not None:
        harness.end(ends)
    others = {harness.submit(_whole(count), FAR_S, userid=2 + at) for at, count in enumerate(asked)}
    for _ in range(TURNS):
        before = _sizes(harness, elastic)
        harness.decide()
        waiting = sorted(others - harness.running.keys())
        if not waiting:
            break
        after = _sizes(harness, elastic)
        for jobid in elastic:
            if after[jobid] > before[jobid]:
                grows, waits = format_f58(jobid), format_f58(waiting[0])
                text = f"job {grows} grows, although job {waits}, which is within its share, could start there"
                raise RuleBroken(EXTRAS, text)
        harness.advance(harness.now_s + GRACE_S)
    else:
        text = f"job {format_f58(waiting[0])} waits, although elastic jobs have more than their minima"
        raise RuleBroken(EXTRAS, f"{text}, and it needs no more")
    harness.finish()
    return True


def _elastic_specs(chance: Chance, spare: int) -> Iterator[Jobspec]:
    """One or two elastic jobs whose minima are `spare` together at most."""
    least = chance.randint(1, spare)
    several = least > 1 and chance.random() < 0.5
    yield parts_spec(FAR_S, least - 1, TARGETS) if several else elastic_spec(FAR_S, least, TARGETS)
    if least < spare:
        yield elastic_spec(FAR_S, chance.randint(1, spare - least), TARGETS)


def _whole(count: int) -> Jobspec:
    return spec_of(FAR_S, nodes=count, exclusive=True)


def _sizes(harness: Harness, jobids: Iterable[int]) -> dict[int, int]:
    return {jobid: len(harness.running[jobid].ranks) if jobid in harness.running else 0 for jobid in jobids}
