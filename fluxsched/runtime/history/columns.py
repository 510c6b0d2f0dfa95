"""The answer of `history.samples`: samples of all lengths put into steps of one, as columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fluxsched.protocol.messages.history import SamplesResponse
from fluxsched.runtime.history.samples import CORE_STATES, RESULTS, MachineSample
from fluxsched.runtime.loop.histogram import WAITS_S, quantile

STEPS_S: Final = (60, 120, 300, 600, 1800, 3600, 7200, 21_600, 86_400, 604_800)
"""Lengths of steps that an answer may have: a multiple of each kept length is among them."""
POINTS_USUAL: Final = 1000
POINTS_MAX = 10_000
"""Steps in one answer: a MiB."""
PIECE: Final = 64
"""Rows that are added in one go."""


def step_of(since_s: float, until_s: float, points_max: int, kept_s: int) -> int:
    """The length of steps: the shortest that is a multiple of what is kept and gives no more than so many."""
    wanted = min(points_max or POINTS_USUAL, POINTS_MAX)
    fitting = [step for step in STEPS_S if step % kept_s == 0 and (until_s - since_s) / step <= wanted]
    longest = STEPS_S[-1]
    return fitting[0] if fitting else longest * -int(-(until_s - since_s) // (longest * wanted))


class SampleColumns:
    """Samples by step."""

    def __init__(self, step_s: int) -> None:
        self._step_s = step_s
        self._steps: dict[int, MachineSample] = {}

    def add(self, rows: Iterable[tuple[int, MachineSample]]) -> Iterator[None]:
        """Take samples with their beginnings, as long work."""
        for count, (t, sample) in enumerate(rows, 1):
            self._steps.setdefault(t // self._step_s * self._step_s, MachineSample()).add(sample)
            if count % PIECE == 0:
                yield

    def response(self) -> SamplesResponse:
        """All steps in order."""
        times = sorted(self._steps)
        samples = [self._steps[t] for t in times]
        seen = [max(sample.observed_s, 1e-9) for sample in samples]
        both = [*zip(samples, seen, strict=True)]
        names = sorted({name for sample in samples for name in sample.queues})

        def of_queue(name: str, at: int) -> list[float]:
            return [sample.queues[name][at] / s if name in sample.queues else 0.0 for sample, s in both]

        return SamplesResponse(
            step=self._step_s,
            t=[float(t) for t in times],
            observed=[round(sample.observed_s, 3) for sample in samples],
            cores={state: [sample.cores[at] / s for sample, s in both] for at, state in enumerate(CORE_STATES)},
            pending={name: of_queue(name, 0) for name in names},
            running={name: of_queue(name, 1) for name in names},
            submitted=[sample.submitted for sample in samples],
            started=[sample.started for sample in samples],
            ended={name: [sample.ended[at] for sample in samples] for at, name in enumerate(RESULTS)},
            wait_p50=[quantile(WAITS_S, sample.wait_counts(), 0.5) for sample in samples],
            wait_p95=[quantile(WAITS_S, sample.wait_counts(), 0.95) for sample in samples],
        )
