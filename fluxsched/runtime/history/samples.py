"""Samples of the machine and its queues: sums over the seconds that were observed, which can be added.

Law: two samples together are a sample of the longer time, whatever their order, so what is kept is made coarser by
addition and the means stay right. A time that was not observed has no sample: a gap is not zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from fluxsched.runtime.loop.histogram import WAITS_S

CORE_STATES: Final = ("allocated", "free", "drained", "down", "excluded")
"""Each core is in one; those that no job holds are in that of their target."""
RESULTS: Final = ("completed", "failed", "canceled", "timeout")


class JobFlow(NamedTuple):
    """Jobs submitted, started, ended by result, and waits of those that started by `WAITS_S`, since some time."""

    submitted: int
    started: int
    ended: dict[str, int]
    waits: tuple[int, ...]


class Moment(NamedTuple):
    """What a look at the instance shows."""

    cores: Mapping[str, int]
    queues: Mapping[str, tuple[int, int]]
    """Pending and running jobs by queue."""
    flow: JobFlow


class MachineSample(msgspec.Struct):
    """Sums over `observed_s` seconds: core-seconds by state, job-seconds by queue, and counts of jobs."""

    observed_s: float = 0.0
    cores: list[float] = msgspec.field(default_factory=lambda: [0.0] * len(CORE_STATES))
    queues: dict[str, list[float]] = msgspec.field(default_factory=dict)
    submitted: int = 0
    started: int = 0
    ended: list[int] = msgspec.field(default_factory=lambda: [0] * len(RESULTS))
    waits: dict[int, int] = msgspec.field(default_factory=dict)

    @classmethod
    def between(cls, begin: Moment, end: Moment, observed_s: float) -> MachineSample:
        """What happened in so many seconds from one look to the next; what changed, changed evenly."""
        half_s = observed_s / 2
        queues: dict[str, list[float]] = {}
        for moment in (begin, end):
            for name, (pending, running) in moment.queues.items():
                sums = queues.setdefault(name, [0.0, 0.0])
                sums[0] += pending * half_s
                sums[1] += running * half_s
        return cls(
            observed_s=observed_s,
            cores=[(begin.cores[state] + end.cores[state]) * half_s for state in CORE_STATES],
            queues=queues,
            submitted=end.flow.submitted - begin.flow.submitted,
            started=end.flow.started - begin.flow.started,
            ended=[end.flow.ended[name] - begin.flow.ended[name] for name in RESULTS],
            waits={
                at: now - before
                for at, (before, now) in enumerate(zip(begin.flow.waits, end.flow.waits, strict=True))
                if now > before
            },
        )

    def add(self, other: MachineSample) -> None:
        """Be the sample of both times."""
        self.observed_s += other.observed_s
        self.cores = _sums(self.cores, other.cores)
        for name, sums in other.queues.items():
            self.queues[name] = _sums(self.queues.get(name, (0.0, 0.0)), sums)
        self.submitted += other.submitted
        self.started += other.started
        self.ended = [mine + yours for mine, yours in zip(self.ended, other.ended, strict=True)]
        for at, count in other.waits.items():
            self.waits[at] = self.waits.get(at, 0) + count

    def row(self) -> tuple[Any, ...]:
        """Its columns in the store."""
        rest = (self.queues, self.submitted, self.started, self.ended, self.waits)
        return (self.observed_s, *self.cores, msgspec.msgpack.encode(rest))

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> MachineSample:
        """The sample that a row has. Raises ValueError (msgspec's among them) for what is none."""
        observed_s, *cores, rest = row
        return cls(observed_s, cores, *_REST.decode(rest))

    def wait_counts(self) -> list[int]:
        """Its waits by the ranges of `WAITS_S`."""
        return [self.waits.get(at, 0) for at in range(len(WAITS_S) + 1)]


_REST = msgspec.msgpack.Decoder(tuple[dict[str, list[float]], int, int, list[int], dict[int, int]])


def _sums(mine: Sequence[float], yours: Sequence[float]) -> list[float]:
    return [one + other for one, other in zip(mine, yours, strict=True)]
