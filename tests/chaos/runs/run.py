"""One run: a plan is carried out in a simulated world, checkers judge each step, and in the end what is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tests.chaos.checkers.base import Judges, Violation
from tests.chaos.checkers.every import all_checkers
from tests.chaos.faults.faults import bring_about
from tests.chaos.observations import Observation
from tests.chaos.runs.plan import Plan
from tests.chaos.runs.settle import Settling
from tests.chaos.runs.stage import Stage
from tests.chaos.workload.actors import Acquirer, Act, Administrator, JobIds, Submitter, Watcher, schedule
from tests.chaos.workload.generated import ADMINISTRATOR, USERS
from tests.chaos.world.world import World

SLICE_S = 1.0
"""How much time passes between two looks at whether a law is broken (virtual seconds)."""
CHECK_EVERY = 64
"""Events between two looks at the state of the whole instance, which cost more than the events."""
RELEASE_S = 2.0
REFUSED_STARTS_MAX = 10
"""Starts in a row that an instance may be refused once no fault lasts: what refuses these refuses all others."""


@dataclass(frozen=True)
class Verdict:
    """How a run went."""

    seed: int
    violation: Violation | None
    observations: int
    simulated_s: float


def run(plan: Plan, seen: Callable[[Observation], None] | None = None, *, own_checks: bool = True) -> Verdict:
    """Carry it out; `own_checks`: also with the instance's own assertions on its whole state."""
    return _Run(plan, seen, own_checks).go()


class _Run:
    def __init__(self, plan: Plan, seen: Callable[[Observation], None] | None, own_checks: bool) -> None:
        self._plan = plan
        self._seen = seen
        self._own_checks = own_checks
        self._judges = Judges(all_checkers(plan.site.site))
        self._violation: Violation | None = None
        self._count = 0

    def go(self) -> Verdict:
        """The whole story."""
        site = self._plan.site
        with World(self._plan.seed, site.config, None, orphan_timeout_s=site.orphan_timeout_s) as world:
            stage = Stage(world)
            world.observe(self._observe)
            self._populate(stage)
            self._trouble(world)
            self._until(world, self._plan.horizon_s)
            world.calm()
            settling = Settling(stage, site, self._acquirers[-1].user.leave, self._judges.quiet)
            while not settling.is_over and self._violation is None:
                self._until(world, world.now_s + SLICE_S)
                self._violation = self._violation or settling.violation or _refused(world)
            if self._violation is None:
                self._settled(settling)
            return Verdict(self._plan.seed, self._violation, world.time.count, world.now_s)

    def _settled(self, settling: Settling) -> None:
        try:
            self._judges.settled(settling.truth())
        except Violation as violation:
            self._violation = violation

    def _observe(self, one: Observation) -> None:
        self._count += 1
        if self._seen is not None:
            self._seen(one)
        if self._violation is None:
            try:
                self._judges.see(one)
            except Violation as violation:
                self._violation = violation

    def _until(self, world: World, until_s: float) -> None:
        try:
            self._step_until(world, until_s)
        except Exception as exc:  # of the services, or of a judge who cannot read the truth
            self._violation = Violation("instance", f"{type(exc).__name__}: {exc}", world.now_s)

    def _step_until(self, world: World, until_s: float) -> None:
        while self._violation is None and world.step(until_s):
            if world.disk.unnoticed:
                self._violation = Violation("damage", world.disk.unnoticed, world.now_s)
            if self._own_checks and world.time.count % CHECK_EVERY == 0:
                self._check(world)

    def _check(self, world: World) -> None:
        try:
            world.check()
        except AssertionError as fault:
            self._violation = self._violation or Violation("instance", str(fault), world.now_s)

    def _populate(self, world: Stage) -> None:
        site, jobs = self._plan.site, JobIds()
        actors: dict[str, Act] = {name: Submitter(world, name, jobs).act for name in USERS}
        actors[ADMINISTRATOR] = Administrator(world, ADMINISTRATOR).act
        actors["watcher"] = Watcher(world, "watcher", history=False).act
        actors["reader"] = Watcher(world, "reader", history=True).act
        self._acquirers = [Acquirer(world, f"acquirer-{name}", "spare", RELEASE_S) for name in ("spare", "other")]
        if not site.has_lab_scheduler:
            self._acquirers.append(Acquirer(world, "acquirer-lab", "lab", RELEASE_S))
        for acquirer in self._acquirers:
            actors[acquirer.user.name] = acquirer.act
        actors.setdefault("acquirer-lab", _nothing)
        schedule(world, self._plan.actions, actors)

    def _trouble(self, world: World) -> None:
        for _, fault in self._plan.faults:
            world.at(fault.at_s, partial(bring_about, world, fault))


def _refused(world: World) -> Violation | None:
    """Return the violation of an instance that never starts again, if that is so."""
    if world.refused_starts <= REFUSED_STARTS_MAX:
        return None
    return Violation("start", f"the start is refused for ever: {world.refusal}", world.now_s)


def _nothing(number: int, verb: str, arguments: dict[str, object]) -> None:
    """There is no such actor at this site."""
