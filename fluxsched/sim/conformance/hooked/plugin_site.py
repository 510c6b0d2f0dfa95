"""A small machine with a scheduler, a policy and plugins on it, in virtual time.

Law: the scheduler is the production code; what this keeps is what came of it: who waits, runs, has ended, was denied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from math import inf
from typing import Any, Final

from fluxsched.config.inventory import fake_resources
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.sched.decisions import Denied, Granted, PluginFailed, Raise
from fluxsched.sched.engine.scheduler import DEFAULT_GROUP, Scheduler
from fluxsched.sched.hooks.api import Plugin
from fluxsched.sched.policy import Policy
from fluxsched.sim.conformance.harness import BEGIN_S
from fluxsched.sim.conformance.hooked.plugin_judge import PluginJudge
from fluxsched.sim.conformance.rule_broken import RuleBroken

MACHINE: Final = "4x4+1"
URGENCY: Final = 16

EFFECTS_MAX = 10_000
"""Effects of one turn: with some hundred jobs there are some hundred."""


class PluginSite:
    """`judges` are told the time; `failures` are what the scheduler said of plugins that failed."""

    def __init__(
        self,
        policy: Policy,
        plugins: Sequence[Plugin],
        judges: Sequence[PluginJudge] = (),
        machine: str = MACHINE,
        begin_s: float = BEGIN_S,
    ) -> None:
        self.now_s = begin_s
        self.judges = judges
        self.scheduler = Scheduler(deepcopy(policy), plugins={"": plugins})
        resources = fake_resources(machine)
        self.ranks = resources.ranks
        self.waiting: set[int] = set()
        self.running: dict[int, float] = {}
        self.started: list[tuple[int, float]] = []
        self.denied: set[int] = set()
        self.failures: list[str] = []
        self._run_s: dict[int, float] = {}
        self._last = 0
        self.scheduler.grown(DEFAULT_GROUP, resources, resources.ranks, EMPTY, self.now_s)

    def submit(self, run_s: float, system: Mapping[str, Any] | None = None, userid: int = 0, **asked: Any) -> int:
        """A job comes, with attributes of its own; its limit is a little above its run time."""
        self._last += 1
        jobid = self._last
        raw = Jobspec.from_command(["true"], duration_s=run_s * 1.5, **asked).raw
        raw["attributes"]["system"].update(system or {})
        self._run_s[jobid] = run_s
        self.waiting.add(jobid)
        self._tell_time()
        self._apply(self.scheduler.alloc(jobid, URGENCY, userid, self.now_s, raw, self.now_s))
        return jobid

    def turn(self) -> int:
        """One turn of the scheduler; returns how many jobs have started."""
        self._tell_time()
        before = len(self.started)
        left = EFFECTS_MAX
        for effect in self.scheduler.schedule(self.now_s):
            self._apply([effect])
            left -= 1
            if not left:
                raise RuleBroken("calls", f"more than {EFFECTS_MAX} effects come of one turn: it would never end")
        self.scheduler.check()
        for judge in self.judges:
            judge.check()
        return len(self.started) - before

    def advance(self, to_s: float) -> None:
        """Time goes to the next end of a job, or the next time that the scheduler names, `to_s` at most."""
        next_s = min([to_s, self.scheduler.next_notice_s, *self.running.values()])
        self.now_s = max(self.now_s, next_s)
        self._tell_time()
        for jobid in [jobid for jobid, end_s in self.running.items() if end_s <= self.now_s]:
            self.end(jobid)

    def run(self, for_s: float, instants: int = 300) -> None:
        """Turn after turn, until the time is over, nothing waits or runs, or something was found."""
        end_s = self.now_s + for_s
        for _ in range(instants):
            self.turn()
            if self.now_s >= end_s or not (self.waiting or self.running) or any(judge.found for judge in self.judges):
                return
            self.advance(end_s)

    def end(self, jobid: int) -> None:
        """A running job ends, or a waiting one is canceled."""
        if self.running.pop(jobid, None) is not None:
            self._apply(self.scheduler.free_all(jobid, self.now_s))
        elif jobid in self.waiting:
            self.waiting.discard(jobid)
            self._apply(self.scheduler.cancel(jobid))

    def end_all(self) -> None:
        """Nothing waits or runs any more."""
        for jobid in [*self.waiting, *self.running]:
            self.end(jobid)
        self.turn()

    def offline(self, targets: Idset) -> None:
        """Targets go down, and others come back."""
        for judge in self.judges:
            judge.targets_changed()
        self._apply(self.scheduler.went_online(self.ranks, self.now_s))
        self._apply(self.scheduler.went_offline(targets, self.now_s))

    def nudge(self) -> None:
        """Something happens, so that there is another pass, and nothing comes of it."""
        first = Idset.of([next(iter(self.ranks))])
        self._apply(self.scheduler.went_offline(first, self.now_s))
        self._apply(self.scheduler.went_online(first, self.now_s))

    def why(self, jobid: int) -> str:
        """What the owner is told."""
        return str(self.scheduler.why(jobid, self.now_s).reason)

    def _tell_time(self) -> None:
        for judge in self.judges:
            judge.now_s = self.now_s

    def _apply(self, effects: Sequence[object]) -> None:
        for effect in effects:
            if isinstance(effect, Granted):
                self.waiting.discard(effect.jobid)
                self.running[effect.jobid] = self.now_s + self._run_s[effect.jobid]
                self.started.append((effect.jobid, self.now_s))
                for judge in self.judges:
                    judge.granted(effect.jobid)
            elif isinstance(effect, Denied):
                self.waiting.discard(effect.jobid)
                self.denied.add(effect.jobid)
            elif isinstance(effect, PluginFailed):
                self.failures.append(effect.note)
            elif isinstance(effect, Raise):
                self.running[effect.jobid] = min(self.running.get(effect.jobid, inf), self.now_s)
