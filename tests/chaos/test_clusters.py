"""Each lease runs exactly once, whatever is killed; more with `python -m tests.chaos --clusters 200`."""

from __future__ import annotations

import pytest

from tests.chaos.runs.two_worlds import Crash, TwoWorlds, crashes, judged

SEEDS = 4, 11, 20, 22
"""Those that notice most of what can be broken."""
SPARED = 163
"""Of so many crash points the suite tries one."""


@pytest.mark.parametrize("seed", SEEDS)
def test_each_lease_runs_exactly_once_whichever_is_killed(seed: int) -> None:
    judged(seed)


def test_a_crash_at_an_effect_has_no_lease_run_twice() -> None:
    for number, crash in enumerate(list(crashes())[::SPARED]):
        judged(number, crash)


def test_a_cluster_that_returned_a_job_is_used_again_though_the_clock_was_set_back() -> None:
    """Whether the pause was over was read off the wall clock, in one turn: a bit too early, and it never was."""
    worlds = TwoWorlds(0, Crash(True, 1 << 30))
    with worlds.there, worlds.here:
        worlds.here.at(12.5, lambda: worlds.here.step_clock(None, -30.0))
        worlds.run()
        worlds.judge()
