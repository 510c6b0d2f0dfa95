"""Plugins for tests: whatever a test needs at some points, with a record of all calls; and what comes of effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fluxsched.core.idset import Idset
from fluxsched.sched.effects import Annotated, Effect, Granted, PluginFailed
from fluxsched.sched.hooks.api import PASS, JobSeen
from fluxsched.sched.policies.firstfit import FirstFit

Build = Callable[..., Any]


class Recorder:
    """A plugin whose points are the given functions; `calls` are (point, job id, or number of the shape)."""

    def __init__(self, name: str, reads: tuple[str, ...], calls: list[tuple[str, str, int]], points: Any) -> None:
        self.name = name
        self.READS = reads
        self.calls = calls
        for point, answer in points.items():
            setattr(self, point, self._point(point, answer))

    def _point(self, point: str, answer: Any) -> Callable[..., Any]:
        def asked(about: Any, *rest: Any) -> Any:
            self.calls.append((self.name, point, about.jobid if isinstance(about, JobSeen) else about.number))
            return answer(about, *rest) if callable(answer) else answer

        return asked

    def count(self, point: str) -> int:
        """How often a point of this plugin was asked."""
        return sum(1 for name, called, _ in self.calls if (name, called) == (self.name, point))


@pytest.fixture
def calls() -> list[tuple[str, str, int]]:
    """All calls of all plugins of a test, in order."""
    return []


@pytest.fixture
def plugin(calls: list[tuple[str, str, int]]) -> Callable[..., Recorder]:
    """plugin("p", reserve=PASS, look=lambda job, rank: ...): an answer, or what makes it."""

    def build(name: str = "p", reads: tuple[str, ...] = (), **points: Any) -> Recorder:
        return Recorder(name, reads, calls, points or {"reserve": PASS})

    return build


@pytest.fixture
def bench_with(bench_of: Build, make_r: Build) -> Build:
    """bench_with(plugin, ..., policy=..., ranks="0-3"): targets of 4 cores under these plugins."""

    def build(*plugins: Any, policy: Any = None, ranks: str = "0-3", **properties: str) -> Any:
        bench = bench_of(policy or FirstFit(), plugins={"": plugins})
        bench.grow(make_r(ranks, 4, **properties))
        return bench

    return build


def started(effects: list[Effect]) -> dict[int, str]:
    """Where jobs started."""
    grants = [each for each in effects if isinstance(each, Granted)]
    return {each.jobid: str(Idset.of([part.rank for part in each.fit.parts])) for each in grants}


def faults(effects: list[Effect]) -> list[str]:
    return [each.note for each in effects if isinstance(each, PluginFailed)]


def told(effects: list[Effect]) -> dict[int, str]:
    return {
        each.jobid: each.annotations["sched"]["reason_pending"]
        for each in effects
        if isinstance(each, Annotated) and each.annotations["sched"].get("reason_pending")
    }
