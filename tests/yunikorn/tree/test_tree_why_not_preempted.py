"""What `job why` says of an ask for which nothing is preempted: its queue, the delay, the rate, or no victims."""

from __future__ import annotations

from typing import Any

import pytest

from fluxsched.sched.policies.backfill import NOT_ENOUGH
from fluxsched.yunikorn.tree.asks import QUOTA_RATE
from fluxsched.yunikorn.tree.queues import PREEMPT_DISABLED, AskOptions
from tests.yunikorn.tree.site import TreeSite, amounts, leaf, parent

MAY = AskOptions(may_preempt=True)


def full(preemption: str = "yes", delay_s: float = 0.0, **other: Any) -> TreeSite:
    """`root.b` has the only node, by five asks; half of it is guaranteed to `root.a`."""
    a = leaf("a", guaranteed=amounts(vcore=5), preemption_delay_s=delay_s)
    site = TreeSite(parent("root", a, leaf("b", **other)), preemption=preemption)
    site.node(amounts(vcore=10))
    site.ask(site.application("theirs", "root.b"), amounts(vcore=2), 5)
    assert len(site.run()) == 5
    return site


def ask(site: TreeSite, vcore: int, options: AskOptions = MAY) -> str:
    """The reason of an ask of root.a, after a pass."""
    mine = site.application(f"mine-{site.last_id}", "root.a")
    (jobid,) = site.ask(mine, amounts(vcore=vcore), options=options)
    site.run()
    return site.scheduler.why(jobid, site.now_s).reason


@pytest.mark.parametrize(
    ("settings", "vcore", "options", "said"),
    [
        ({}, 5, AskOptions(), "no job is preempted for it: it may preempt none (allowPreemptOther)"),
        ({}, 6, MAY, "no job is preempted for it: with it no queue above it stays within its guarantee"),
        ({"delay_s": 30.0}, 5, MAY, "no job is preempted for it before 30s from now (preemption.delay)"),
        (
            {"guaranteed": amounts(vcore=10)}, 5, MAY,
            "no job is preempted for it: no preemptible job of another queue is beyond its guarantee",
        ),
    ],
)  # fmt: skip
def test_what_keeps_jobs_from_being_preempted(
    settings: dict[str, Any], vcore: int, options: AskOptions, said: str
) -> None:
    assert ask(full(**settings), vcore, options).endswith(f"; {said}")


def test_nothing_is_said_where_preemption_is_off() -> None:
    assert "preempt" not in ask(full("no"), 5)


def test_no_job_runs_that_may_be_preempted() -> None:
    site = TreeSite(parent("root", leaf("a", guaranteed=amounts(vcore=50))), preemption="yes")
    site.node(amounts(vcore=10))
    site.node(amounts(vcore=20), up=False)
    assert ask(site, 15).endswith("; no running job is preemptible")


def test_nothing_is_said_of_an_ask_for_which_others_go() -> None:
    assert "preempt" not in ask(full(), 5)


def test_the_rate_is_reached() -> None:
    guaranteed = amounts(vcore=2 * QUOTA_RATE + 2)
    mine = leaf("a", guaranteed=guaranteed, preemption_delay_s=0.0)
    site = TreeSite(parent("root", mine, leaf("b")), preemption="yes")
    for _ in range(QUOTA_RATE + 1):
        site.node(amounts(vcore=2))
    site.ask(site.application("theirs", "root.b"), amounts(vcore=2), QUOTA_RATE + 1)
    site.run()
    *others, last = site.ask(site.application("mine", "root.a"), amounts(vcore=2), QUOTA_RATE + 1, options=MAY)
    site.run()
    said = "; no more jobs are preempted for now, at most 10 in 1s: the next one in 1s"
    assert site.scheduler.why(last, site.now_s).reason.endswith(said)
    assert "preempt" not in site.scheduler.why(others[0], site.now_s).reason


def test_what_may_be_preempted_would_not_make_enough_room() -> None:
    mine, others = leaf("a", guaranteed=amounts(vcore=8), preemption_delay_s=0.0), leaf("b")
    site = TreeSite(parent("root", mine, others, leaf("c", preemption=PREEMPT_DISABLED)), preemption="yes")
    site.node(amounts(vcore=10))
    for queue in ("root.b", "root.c"):
        site.ask(site.application(queue, queue), amounts(vcore=5))
    site.run()
    assert ask(site, 8).endswith(f"; {NOT_ENOUGH}")
