"""Every preemption of `fair` on a site with faults is judged by a checker that shares nothing with it.

Some days here, most of them in the compiled build only; `benchmarks/fair_years.py` does the same for years.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest

from fluxsched.sched.policy import Option, Preempt, Start
from tests.generated.share import first
from tests.sched.faulty_site import FaultySite
from tests.sched.site import policy_of

DAY_S = 86_400.0

SITES = [
    ("fair:backfill=easy", 2, {"seed": 2, "rate": 3}),
    ("fair:backfill=easy", 1, {"seed": 2, "load": 1.5, "timeout_s": 300.0}),  # some jobs are shorter
    ("fair:backfill=easy", 2, {"seed": 2, "load": 1.5, "overdue": 0.4, "whole": True}),  # it is planned by counting
    ("fair:backfill=conservative", 1, {"overdue": 0.4, "whole": True}),
    ("fair:backfill=fifo", 4, {}),
    ("fair:backfill=easy", 3, {"seed": 6}),
    ("fair:backfill=easy", 3, {}),
    ("fair:backfill=easy", 2, {"rate": 4}),
    ("fair:backfill=easy", 3, {"seed": 3, "load": 1.5}),  # several go at once, and places are exchanged
    ("fair:backfill=easy", 5, {"seed": 2, "rate": 3}),  # others end just before a victim has to be gone
    ("fair:backfill=easy", 2, {"shares_of_all": True}),
    ("fair:backfill=easy", 3, {"load": 1.5, "overdue": 0.5}),
    ("fair:backfill=easy", 2, {"seed": 2, "load": 1.5, "timeout_s": 300.0}),  # some jobs are shorter
    ("fair:backfill=hybrid,depth=4", 1, {}),
    ("fair:backfill=conservative", 1, {}),
]


# found by any when preemption was sabotaged at nine places is found by the first four as well
@pytest.mark.parametrize(("policy", "days", "settings"), first(SITES))
def test_no_preemption_breaks_a_law(policy, days, settings):
    site = FaultySite(policy_of(policy), **{"seed": 1, **settings})
    site.live(days * DAY_S)
    assert site.judge.faults == []
    assert site.judge.counts["preempted"] >= 4


class Greedy:
    """First come, first served; for each job that does not fit all go that the engine lets go."""

    name = "greedy"
    OPTIONS: ClassVar[Mapping[str, Option]] = {}
    ACCOUNTS = True

    def schedule(self, view, now_s):
        for job in view.queue:
            fit = view.find(job)
            if fit is not None:
                yield Start(job.jobid, fit)
                continue
            for part in list(view.running):
                after_s = part.preemptible_after_s
                if after_s is not None and now_s - part.started_s >= after_s:
                    yield Preempt(part.jobid, job.jobid, "greed")


def test_the_judge_finds_what_breaks_a_law():
    site = FaultySite(Greedy(), 1)
    site.live(DAY_S / 4)
    said = "\n".join(site.judge.faults)
    for words in ("is of the same account", "would use", "its a", "and it waits", "had others go for it"):
        assert words in said
