"""Walks over those who are present, while they come and go."""

from __future__ import annotations

import random

import pytest

from fluxsched.jobs.job import active_ids
from fluxsched.jobs.job.active_ids import ActiveIds


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_a_walk_meets_all_from_the_latest(step: int) -> None:
    present: dict[int, str] = {}
    here = ActiveIds(present)
    for jobid in (2**63, 3, 5, 8, 9):
        present[jobid] = ""
        here.add(jobid)
    steps = list(here.walk(step))
    assert [jobid for some in steps for jobid in some] == [9, 8, 5, 3, 2**63]
    assert max(map(len, steps)) <= step


@pytest.mark.parametrize("seed", range(20))
def test_an_id_that_stays_is_met_once_whatever_is_added_and_removed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active_ids, "STALE_SLACK", 4)
    chance = random.Random(seed)
    present: dict[int, str] = {}
    here, news = ActiveIds(present), iter(range(1, 10_000))

    def happens() -> None:
        for _ in range(chance.randrange(12)):
            if present and chance.random() < 0.5:
                del present[chance.choice(list(present))]
            else:
                jobid = next(news)
                present[jobid] = ""
                here.add(jobid)

    for _ in range(30):
        happens()
        there, met = set(present), []
        for some in here.walk(3):
            met += some
            happens()
            there &= set(present)
        assert met == sorted(set(met), reverse=True)
        assert there <= set(met)
        met_now = [jobid for some in here.walk(100) for jobid in some]
        assert len(met_now) <= 2 * len(present) + active_ids.STALE_SLACK + 12
