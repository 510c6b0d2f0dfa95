"""Whatever happens, in whatever order: no target is held twice, no part is below its minimum, and no extra is kept
where the first who waits could start; judged by a count of its own.
"""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fluxsched.core.idset import EMPTY
from fluxsched.sched.fair.accounts import FairSettings
from tests.sched.elastic.elastic_site import ElasticSite, jobspec, resources

TARGETS = 10

JOB = st.tuples(
    st.sampled_from(["1-3", "2-8", "2-8:2", "1+:2:*", "3-4", 1, 2, 5]),  # an elastic job, or one that is not
    st.integers(1, 3),  # its user
    st.sampled_from([0.0, 40.0]),
)
EVENT = st.one_of(
    st.tuples(st.just("submit"), JOB),
    st.tuples(st.just("end"), st.integers(0, 9)),
    st.tuples(st.just("gone"), st.integers(0, 9)),
    st.tuples(st.just("refuse grow"), st.integers(0, 9)),
    st.tuples(st.just("refuse shrink"), st.integers(0, 9)),
    st.tuples(st.just("store"), st.none()),
    st.tuples(st.just("time"), st.sampled_from([1.0, 61.0])),
)


class Judge:
    """What outsiders see: which job was told that it has which targets."""

    def __init__(self, site):
        self.site = site
        self.least = {}
        self.values = {}

    def knows(self, jobid, nodes):
        ranges = {"1-3": {1, 2, 3}, "2-8": {*range(2, 9)}, "2-8:2": {2, 4, 6, 8}, "1+:2:*": {1, 2, 4, 8}, "3-4": {3, 4}}
        self.values[jobid] = ranges[nodes] if isinstance(nodes, str) else {nodes}
        self.least[jobid] = min(self.values[jobid])

    def check(self):
        """Of the job manager's record: nothing is held twice, and each size is a value of the job's range."""
        seen = EMPTY
        for jobid, held in self.site.held.items():
            assert held.ranks.isdisjoint(seen), f"job {jobid}"
            seen |= held.ranks
            left = len(held.ranks - self.site.leaving.get(jobid, EMPTY))
            assert left in self.values[jobid], f"job {jobid} has {left}, not one of {self.values[jobid]}"

    def check_settled(self, waiting, is_fair):
        """Nothing is under way: the first who waits would not fit if all extras went."""
        if not waiting or is_fair:
            return
        held = sum(len(each.ranks) for each in self.site.held.values())
        extras = sum(len(each.ranks) - self.least[job] for job, each in self.site.held.items() if job in self.least)
        assert TARGETS - held + extras < self.least[waiting[0]], "an extra is where the first who waits could start"


NOT_STORED = [("submit", (size, 1, 0.0)) for size in (5, "1-3", "2-8")] + [("end", 1), ("submit", ("1-3", 1, 0.0))]
"""The grow of job 3 is not stored yet when job 4 waits."""


@settings(max_examples=30, deadline=None)
@example("fifo", NOT_STORED)
@given(st.sampled_from(["fifo", "easy", "fair:backfill=easy"]), st.lists(EVENT, max_size=25))
def test_sizes_hold_through_all_that_happens(policy, events):
    site = ElasticSite(policy, f"0-{TARGETS - 1}", fair=FairSettings())
    site.answers = False
    judge, waiting = Judge(site), list[int]()
    for number, (what, how) in enumerate(events, 1):
        act(site, judge, waiting, number, what, how)
        site.run()
        waiting[:] = [job for job in waiting if job not in site.held]
        judge.check()
    site.answers = True
    for _ in range(20):
        site.did([])
        site.now_s += 61.0
        site.scheduler.group("default").invalidate_pass()
        site.run()
        waiting[:] = [job for job in waiting if job not in site.held]
        if not site.leaving and not any(one.jobid in site.held for one in site.raised):
            break
        site.gone()
    waiting[:] = [job for job in waiting if job not in site.held]
    judge.check()
    judge.check_settled(waiting, policy.startswith("fair"))
    for jobid in list(site.held):
        site.end(jobid)
    site.scheduler.check()
    assert not site.scheduler.report.resource_status()[2].ranks


def act(site, judge, waiting, number, what, how):
    held = sorted(site.held)
    if what == "submit":
        nodes, user, duration = how
        system = {"duration": duration, "preemptible-after": 0} if number % 2 else {"duration": duration}
        judge.knows(number, nodes)
        waiting.append(number)
        site.submit(number, jobspec(nodes, elastic=isinstance(nodes, str), **system), user)
    elif what == "time":
        site.now_s += how
    elif what == "store":
        site.answer()
    elif what == "refuse grow" and site.unanswered:
        grown = site.unanswered.pop(0)
        site.did(site.scheduler.grow_failed(grown.jobid, grown.resources.ranks, site.now_s))
    elif what == "refuse shrink" and site.leaving:
        jobid = min(site.leaving)
        site.scheduler.shrink_failed(jobid, site.leaving.pop(jobid), site.now_s)
    elif held and what in ("end", "gone"):
        jobid = held[how % len(held)]
        if what == "end":
            site.end(jobid)
            for grown in [one for one in site.unanswered if one.jobid == jobid]:
                site.unanswered.remove(grown)
                site.did(site.scheduler.grow_failed(jobid, grown.resources.ranks, site.now_s))
        elif jobid in site.leaving:
            site.gone(jobid)


def test_the_judge_sees_a_target_that_is_held_twice():
    site = ElasticSite("fifo", "0-3")
    judge = Judge(site)
    judge.knows(1, 2)
    judge.knows(2, 2)
    site.held = {1: resources("0-1"), 2: resources("1-2")}
    try:
        judge.check()
    except AssertionError:
        return
    raise AssertionError("it sees nothing")
