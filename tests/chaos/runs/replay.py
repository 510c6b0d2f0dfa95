"""A run by its seed and the numbers of the actions and faults that are kept: what is printed, and given to --replay."""

from __future__ import annotations

from dataclasses import dataclass

from tests.chaos.runs.plan import Plan, make_plan
from tests.chaos.runs.run import Verdict, run
from tests.chaos.runs.shrink import shrink
from tests.chaos.wire import idset


@dataclass(frozen=True)
class Replay:
    """None keeps all."""

    seed: int
    actions: frozenset[int] | None = None
    faults: frozenset[int] | None = None

    @classmethod
    def parse(cls, text: str) -> Replay:
        """From `SEED` or `SEED:ACTIONS:FAULTS`, both idsets."""
        seed, *kept = text.split(":")
        if not kept:
            return cls(int(seed))
        actions, faults = kept
        return cls(int(seed), idset(actions), idset(faults))

    def __str__(self) -> str:
        if self.actions is None or self.faults is None:
            return str(self.seed)
        return f"{self.seed}:{_ranges(self.actions)}:{_ranges(self.faults)}"

    def plan(self) -> Plan:
        """What is to be carried out."""
        plan = make_plan(self.seed)
        if self.actions is None or self.faults is None:
            return plan
        return plan.only(self.actions, self.faults)


def reduced(verdict: Verdict, runs_max: int) -> Replay:
    """The fewest parts of the plan with which the same checker still finds a violation."""
    assert verdict.violation is not None
    checker = verdict.violation.checker
    plan = make_plan(verdict.seed)
    parts = [("fault", number) for number, _ in plan.faults] + [("action", number) for number, _ in plan.actions]

    def replay(kept: list[tuple[str, int]]) -> Replay:
        actions = frozenset(number for kind, number in kept if kind == "action")
        return Replay(verdict.seed, actions, frozenset(number for kind, number in kept if kind == "fault"))

    def fails(kept: list[tuple[str, int]]) -> bool:
        violation = run(replay(kept).plan()).violation
        return violation is not None and violation.checker == checker

    return replay(shrink(parts, fails, runs_max))


def _ranges(ids: frozenset[int]) -> str:
    found: list[list[int]] = []
    for one in sorted(ids):
        if found and found[-1][1] == one - 1:
            found[-1][1] = one
        else:
            found.append([one, one])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in found)
