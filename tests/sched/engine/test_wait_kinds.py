"""The kind of each reason goes along with it from where it is made, also through policies that know of texts only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fluxsched.core.jobfields import EACH, SiteLimit
from fluxsched.core.reasons import WaitKind, cause, wait_kind
from fluxsched.protocol.messages.instance import SchedReasonsRequest
from fluxsched.sched.decisions import Pending
from fluxsched.sched.hooks import Gate, Later, with_limits
from fluxsched.scheduler.session import reasons_of
from tests.sched.site import Bench, spec

POLICIES = ("fifo", "firstfit", "easy", "conservative", "hybrid:depth=0")


def kind(bench: Bench, jobid: int) -> WaitKind:
    found = bench.scheduler.why(jobid, bench.now_s)
    assert type(found.reason) is str, "it is sent to others"
    return found.kind


@pytest.mark.parametrize("policy", POLICIES)
def test_of_jobs_that_wait_for_room_and_for_others(policy: str) -> None:
    bench = Bench(policy)
    bench.grow("0-1")
    bench.submit(1, nodes=1, exclusive=True, duration=50.0)
    bench.submit(2, nodes=2, exclusive=True, duration=50.0)
    bench.submit(3, nodes=1, exclusive=True, duration=5000.0, priority=15)
    bench.submit(4, priority=0)
    bench.run()
    assert [kind(bench, jobid) for jobid in (2, 4)] == [WaitKind.NO_ROOM, WaitKind.HELD]
    assert 3 in bench.granted or kind(bench, 3) is WaitKind.BEHIND


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (SiteLimit(EACH, queue="debug", running=0, user_name=EACH), WaitKind.LIMIT_OF_USER),
        (SiteLimit(bank="phys", running=0), WaitKind.LIMIT_OF_BANK),
        (SiteLimit(queue=EACH, running=0), WaitKind.LIMIT_OF_QUEUE),
    ],
)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_limit_is_that_of_its_first_holder(policy: str, limit: SiteLimit, expected: WaitKind) -> None:
    bench = Bench(policy, queues={"debug": "default"}, plugins=with_limits({}, [limit]))
    bench.grow("0")
    bench.submit(1, spec(queue="debug", bank="phys"))
    assert bench.starts() == {}
    assert kind(bench, 1) is expected


@pytest.mark.parametrize(
    "points",
    [
        {"pre_filter": lambda shape, group: Later("closed")}, {"reserve": lambda job, fit: Later("closed")},
        {"pre_enqueue": lambda job: Gate("closed")}, {"reserve": lambda job, fit: 1 / 0},
        {"reserve": lambda job, fit: Later("x" * 5000)},
    ],
    ids=["pre_filter", "reserve", "pre_enqueue", "fault", "long"],
)  # fmt: skip
@pytest.mark.parametrize("policy", POLICIES)
def test_what_a_plugin_refuses(policy: str, points: dict[str, Any]) -> None:
    closed = SimpleNamespace(name="closed", READS=(), OPTIONS={}, **points)
    bench = Bench(policy, plugins={"": [closed]})
    bench.grow("0")
    bench.submit(1)
    assert bench.starts() == {}
    assert kind(bench, 1) is WaitKind.PLUGIN


def test_of_a_job_that_no_longer_fits_the_group() -> None:
    bench = Bench("easy")
    bench.grow("0-1")
    bench.submit(1, nodes=2, unsatisfiable="wait")
    bench.submit(2, nodes=1)
    bench.shrink("1")
    bench.run()
    assert kind(bench, 1) is WaitKind.TOO_LARGE


class Moody:
    """A site's policy with texts of its own."""

    name = "moody"
    OPTIONS = {}  # noqa: RUF012

    def schedule(self, view: Any, now_s: float) -> Any:
        for job in view.queue:
            yield Pending(job.jobid, "the moon is full")


def test_texts_of_sites_have_no_kind_and_answers_have_a_kind_for_each_job() -> None:
    bench = Bench(Moody())
    bench.grow("0")
    for jobid, priority in ((1, 16), (2, 0)):
        bench.submit(jobid, priority=priority)
    bench.run()
    answer = reasons_of(bench.scheduler, SchedReasonsRequest([1, 2, 3]), bench.now_s)
    assert [(jobid, kind) for (jobid, *_), kind in zip(answer.jobs, answer.kinds, strict=True)] == [
        (1, "other reasons"), (2, "held"),
    ]  # fmt: skip


def test_a_text_with_a_kind_is_a_text() -> None:
    text = cause("needs 4 nodes", WaitKind.NO_ROOM)
    assert (text, hash(text), wait_kind(text)) == ("needs 4 nodes", hash("needs 4 nodes"), WaitKind.NO_ROOM)
    assert wait_kind(f"{text}; and more") is WaitKind.OTHER
