"""Each lease runs exactly once, whatever is killed; more with `python -m tests.chaos --clusters 200`."""

from __future__ import annotations

import pytest

from tests.chaos.runs.two_worlds import crashes, judged

SEEDS = 4, 11, 20, 22
"""Those that notice most of what can be broken."""
SPARED = 61
"""Of so many crash points the suite tries one."""


@pytest.mark.parametrize("seed", SEEDS)
def test_each_lease_runs_exactly_once_whichever_is_killed(seed: int) -> None:
    judged(seed)


def test_a_crash_at_an_effect_has_no_lease_run_twice() -> None:
    for number, crash in enumerate(list(crashes())[::SPARED]):
        judged(number, crash)
