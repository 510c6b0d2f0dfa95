"""Walks over ended jobs, while others end and old ones are forgotten."""

from __future__ import annotations

import random

import pytest

from fluxsched.jobs.job import ended_ids
from fluxsched.jobs.job.ended_ids import EndedIds


@pytest.mark.parametrize("seed", range(20))
def test_a_number_stays_whatever_ends_and_is_forgotten(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_ids, "FORGOTTEN_SLACK", 4)
    chance = random.Random(seed)
    kept: dict[int, str] = {}
    here, all_ids = EndedIds(kept), []
    for jobid in [chance.getrandbits(64) for _ in range(300)]:
        kept[jobid] = ""
        here.add(jobid)
        all_ids.append(jobid)
        if chance.random() < 0.9:
            oldest = next(iter(kept))
            del kept[oldest if chance.random() < 0.9 else chance.choice(list(kept))]
            here.forget()
        low, high = sorted(chance.choices(range(-5, len(all_ids) + 5), k=2))
        assert here.end == len(all_ids)
        found = list(here.between(low, high))

        begin = next((at for at, one in enumerate(all_ids) if one in kept), len(all_ids))
        assert found == all_ids[max(low, begin) : max(high, begin)]
        assert len(here._ids) <= 2 * (len(all_ids) - begin + ended_ids.FORGOTTEN_SLACK)
