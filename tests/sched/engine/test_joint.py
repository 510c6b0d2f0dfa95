"""Queues over several groups: one line of waiting jobs, which leave it wherever they start first."""

from __future__ import annotations

from math import inf
from typing import Any, ClassVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fluxsched.core.idset import Idset
from fluxsched.sched.decisions import Annotated, Canceled, Denied, Granted, Release
from fluxsched.sched.hooks import FREE, PASS, Gate, Wait
from fluxsched.sched.policy import Deny
from tests.sched.site import Bench, make_r, scheduler_of, spec

POLICIES = (
    "fifo", "firstfit", "easy", "easy:order=sjf", "conservative", "conservative:compress", "hybrid:depth=3", "fair"
)  # fmt: skip


@pytest.fixture
def site():
    """site(policy): groups a with nodes 0-3 and b with 4-5; queue wide has both, queue here has a."""

    def make(policy, **options):
        bench = Bench(policy, "a", "b", queues={"wide": ("a", "b"), "here": "a"}, **options)
        bench.grow("0-3", group="a")
        bench.grow("4-5", group="b")
        return bench

    return make


def starts(effects):
    return {effect.jobid: where(effect) for effect in effects if isinstance(effect, Granted)}


def where(granted):
    return str(Idset.of([part.rank for part in granted.fit.parts]))


def promised(scheduler):
    """The reservations whose time is known; asserts that no job has two."""
    found = {}
    for kept in scheduler.report.planned():
        if kept.start_s < inf:
            assert kept.jobid not in found, f"job {kept.jobid} has reservations in two groups"
            found[kept.jobid] = kept.start_s
    return found


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_runs_in_the_first_group_with_room(site, policy):
    bench = site(policy)
    for jobid in (1, 2, 3):
        bench.submit(jobid, nodes=2, exclusive=True, duration=60.0, queue="wide")
    assert starts(bench.run()) == {1: "0-1", 2: "2-3", 3: "4-5"}
    bench.submit(4, nodes=2, exclusive=True, duration=60.0, queue="wide")
    assert starts(bench.run()) == {}
    bench.free(3)
    assert starts(bench.run()) == {4: "4-5"}
    assert bench.scheduler.report.stats()["groups"]["a"]["waiting"] == 0


def test_denied_only_if_all_groups_deny(site):
    bench = site("fifo")
    assert bench.submit(1, nodes=4, exclusive=True, queue="wide") == []  # only a has so many
    (denied,) = bench.submit(2, nodes=5, exclusive=True, queue="wide")
    assert isinstance(denied, Denied)
    assert denied.note.startswith("group a: needs 5 ")
    assert "; group b: needs 5 " in denied.note
    assert bench.scheduler.feasible(spec(nodes=3, queue="wide")) is None
    assert bench.scheduler.feasible(spec(nodes=5, exclusive=True, queue="wide")) == denied.note
    assert starts(bench.run()) == {1: "0-3"}


def test_a_group_passes_over_jobs_that_it_could_never_hold(site):
    bench = site("fifo")
    bench.submit(1, nodes=4, exclusive=True, queue="here")
    bench.run()
    bench.submit(2, nodes=3, exclusive=True, queue="wide")
    bench.submit(3, nodes=2, exclusive=True, queue="wide")
    assert starts(bench.run()) == {3: "4-5"}
    assert "group b: needs 3 exclusive nodes" in bench.why(2)
    assert bench.why(2).startswith("group a: ")


@pytest.mark.parametrize("policy", POLICIES)
def test_gangs_over_groups_of_8_and_1_never_use_the_smaller(policy):
    bench = Bench(policy, "one", "eight", queues={"wide": ("one", "eight")})
    bench.grow("8", group="one")
    bench.grow("0-7", group="eight")
    gangs = [spec(nodes=3, exclusive=True, duration=60.0, queue="wide"), spec(nslots=9, duration=60.0, queue="wide")]
    for jobid in range(1, 7):
        bench.submit(jobid, gangs[jobid % 3 == 0])
    begun = {}
    while len(begun) < 6:
        some = starts(bench.run())
        assert some
        begun.update(some)
        bench.now_s += 60.0
        for jobid in some:
            bench.free(jobid)
    assert not any("8" in ranks for ranks in begun.values())
    (denied,) = bench.submit(7, nodes=9, exclusive=True, queue="wide")
    assert isinstance(denied, Denied)


def test_a_reservation_is_in_the_group_where_the_job_starts_first(site):
    bench = site("easy")
    bench.submit(1, nodes=4, exclusive=True, duration=600.0, queue="wide")
    bench.submit(2, nodes=2, exclusive=True, duration=60.0, queue="wide")
    bench.run()
    bench.submit(3, nodes=2, exclusive=True, duration=60.0, queue="wide")
    assert bench.run() == []  # a was asked first: what it says is over before it is told
    assert promised(bench.scheduler) == {3: 160.0}
    bench.now_s += 1.0
    (told,) = bench.run()
    assert isinstance(told, Annotated)
    assert told.annotations["sched"]["t_estimate"] == 160.0
    assert bench.scheduler.why(3, bench.now_s).earliest_s == 160.0
    assert [one.jobid for one in bench.scheduler.report.plan(bench.scheduler.group("b"), bench.now_s)] == [3]
    assert bench.scheduler.report.plan(bench.scheduler.group("a"), bench.now_s) == []


def test_a_reservation_moves_when_another_group_is_sooner(site):
    bench = site("easy")
    bench.submit(1, nodes=4, exclusive=True, duration=600.0, queue="wide")
    bench.submit(2, nodes=2, exclusive=True, duration=60.0, queue="wide")
    bench.run()
    bench.submit(3, nodes=2, exclusive=True, duration=60.0, queue="wide")
    bench.run()
    bench.did(bench.scheduler.expiration(1, 130.0))
    bench.run()
    assert promised(bench.scheduler) == {3: 130.0}
    assert [one.jobid for one in bench.scheduler.report.plan(bench.scheduler.group("a"), bench.now_s)] == [3]
    bench.did(bench.scheduler.expiration(1, 900.0))  # later than b: it is asked again
    bench.run()
    assert promised(bench.scheduler) == {3: 160.0}


@pytest.mark.parametrize("queue", ["wide", "here"])
def test_what_a_job_leaves_behind_is_looked_at_again_at_once(site, queue):
    """The head of a's line starts in b, so that what is behind it starts in a in the same turn."""
    bench = site("fifo")
    bench.submit(1, nodes=3, exclusive=True, queue="here")
    bench.run()
    bench.submit(2, nodes=2, exclusive=True, queue="wide")
    bench.submit(3, nodes=1, exclusive=True, queue=queue)
    assert starts(bench.run()) == {2: "4-5", 3: "3"}


def test_a_canceled_job_leaves_all_lines(site):
    bench = site("easy")
    bench.submit(1, nodes=4, exclusive=True, duration=60.0, queue="wide")
    bench.submit(2, nodes=2, exclusive=True, duration=60.0, queue="wide")
    bench.run()
    bench.submit(3, nodes=1, exclusive=True, queue="wide")
    bench.run()
    assert bench.did(bench.scheduler.cancel(3)) == [Canceled(3)]
    assert bench.scheduler.cancel(3) == []
    bench.free(1)
    assert starts(bench.run()) == {}
    assert not bench.scheduler.group("a").joint


def test_a_job_is_set_aside_when_no_group_can_hold_it_any_more(site):
    bench = site("firstfit")
    bench.submit(1, nodes=4, exclusive=True, queue="here")
    bench.submit(2, nodes=2, exclusive=True, queue="here")
    bench.run()
    bench.free(1)
    for jobid, nodes in ((3, 2), (4, 4)):
        bench.submit(jobid, nodes=nodes, exclusive=True, queue="wide")
    bench.did(bench.scheduler.went_offline(Idset.parse("0-5")))
    bench.run()
    assert bench.did(bench.scheduler.shrunk("b", Idset.parse("4"), True)) == [Release("b", Idset.parse("4"))]
    assert bench.scheduler.report.set_aside() == {}  # a could still hold both
    effects = bench.did(bench.scheduler.shrunk("a", Idset.parse("0-2"), True))
    assert {each.jobid for each in effects if isinstance(each, Annotated)} >= {3, 4}
    assert bench.scheduler.report.set_aside().keys() >= {3, 4}
    assert "group a: needs 2 exclusive nodes" in bench.why(3)
    assert "group b: needs 2 exclusive nodes" in bench.why(3)
    assert bench.scheduler.report.stats()["groups"]["b"]["unsatisfiable"] == 2


def test_a_job_that_waits_twice_counts_once_in_its_account(site):
    bench = site("fair")
    bench.submit(1, nodes=4, exclusive=True, duration=60.0, queue="wide")
    bench.submit(2, nodes=2, exclusive=True, duration=60.0, queue="wide")
    bench.run()
    bench.submit(3, nodes=1, exclusive=True, duration=60.0, queue="wide")
    bench.run()
    assert list(bench.scheduler.accounts.waiting.values()) == [1]
    bench.did(bench.scheduler.prioritize([(3, 0)]))
    assert list(bench.scheduler.accounts.waiting.values()) == [0]
    bench.did(bench.scheduler.prioritize([(3, 5)]))
    bench.free(1)
    assert starts(bench.run()) == {3: "0"}
    assert list(bench.scheduler.accounts.waiting.values()) == [0]


class DenyHere:
    """Denies every job in the group in whose turn it is first asked, and starts them in the other."""

    name = "deny-here"
    OPTIONS: ClassVar[dict[str, Any]] = {}

    def __init__(self, times):
        self._times = times

    def schedule(self, view, now_s):
        for job in list(view.queue):
            if self._times:
                self._times -= 1
                yield Deny(job.jobid, "not in this group")


@pytest.mark.parametrize("times", [1, 2])
def test_a_policy_denies_a_job_only_in_all_groups(times):
    bench = Bench(DenyHere(times), "a", "b", queues={"wide": ("a", "b")})
    bench.grow("0", group="a")
    bench.grow("1", group="b")
    bench.submit(1, queue="wide")
    assert [type(each) for each in bench.run() if isinstance(each, Denied)] == [Denied] * (times - 1)
    assert bench.scheduler.report.stats()["groups"]["b"]["waiting"] == 2 - times


# ---- plugins


class Asks:
    """Lets jobs into their queue once something was freed, and start once that is permitted."""

    name = "asks"

    def pre_enqueue(self, job):
        return PASS if job.jobid != 2 or self.is_open else Gate("not yet", (FREE,))

    def permit(self, job, fit, now_s):
        return Wait(60.0, "ask") if job.jobid == 2 else PASS

    is_open = False


def test_plugins_are_asked_once_about_a_job_of_several_groups(site):
    plugin = Asks()
    bench = site("firstfit", plugins={"": [plugin]})
    bench.submit(1, nodes=4, exclusive=True, queue="here")
    bench.run()
    bench.submit(2, nodes=2, exclusive=True, queue="wide")
    assert starts(bench.run()) == {}
    assert bench.why(2).startswith("plugin 'asks': not yet")
    plugin.is_open = True
    bench.free(1)
    assert starts(bench.run()) == {}
    assert "waits for a permit" in bench.why(2)
    bench.did(bench.scheduler.permit(2, "asks", False, "another time", bench.now_s))
    waiting = [group["waiting"] for group in bench.scheduler.report.stats()["groups"].values()]
    assert waiting == [1, 1]
    bench.run()
    bench.did(bench.scheduler.permit(2, "asks", True, "", bench.now_s))
    assert str(bench.granted[2].ranks) == "0-1"
    assert not bench.scheduler.group("a").joint
    bench.submit(3, nodes=2, exclusive=True, queue="wide")
    assert bench.did(bench.scheduler.cancel(3)) == [Canceled(3)]


# ---- random runs


class Run:
    """Jobs of random sizes on a scheduler, until all have ended; what is asserted after each pass is the law."""

    def __init__(self, policy, groups, queues):
        self.scheduler = scheduler_of(policy, [name for name, _ in groups], queues)
        for name, resources in groups:
            self.scheduler.grown(name, resources, resources.ranks, Idset())
        self.started = []
        self.promises = {}
        self._ends = {}

    def go(self, jobs):
        """Jobs are (submit, limit, spec)."""
        arrive = {}
        for jobid, (at, _, _) in enumerate(jobs, 1):
            arrive.setdefault(at, []).append(jobid)
        while times := sorted({*arrive, *self._ends}):
            now_s = times[0]
            for jobid in self._ends.pop(now_s, ()):
                self.scheduler.free_all(jobid, now_s)
            for jobid in arrive.pop(now_s, ()):
                self.scheduler.alloc(jobid, 16, jobid % 3, now_s, jobs[jobid - 1][2], now_s)
            for effect in self.scheduler.schedule(now_s):
                if isinstance(effect, Granted):
                    self.started.append((effect.jobid, now_s, where(effect)))
                    self._ends.setdefault(now_s + jobs[effect.jobid - 1][1], []).append(effect.jobid)
            self.scheduler.check()
            for jobid, start_s in promised(self.scheduler).items():
                self.promises.setdefault(jobid, []).append(start_s)


JOBS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 30), st.integers(1, 5), st.sampled_from(("wide", "here", "x"))),
    min_size=1,
    max_size=25,
)


@example("easy", [(0, 1, 1, "wide"), (0, 1, 4, "wide"), (0, 1, 4, "wide"), (0, 1, 4, "here")])
@settings(max_examples=30, deadline=None)
@given(policy=st.sampled_from(POLICIES), jobs=JOBS)
def test_all_start_that_a_group_could_run_and_promises_are_kept(policy, jobs):
    """Every start is legal (`check`), a job has one reservation at most, and whoever is feasible somewhere starts."""
    groups = [("a", make_r("0-3")), ("b", make_r("4-5")), ("c", make_r("6-8"))]
    queues = {"wide": ("a", "b", "c"), "x": ("c", "b"), "here": "a"}
    largest = {"wide": 4, "x": 3, "here": 4}
    run = Run(policy, groups, queues)
    run.go(
        [
            (float(at), float(limit), spec(nodes=n, cores=2, exclusive=whole, duration=float(limit), queue=queue))
            for at, limit, n, queue in jobs
            for whole in [limit % 3 > 0]
        ]
    )
    expected = {jobid for jobid, (_, _, n, queue) in enumerate(jobs, 1) if n <= largest[queue]}
    assert sorted(jobid for jobid, *_ in run.started) == sorted(expected)
    assert not run.scheduler.group("a").joint
    begun = {jobid: at for jobid, at, _ in run.started}
    if policy in ("easy", "conservative:compress"):
        for jobid, promises in run.promises.items():
            assert promises == sorted(promises, reverse=True), f"job {jobid} was promised {promises}"
            assert begun[jobid] <= promises[-1]


@settings(max_examples=30, deadline=None)
@given(policy=st.sampled_from(POLICIES[:-1]), jobs=JOBS)  # accounts span groups
def test_jobs_that_fit_in_one_group_each_start_as_from_queues_of_their_own(policy, jobs):
    groups = [("a", make_r("0-3", ssd="0-3")), ("b", make_r("4-7", hdd="4-7"))]
    found = []
    for queues in ({"wide": ("a", "b")}, {"wide": ("a",), "ssd": "a", "hdd": "b"}):
        run = Run(policy, groups, queues)
        run.go(
            [
                (
                    float(at), float(limit), spec(
                        nodes=min(n, 4), exclusive=True, duration=float(limit), constraint={"properties": [kind]},
                        queue="wide" if "ssd" not in queues else kind,
                    ),
                )
                for at, limit, n, name in jobs
                for kind in ["ssd" if name == "wide" else "hdd"]
            ]
        )  # fmt: skip
        found.append((run.started, run.promises))
    assert found[0] == found[1]
