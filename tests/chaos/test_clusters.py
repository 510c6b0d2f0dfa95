"""Each lease runs exactly once, whatever is killed; more with `python -m tests.chaos --clusters 200`."""

from __future__ import annotations

from math import inf

import pytest

from fluxsched.clusters.clusters import LeaseService
from fluxsched.messaging.peers import RpcRequest
from fluxsched.protocol.messages.jobs import LeaseWatchRequest
from tests.chaos.runs.two_worlds import Crash, TwoWorlds, crashes, judged
from tests.chaos.world.world import INSTANCE
from tests.generated.share import ALL, SHARE

SEEDS = 4, 11, 20, 22
"""Those that notice most of what can be broken."""
SPARED = 163
"""Of so many crash points one is tried where all cases are, else of SHARE times as many."""
EFFECTS_OF_A_START = range(1, 16)
"""Those until it has connected, which is where some of these starts die; the later ones live."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS if ALL else SEEDS[:2])
def test_each_lease_runs_exactly_once_whichever_is_killed(seed: int) -> None:
    judged(seed)


@pytest.mark.slow
def test_a_crash_at_an_effect_has_no_lease_run_twice() -> None:
    for number, crash in enumerate(list(crashes())[:: SPARED * (1 if ALL else SHARE)]):
        judged(number, crash)


@pytest.mark.slow
def test_a_cluster_that_returned_a_job_is_used_again_though_the_clock_was_set_back() -> None:
    """Whether the pause was over was read off the wall clock, in one turn: a bit too early, and it never was."""
    worlds = TwoWorlds(0, Crash(True, 1 << 30))
    with worlds.there, worlds.here:
        worlds.here.at(12.5, lambda: worlds.here.step_clock(None, -30.0))
        worlds.run()
        worlds.judge()


def test_no_session_number_is_used_twice_or_goes_back_with_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is set back by a day before each start, and most starts die at an effect of theirs."""
    told: list[int] = []
    watch = LeaseService._watch

    def noted(service: LeaseService, request: RpcRequest) -> None:
        told.append(request.payload(LeaseWatchRequest).session)
        watch(service, request)

    monkeypatch.setattr(LeaseService, "_watch", noted)
    worlds = TwoWorlds(0)
    with worlds.there, worlds.here as here:
        for effect in EFFECTS_OF_A_START:
            here.step_clock(None, -86_400.0)
            here.kill(INSTANCE)
            ended = here.processes[INSTANCE]
            while here.processes[INSTANCE] is ended:
                assert here.step(inf)
            here.kill_at_effect(INSTANCE, effect)
            here.run_until(here.now_s + 0.9)
    assert told == sorted(set(told))
