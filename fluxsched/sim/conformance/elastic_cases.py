"""The cases of elastic jobs: ordinary days with them, and one that has the machine when another job comes.

Law: as in `cases`.
"""

from __future__ import annotations

from fluxsched.core.jobspec import Jobspec
from fluxsched.runtime.system.clock import Chance
from fluxsched.sim.conformance.cases import FAR_S, LIMITS_S, MACHINE, STEP_S, arrive, days, spec_of, take_away
from fluxsched.sim.conformance.harness import GRACE_S, Harness, MakeHarness
from fluxsched.sim.conformance.rule_broken import RuleBroken
from fluxsched.sim.conformance.sizes import EXTRAS

FULL = 3
"""Passes after which an elastic job has all of an idle machine, as large as it may be."""

TURNS = 8
"""Passes within which the first in line has what others had beyond their minima: each takes some, and they end."""


def elastic_spec(limit_s: float, least: int, most: int) -> Jobspec:
    """So many whole targets, while it runs."""
    return spec_of(limit_s, nodes=f"{least}-{most}", exclusive=True, elastic=True)


def parts_spec(limit_s: float, least: int, most: int) -> Jobspec:
    """A target of its own, and so many others."""
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
    """An elastic job has the machine; another user's comes, within its share, that fits beside its minimum."""
    harness = make("8x4")
    large = harness.submit(chance.choice((elastic_spec, parts_spec))(FAR_S, chance.randint(1, 3), 8), FAR_S)
    for _ in range(FULL):
        harness.decide()
        harness.advance(harness.now_s + STEP_S)
    if large not in harness.running or len(harness.running[large].ranks) < 8:
        return False
    other = harness.submit(spec_of(FAR_S, nodes=chance.randint(1, 4), exclusive=True), FAR_S, userid=2)
    for _ in range(TURNS):
        before = len(harness.running[large].ranks)
        harness.decide()
        if other in harness.running:
            break
        if large in harness.running and len(harness.running[large].ranks) > before:
            text = "an elastic job grows, although a job within its share waits that could start there"
            raise RuleBroken(EXTRAS, text)
        harness.advance(harness.now_s + GRACE_S)
    if other not in harness.running:
        text = "the first in line waits, although an elastic job has more than its minimum, and it needs no more"
        raise RuleBroken(EXTRAS, text)
    harness.finish()
    return True
