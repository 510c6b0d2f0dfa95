"""Who watches a policy: what is let pass as rounding."""

from __future__ import annotations

import pytest

from fluxsched.sched.registry import make
from fluxsched.sim.conformance_cases import spec_of
from fluxsched.sim.stage import Stage
from fluxsched.sim.witness import LATE_S, Broken


def test_rounding_excuses_who_waits_as_it_excuses_who_starts() -> None:
    stage = Stage(make("fifo", {}), "1x1", 100.0)
    stage.witness.promises_hold = True
    for _ in range(2):
        stage.submit(spec_of(10.0))
    stage.witness.promised[2] = stage.now_s - LATE_S / 2
    stage.decide()
    stage.witness.promised[2] = stage.now_s - LATE_S * 2
    with pytest.raises(Broken, match=r"job ƒ3, the first in line, was to start 2e-06 s ago and still waits"):
        stage.decide()
