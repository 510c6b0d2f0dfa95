"""The cases of elastic jobs: ordinary days with them.

Law: as in `cases`.
"""

from __future__ import annotations

from fluxsched.core.jobspec import Jobspec
from fluxsched.runtime.system.clock import Chance
from fluxsched.sim.conformance.cases import LIMITS_S, MACHINE, arrive, days, spec_of, take_away
from fluxsched.sim.conformance.harness import Harness, MakeHarness


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
