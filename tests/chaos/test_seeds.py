"""The first disasters; more with `python -m tests.chaos`. Also the tools: replay, shrinker, plans."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.faults.faults import OF_HOSTS
from tests.chaos.runs import crash_points, host_points
from tests.chaos.runs.plan import BOOKED, CRASH_POINTS, HOST_POINTS, HOSTS, SMALL_SEEDS, has_resizes, make_plan
from tests.chaos.runs.replay import Replay
from tests.chaos.runs.run import run
from tests.chaos.runs.shrink import shrink
from tests.chaos.workload import sites
from tests.generated.share import DEAR, SHARE, first

CHUNK = 10
TELLING = 0, 10, 20, 50, 180
"""From here on ten seeds each notice more of what can be sabotaged than from elsewhere."""
CHUNKS = sorted(range(0, SMALL_SEEDS, CHUNK), key=lambda begin: begin not in TELLING)
SPARED = 53
"""Of so many crash points the suite tries one; all are seeds of `python -m tests.chaos`."""


@pytest.mark.parametrize(
    "begin",
    [pytest.param(begin, marks=[pytest.mark.slow] if at else []) for at, begin in enumerate(first(CHUNKS, 2 * SHARE))],
)
def test_no_disaster_breaks_a_law(begin: int) -> None:
    broken = [
        f"python -m tests.chaos --replay {seed}: {found}"
        for seed in range(begin, begin + CHUNK)
        if (found := run(make_plan(seed)).violation)
    ]
    assert not broken, "\n".join(broken)


@pytest.mark.slow
def test_no_crash_while_a_job_changes_its_size_breaks_a_law() -> None:
    points = range(CRASH_POINTS, CRASH_POINTS + crash_points.COUNT, SPARED)
    broken = [f"--replay {seed}: {found}" for seed in points if (found := run(make_plan(seed)).violation)]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("seed", first(range(BOOKED, BOOKED + 12)))
def test_no_disaster_of_reservations_and_deadlines_breaks_a_law(seed: int) -> None:
    assert not run(make_plan(seed)).violation, f"python -m tests.chaos --replay {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", first(range(HOSTS, HOSTS + 12), DEAR))
def test_no_disaster_of_hosts_breaks_a_law(seed: int) -> None:
    assert not run(make_plan(seed)).violation, f"python -m tests.chaos --replay {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(HOST_POINTS, HOST_POINTS + host_points.COUNT))
def test_no_disaster_that_is_made_for_a_rule_of_hosts_breaks_a_law(seed: int) -> None:
    assert not run(make_plan(seed)).violation, f"python -m tests.chaos --replay {seed}"


def test_hosts_fail_in_each_way_and_jobs_are_on_several_of_them() -> None:
    plans = [make_plan(seed) for seed in range(HOSTS, HOSTS + 100)]
    assert {fault.kind for plan in plans for _, fault in plan.faults} >= OF_HOSTS | {"kill-instance"}
    assert {plan.site.hosts for plan in plans} == {2, 3, 4, 5}
    assert any(action.arguments.get("nodes", 0) > 1 for plan in plans for _, action in plan.actions)
    assert make_plan(HOSTS) == plans[0] != plans[1]


def test_a_third_of_the_later_seeds_has_jobs_that_change_their_size() -> None:
    for seed in range(SMALL_SEEDS, SMALL_SEEDS + 30):
        kinds = {fault.kind for _, fault in make_plan(seed).faults}
        assert has_resizes(seed) == any(kind.startswith("kill-at-") for kind in kinds)
    assert not any(map(has_resizes, range(SMALL_SEEDS)))


def test_a_seed_makes_one_plan_and_another_seed_another() -> None:
    assert make_plan(300) == make_plan(300) != make_plan(301)


def test_a_plan_is_the_same_wherever_the_checkout_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites with foreign policies and plugins name their paths; chances of such a site once came of the paths."""
    plans = [make_plan(seed) for seed in range(100)]
    here, elsewhere = str(sites.FOREIGN), "/elsewhere/world/foreign"
    assert any(here in plan.site.config for plan in plans)
    configs = [plan.site.config.replace(here, elsewhere) for plan in plans]
    monkeypatch.setattr(sites, "POLICIES", [one.replace(here, elsewhere) for one in sites.POLICIES])
    monkeypatch.setattr(sites, "PLUGIN", sites.PLUGIN.replace(here, elsewhere))
    monkeypatch.setattr(sites, "FOREIGN", Path(elsewhere))
    moved = [make_plan(seed) for seed in range(100)]
    assert [plan.site.config for plan in moved] == configs
    assert [plan.actions for plan in moved] == [plan.actions for plan in plans]


def test_a_replay_is_what_it_prints() -> None:
    replay = Replay.parse("7:0-2,5:1")
    assert replay == Replay(7, frozenset({0, 1, 2, 5}), frozenset({1}))
    assert str(replay) == "7:0-2,5:1"
    plan = replay.plan()
    assert [number for number, _ in plan.actions] == [0, 1, 2, 5]
    assert [number for number, _ in plan.faults] == [1]
    assert Replay.parse("7").plan() == make_plan(7)


def test_the_shrinker_finds_the_parts_that_matter() -> None:
    assert shrink(range(40), lambda kept: {3, 17, 29} <= set(kept), 500) == [3, 17, 29]
    assert shrink(range(40), lambda kept: True, 500) == []
    asked = 0

    def never(kept: list[int]) -> bool:
        nonlocal asked
        asked += 1
        return False

    assert len(shrink(range(40), never, 9)) == 40
    assert asked == 9
