"""The sabotages fit the code as it is: each changes one place that exists, and is undone."""

from __future__ import annotations

import pytest

from tests.chaos.mutations.report import notice, seeds_for
from tests.chaos.mutations.sabotage import Sabotage, function_of, sabotaged
from tests.chaos.mutations.table import BOOKINGS, FEASIBLE, HOSTS, SABOTAGES, STORE
from tests.chaos.runs import run, settle
from tests.chaos.runs.host_points import POINTS

WANTED = 30
QUICKLY_NOTICED = {
    "grow the next group before the release": 6,
    "let two acquire one group": 6,
    "lose an undrain at a restart": 6,
    "place jobs on drained parts": 3,
    "let drained parts be free when jobs leave them": 16,
    "tell nobody of what is dedicated to others": 1,
    "replace nothing": 20,
    "send a spare home while a job runs on it": 66,
    "run no epilog": 1,
    "start any job in a reservation": 4_000_004,
    "start jobs too late for their deadline": 4_000_000,
    "take no outage from the configuration": 4_000_000,
    "count spares beside what they replace": 4_000_011,
}
"""Each with the seed that notices it first; others may when the disasters change."""
DAMAGING_SEEDS = (75, 29, 40, 27, 30, 31, 55, 63, 76, 13, 39, 66)
"""The first disasters that damage a copy of the state, those first that notice most."""
REFUSED = "write rows with another checksum"
OFTEN_NOTICED = [one for one in STORE if one.name not in ("name no damaged history", "do not look at indexes", REFUSED)]


def test_there_are_enough_sabotages_of_different_names() -> None:
    assert len({one.name for one in SABOTAGES}) == len(SABOTAGES) >= WANTED


@pytest.mark.plain_only("exchanges the code of functions")
@pytest.mark.parametrize("one", SABOTAGES, ids=lambda one: one.name)
def test_a_sabotage_changes_the_code_for_a_while(one: Sabotage) -> None:
    before = function_of(one.where).__code__
    with sabotaged(one):
        assert function_of(one.where).__code__ is not before
    assert function_of(one.where).__code__ is before


@pytest.mark.slow
@pytest.mark.plain_only("exchanges the code of functions")
@pytest.mark.parametrize("name", QUICKLY_NOTICED)
def test_a_sabotage_is_noticed(name: str) -> None:
    """Some of them, each by one of the first disasters; `python -m tests.chaos --mutations` tries all."""
    (one,) = [one for one in SABOTAGES if one.name == name]
    others = seeds_for(one)[:30] if one in BOOKINGS + FEASIBLE else (*range(12), 30, 135)
    assert notice(one, (QUICKLY_NOTICED[name], *others)).seed is not None


@pytest.mark.slow
@pytest.mark.plain_only("exchanges the code of functions")
@pytest.mark.parametrize("one", OFTEN_NOTICED, ids=lambda one: one.name)
def test_damage_that_no_start_notices_is_noticed(one: Sabotage) -> None:
    """By what is lost of a copy of the state."""
    assert notice(one, DAMAGING_SEEDS).checker == "damage"


def test_each_sabotage_of_hosts_has_a_disaster_that_is_made_for_it() -> None:
    assert [one.name for one in HOSTS] == list(POINTS)


@pytest.mark.plain_only("exchanges the code of functions")
@pytest.mark.parametrize("one", HOSTS, ids=lambda one: one.name)
def test_a_sabotage_of_hosts_is_noticed(one: Sabotage, monkeypatch: pytest.MonkeyPatch) -> None:
    """By jobs that never end or keep what they are to leave, or by what is wrong of tasks and hosts."""
    monkeypatch.setattr(settle, "SETTLED_WITHIN_S", 300.0)
    assert notice(one, seeds_for(one)[:1]).checker in ("hosts", "rest", "sizes")


@pytest.mark.slow
@pytest.mark.plain_only("exchanges the code of functions")
def test_a_start_that_is_refused_for_ever_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And an instance that never answers ends a run, whatever keeps it from that."""
    (one,) = [one for one in STORE if one.name == REFUSED]
    noticed = notice(one, range(12))
    assert noticed.checker == "start"
    assert noticed.seed is not None
    monkeypatch.setattr(run, "REFUSED_STARTS_MAX", 1_000_000)
    monkeypatch.setattr(settle, "SETTLED_WITHIN_S", 60.0)
    monkeypatch.setattr(settle, "LATE_S", 10.0)
    assert notice(one, [noticed.seed]).checker == "rest"
