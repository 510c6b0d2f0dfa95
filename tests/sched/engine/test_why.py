"""What a waiting job's owner is told: the reason, the rule, and when at the earliest. Goldens, whole."""

from typing import ClassVar

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.reasons import WaitKind, Why
from fluxsched.sched.policy import decide
from fluxsched.sched.registry import make
from tests.sched.site import Bench, limit, make_r, spec

NAMED_MAX = limit("NAMED_MAX")

FIFO = "fifo: Strict order: the first job that cannot start holds back all others."
FIRSTFIT = "firstfit: Starts every job that fits, in order; others are skipped."
EASY = "easy: The first job that cannot start has a reservation; others start, in order, if they do not delay it."
CONSERVATIVE = "conservative: Every job has a reservation, made in order; others start early only if they delay none."
IN_THE_WAY = "fits now, but not for as long as it may run: job ƒ3 is to start in 100s"
PLANNED = "as it is planned; sooner if running jobs end before their limits"
LIMITS = "if running jobs use up their limits and no job goes ahead of it"
BESIDE_PLANNED = "if running and planned jobs use up their limits and no job goes ahead of it"
POLICIES = ("fifo", "firstfit", "easy", "conservative", "hybrid:depth=0", "hybrid:depth=2")


@pytest.fixture
def four():
    """At 100 s job 1 runs on two of four nodes until 200; jobs 2 (4 nodes) and 3 (1 node, for long) wait."""

    def build(policy, limit_s=100.0):
        bench = Bench(policy)
        bench.grow("0-3")
        bench.submit(1, nodes=2, exclusive=True, duration=limit_s)
        bench.run()
        bench.submit(2, nodes=4, exclusive=True, duration=50.0)
        bench.submit(3, nodes=1, exclusive=True, duration=1000.0)
        bench.run()
        return bench

    return build


def why(bench, jobid):
    return bench.scheduler.why(jobid, bench.now_s)


@pytest.mark.parametrize(
    ("policy", "rule", "when"),
    [("fifo", FIFO, LIMITS), ("firstfit", FIRSTFIT, LIMITS), ("easy", EASY, PLANNED),
     ("conservative", CONSERVATIVE, PLANNED), ("hybrid:depth=0", None, LIMITS)],
)  # fmt: skip
def test_the_first_in_line(four, policy, rule, when):
    found = why(four(policy), 2)
    assert found.reason.startswith("needs 4 exclusive nodes of 1 core; ")
    assert rule is None or found.rule == f"first in line under {rule}"
    assert (found.when, found.earliest_s) == (when, 1100.0 if policy in ("firstfit", "hybrid:depth=0") else 200.0)


@pytest.mark.parametrize("policy", ["fifo", "easy", "conservative"])
def test_jobs_of_parts_are_told_which_parts_are_short(policy):
    bench = Bench(policy)
    bench.grow(make_r("0-3", ssd="0-1"))
    bench.submit(1, nodes=2, exclusive=True, duration=100.0)
    bench.run()
    bench.submit(2, parts=((1, {"properties": ["ssd"]}), (2, None)), duration=50.0)
    bench.run()
    found = why(bench, 2)
    assert found.reason == (
        "needs p0: 1 exclusive node of 1 core with ssd; p1: 2 exclusive nodes of 1 core; "
        "p0 needs 1 node; none is free, 2 nodes are busy"
    )
    assert found.earliest_s == 200.0
    [denied] = bench.submit(3, parts=((1, None), (4, None)))
    assert denied.note.endswith("p0 and p1 need 5 nodes, the group has only 4 nodes for any of them")


def test_behind_the_first_in_line(four):
    waits = "waits its turn; 1 ahead of it in the queue"
    head = "not before job ƒ3, first in line"
    assert why(four("fifo"), 3) == Why(waits, f"1 ahead of it under {FIFO}", head, 200.0, WaitKind.BEHIND)
    assert why(four("easy"), 3) == Why(waits, f"1 ahead of it under {EASY}", BESIDE_PLANNED, 250.0, WaitKind.BEHIND)
    planned = why(four("conservative"), 3)
    assert planned.reason == IN_THE_WAY
    assert (planned.when, planned.earliest_s) == (PLANNED, 250.0)


def test_where_a_running_job_has_no_limit_nothing_can_be_told(four):
    for policy in ("fifo", "easy"):
        bench = four(policy, limit_s=0.0)
        assert why(bench, 2)[2:4] == ("not known: ƒ2, running, has no time limit", None)
    assert why(four("fifo", limit_s=0.0), 3)[2:4] == (
        "not known: job ƒ3, first in line, has no estimate itself; ƒ2, running, has no time limit", None,
    )  # fmt: skip


class TwoQueues:
    """Queues `lab` and `debug` of one group of four nodes; job 1 runs on two of them until 200 s, the others wait.

    All jobs run until their limits.
    """

    JOBS: ClassVar = {2: ("lab", 4, 50.0), 3: ("debug", 1, 1000.0), 4: ("debug", 1, 1000.0), 5: ("debug", 3, 10.0),
                      6: ("lab", 4, 10.0)}  # fmt: skip

    def __init__(self, policy, lab=None):
        own = {} if lab is None else {"lab": lab}
        self.bench = Bench(policy, queues={"lab": "default", "debug": "default"}, policies=own)
        self.bench.grow("0-3")
        self.begun, self.ends = {}, {}
        self.bench.submit(1, nodes=2, exclusive=True, duration=100.0)
        self.begin()
        for jobid, (queue, nodes, limit_s) in self.JOBS.items():
            self.bench.submit(jobid, nodes=nodes, exclusive=True, duration=limit_s, queue=queue)
        self.begin()

    def begin(self):
        for jobid in self.bench.starts():
            self.begun[jobid] = self.bench.now_s
            self.ends[jobid] = self.bench.now_s + (self.JOBS[jobid][2] if jobid > 1 else 100.0)

    def told(self):
        return {jobid: why(self.bench, jobid).earliest_s for jobid in self.JOBS if jobid not in self.begun}

    def finish(self):
        while self.ends:
            self.bench.now_s = min(self.ends.values())
            for jobid in [jobid for jobid, end_s in self.ends.items() if end_s == self.bench.now_s]:
                del self.ends[jobid]
                self.bench.free(jobid)
            self.begin()
        return self.begun


def test_what_other_queues_have_planned_is_in_the_way():
    """Job 2 of `lab` has all nodes from 200 to 250 s, so that no job of `debug` starts before, however short."""
    two = TwoQueues("fifo", "easy")
    assert two.told() == {2: 200.0, 3: 250.0, 4: 250.0, 5: 250.0, 6: 250.0}
    found = why(two.bench, 3)
    assert (found.reason, found.when) == ("fits now, but not for as long as it may run: job ƒ3 is to start in 100s",
                                          BESIDE_PLANNED)  # fmt: skip


@pytest.mark.parametrize("lab", [None, *POLICIES])
@pytest.mark.parametrize("policy", POLICIES)
def test_no_job_of_two_queues_starts_before_the_bound(policy, lab):
    two = TwoQueues(policy, lab)
    told = two.told()
    begun = two.finish()
    assert told
    assert [jobid for jobid, bound_s in told.items() if begun[jobid] < bound_s] == []


@pytest.mark.parametrize("more", [0, 5])
def test_only_so_many_reservations_are_counted(more):
    bench = Bench("fifo", queues={"lab": "default", "debug": "default"}, policies={"lab": "conservative"})
    bench.grow("0")
    most = limit("RESERVATIONS_COUNTED_MAX")
    for jobid in range(most + 1 + more):
        bench.submit(jobid, nodes=1, exclusive=True, duration=10.0, queue="lab")
    bench.submit(1000, nodes=1, exclusive=True, duration=10.0, queue="debug")
    bench.run()
    assert why(bench, 1000).earliest_s == bench.now_s + 10.0 * (most + 1)


def test_a_job_of_another_queue_in_the_same_line_is_ahead():
    found = why(TwoQueues("fifo").bench, 3)
    assert (found.reason, found.when) == ("waits its turn; job ƒ3 of another queue is ahead of it",
                                          "not before job ƒ3, first in line")  # fmt: skip


def test_a_planned_job_without_a_limit_leaves_no_bound(four):
    bench = four("easy")
    bench.submit(4, nodes=4, exclusive=True, duration=0.0, priority=31)
    bench.submit(5, nodes=1, exclusive=True, duration=1000.0)
    bench.run()
    assert why(bench, 5)[2:4] == ("not known: ƒ5, planned, has no time limit", None)


def test_jobs_of_another_group_are_not_in_the_way():
    bench = Bench("fifo", "default", "lab", queues={"lab": "lab"})
    bench.grow("0-1", offline="1")
    bench.grow("2", group="lab")
    bench.submit(1, nodes=1, exclusive=True, queue="lab")
    bench.submit(2, nodes=2, exclusive=True)
    bench.run()
    assert why(bench, 2).when == "not known: it needs nodes that are out of service"


def test_a_job_does_not_block_itself():
    """Job 4 could start on rank 2, which job 3 is to have; so it is planned where job 1 ends, before job 3 starts."""
    bench = Bench("conservative")
    bench.grow("0-2")
    waiting = ((1, 1, 10.0, "0"), (2, 1, 50.25, "1"), (3, 2, 100.0, "1-2"), (4, 1, 100.0, "0,2"))
    for jobid, nodes, limit_s, ranks in waiting:
        bench.submit(jobid, nodes=nodes, exclusive=True, duration=limit_s, constraint={"ranks": [ranks]})
    bench.run()
    found = why(bench, 4)
    assert found.reason == "fits now, but not for as long as it may run: job ƒ4 is to start in 50s"
    assert (found.when, found.earliest_s) == (PLANNED, 110.0)


def test_the_end_of_the_resources_is_a_limit():
    bench = Bench("fifo")
    bench.grow(make_r("0", expiration=900.0))
    bench.submit(1, nodes=1, exclusive=True)
    bench.submit(2, nodes=1, exclusive=True)
    bench.run()
    assert why(bench, 2)[2:4] == (LIMITS, 900.0)


def test_after_the_end_of_the_resources():
    bench = Bench("fifo")
    bench.grow(make_r("0", expiration=60.0))
    bench.submit(1, spec())
    bench.run()
    assert why(bench, 1) == Why(
        "the resources of group 'default' expired Jan01 00:01 UTC", "nothing starts after their end",
        "not before they have a later end: reload an R that has one", kind=WaitKind.NO_RESOURCES,
    )  # fmt: skip


def test_what_is_down():
    bench = Bench("easy")
    bench.grow("0-3", offline="3")
    bench.submit(1, nodes=4)
    bench.run()
    reason = "needs 4 nodes of 1 core; 3 nodes fit now, n3 is out of service"
    when = "not known: it needs nodes that are out of service"
    assert why(bench, 1) == Why(reason, f"first in line under {EASY}", when, kind=WaitKind.NO_ROOM)
    bench.did(bench.scheduler.went_offline(Idset.parse("0-2")))
    assert why(bench, 1).reason.endswith("none is free, 4 nodes are out of service"), "of few alone the names are told"


def test_a_constraint_that_no_free_target_meets():
    bench = Bench("firstfit")
    bench.grow(make_r("0-3", ssd="0"))
    bench.submit(1, nodes=1, exclusive=True, duration=60.0, constraint={"properties": ["ssd"]})
    bench.submit(2, nodes=1, duration=60.0, constraint={"properties": ["ssd"]})
    bench.run()
    reason = "needs 1 node of 1 core with ssd; none is free, 1 node is busy"
    assert why(bench, 2) == Why(reason, f"first in line under {FIRSTFIT}", LIMITS, 160.0, WaitKind.NO_ROOM)


def test_on_hold_and_before_the_resources(bench):
    bench.submit(1, spec())
    assert why(bench, 1) == Why(
        "waits for the resources of group 'default' to be acquired", "no job is judged before that",
        "not known: as soon as they are acquired", kind=WaitKind.NO_RESOURCES,
    )  # fmt: skip
    bench.grow("0")
    bench.submit(2, spec(), priority=0)
    assert why(bench, 2) == Why(
        "is held: its priority is 0; raise its urgency", "a job on hold is skipped", "not while it is held",
        kind=WaitKind.HELD,
    )  # fmt: skip
    next_one = Why("is the next to be looked at", f"first in line under {FIFO}", "it fits now", kind=WaitKind.BEHIND)
    assert why(bench, 1) == next_one


class Silent:
    name = "silent"
    OPTIONS = {}  # noqa: RUF012

    def schedule(self, view, now_s):
        return iter(())


def test_a_policy_that_decides_nothing_is_pointed_at():
    bench = Bench(Silent())
    bench.grow("0")
    bench.submit(1, spec())
    bench.submit(2, spec())
    bench.run()
    silent = "fits now, but policy 'silent' has looked at the queue and decided nothing about it"
    rule = "waits with 1 other in the order of policy silent: it does not say how it decides"
    assert why(bench, 1) == Why(silent, rule, "it fits now", kind=WaitKind.BEHIND)
    bench.submit(3, cores=4)
    bench.run()
    assert why(bench, 2).reason == silent
    assert why(bench, 2).rule.startswith("waits with 2 others in the order of policy silent")


class Smallest:
    """The smallest first."""

    name = "smallest"
    OPTIONS = {}  # noqa: RUF012

    def schedule(self, view, now_s):
        for job in sorted(view.queue, key=lambda job: job.request.cores):
            yield decide(job, view.place(job))


def test_an_order_of_the_policys_own_is_not_called_a_line():
    """Job 1 came first and goes last: it is not first in line, nor does job 2 wait for it."""
    bench = Bench(Smallest())
    bench.grow("0")
    bench.submit(9, cores=4, duration=50.0)
    bench.run()
    bench.submit(1, cores=4, duration=10.0)
    bench.submit(2, cores=1, duration=10.0)
    assert why(bench, 2).reason == "its policy has not looked at it yet"
    bench.run()
    rule = "waits with 1 other in the order of policy smallest: The smallest first."
    for jobid in (1, 2):
        assert (why(bench, jobid).rule, why(bench, jobid).when) == (rule, LIMITS)


@pytest.mark.parametrize("order", ["sjf", "lxf"])
def test_under_an_order_the_place_is_that_of_the_order(order):
    for policy in ("firstfit", "easy"):
        bench = Bench(make(policy, {"order": order}))
        bench.grow("0")
        for jobid, limit_s in ((1, 50.0), (2, 90.0), (3, 30.0), (4, 10.0)):
            bench.submit(jobid, cores=4, duration=limit_s)
            bench.run()
        last = "2 ahead of it" if policy == "firstfit" else "has a reservation"  # easy reserves for who came first
        assert why(bench, 2).rule.startswith(last)
        assert why(bench, 3).rule.startswith(f"1 ahead of it in the order {order}, under {policy}: ")
        assert why(bench, 4).rule.startswith(f"first in the order {order}, under {policy}: ")


def test_asking_changes_nothing(four):
    bench = four("fifo")
    found = [why(bench, jobid) for jobid in (2, 3, 2)]
    assert found[0] == found[2]
    bench.scheduler.check()
    assert bench.run() == []


def test_few_of_the_jobs_without_a_limit_are_named():
    bench = Bench("easy")
    bench.grow("0-4")
    for jobid in range(1, NAMED_MAX + 3):
        bench.submit(jobid, nodes=1, exclusive=True)
    bench.submit(9, nodes=5, exclusive=True, duration=10.0)
    bench.run()
    assert why(bench, 9).when == "not known: ƒ2, ƒ3, ƒ4 and 2 more run without a limit"
