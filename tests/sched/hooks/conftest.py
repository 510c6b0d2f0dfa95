"""Plugins for tests: whatever a test needs at some points, with a record of all calls; and what comes of effects."""

import pytest

from fluxsched.sched.decisions import Annotated, PluginFailed
from fluxsched.sched.hooks import PASS, JobSeen
from tests.sched.site import Bench, make_r


class Recorder:
    """A plugin whose points are the given functions; `calls` are (point, job id, or number of the shape)."""

    def __init__(self, name, reads, calls, points):
        self.name = name
        self.READS = reads
        self.calls = calls
        for point, answer in points.items():
            setattr(self, point, self._point(point, answer))

    def _point(self, point, answer):
        def asked(about, *rest):
            self.calls.append((self.name, point, about.jobid if isinstance(about, JobSeen) else about.number))
            return answer(about, *rest) if callable(answer) else answer

        return asked

    def count(self, point):
        """How often a point of this plugin was asked."""
        return sum(1 for name, called, _ in self.calls if (name, called) == (self.name, point))


@pytest.fixture
def calls():
    """All calls of all plugins of a test, in order."""
    return []


@pytest.fixture
def plugin(calls):
    """plugin("p", reserve=PASS, look=lambda job, rank: ...): an answer, or what makes it."""

    def build(name="p", reads=(), **points):
        return Recorder(name, reads, calls, points or {"reserve": PASS})

    return build


@pytest.fixture
def bench_with():
    """bench_with(plugin, ..., policy=..., ranks="0-3"): targets of 4 cores under these plugins."""

    def build(*plugins, policy=None, ranks="0-3", **properties):
        bench = Bench(policy or "firstfit", plugins={"": plugins})
        bench.grow(make_r(ranks, 4, **properties))
        return bench

    return build


def faults(effects):
    return [each.note for each in effects if isinstance(each, PluginFailed)]


def told(effects):
    return {
        each.jobid: each.annotations["sched"]["reason_pending"]
        for each in effects
        if isinstance(each, Annotated) and each.annotations["sched"].get("reason_pending")
    }
