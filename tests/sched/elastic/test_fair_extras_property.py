"""Under fair shares, whatever happens: whose extras go for whom, and that none stay where the first could start."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.idset import Idset
from fluxsched.core.request import Count
from fluxsched.sched.decisions import Effect, Granted, Grown, Raise, Shrunk
from fluxsched.sched.fair.accounts import FairSettings
from tests.generated.share import examples
from tests.sched.elastic.elastic_site import ElasticSite, jobspec
from tests.sched.elastic.extras_judge import ElasticAsked, ExtrasJudge

TARGETS, CORES = 10, 4
RANGES = {
    "1-3": [1, 2, 3], "2-8": [*range(2, 9)], "2-8:2": [2, 4, 6, 8], "1+:2:*": [1, 2, 4, 8], "1-9": [*range(1, 10)],
}  # fmt: skip

EVENTS = [*["submit"] * 5, "end", "end", "gone", "refuse shrink", "time", "time"]


def event(chance):
    """Something that happens; even chances, so that most sites are full."""
    what = chance.choice(EVENTS)
    if what == "submit":
        nodes = chance.choice([*RANGES, 1, 2, 3, 4, 5])  # elastic, or not
        whose = chance.choice([("default", 1), ("default", 2), ("default", 3), ("physics", 1), ("physics", 2)])
        return what, (nodes, whose, chance.choice([None, None, 0.0]), chance.choice([0.0, 40.0]))
    return what, chance.choice([1.0, 61.0, 3600.0]) if what == "time" else chance.randrange(10)


class JudgedSite(ElasticSite):
    """A site whose judge hears of all that it does."""

    def __init__(self, *args, **options):
        self.judge = ExtrasJudge(TARGETS)
        super().__init__(*args, **options)

    def did(self, effects):
        mine = [one for one in effects if isinstance(one, Granted | Grown | Shrunk | Raise)]
        self.judge.decided(list[Effect](mine), self.now_s)
        return super().did(effects)

    def happens(self, number, what, how):
        if what == "submit":
            nodes, (bank, user), after, duration = how
            sizes = RANGES.get(nodes) or [nodes]
            job = ElasticAsked(number, (bank, str(user)), sizes, nodes in RANGES)
            self.judge.submitted(job, float(number))
            own = {} if after is None else {"preemptible-after": after}
            spec = jobspec(nodes, elastic=nodes in RANGES, cores=CORES, bank=bank, duration=duration, **own)
            self.submit(number, spec, user)
        elif what == "time":
            self.now_s += how
        elif what == "refuse shrink" and self.leaving:
            jobid = min(self.leaving)
            self.judge.stays(jobid)
            self.scheduler.shrink_failed(jobid, self.leaving.pop(jobid), self.now_s)
        elif self.held and what in ("end", "gone"):
            jobid = sorted(self.held)[how % len(self.held)]
            if what == "end":
                self.end(jobid)
            elif jobid in self.leaving:
                self.gone(jobid)

    def end(self, jobid):
        if jobid in self.held:
            self.judge.now_s = self.now_s
            self.judge.freed(jobid, list(self.held[jobid].ranks))
        super().end(jobid)

    def gone(self, *jobids):
        self.judge.now_s = self.now_s
        for jobid in jobids or self.leaving:
            if not any(one.jobid == jobid for one in self.raised):
                self.judge.freed(jobid, list(self.leaving[jobid]))
        return super().gone(*jobids)

    def settle(self):
        """Until nothing is under way."""
        for _ in range(40):
            self.now_s += 61.0
            self.look()
            if not self.leaving and not any(one.jobid in self.held for one in self.raised):
                return
            self.gone()
        raise AssertionError("jobs give way without end")


@settings(max_examples=examples(30), deadline=None)
@given(st.sampled_from(["easy", "conservative", "firstfit"]), st.sampled_from([0, 60]), st.integers(0, 10**9))
def test_extras_go_for_those_within_their_share_and_none_stays_in_the_way_of_the_first(inner, rate, seed):
    site, chance = (
        JudgedSite(f"fair:backfill={inner}", f"0-{TARGETS - 1}", CORES, fair=FairSettings(rate=rate)),
        Random(seed),
    )
    for number in range(1, 21):
        site.happens(number, *event(chance))
        site.run()
        if not number % 5:
            site.settle()
            site.judge.check_settled(site.now_s)


def test_the_ranges_are_those_of_jobspecs():
    for text, sizes in RANGES.items():
        assert [size for size in range(1, 11) if size in Count.parse(text)] == sizes


def test_the_judge_sees_extras_that_go_or_stay_wrongly():
    judge = ExtrasJudge(10)
    judge.submitted(ElasticAsked(1, ("default", "1"), [*range(1, 11)], True), 1.0)
    judge.got(1, [*range(10)])
    judge.submitted(ElasticAsked(2, ("default", "2"), [3], False), 2.0)
    with pytest.raises(AssertionError, match="extras are kept"):
        judge.check_settled(2.0)
    with pytest.raises(AssertionError, match="not above its share"):
        judge.decided([Shrunk(1, Idset.parse("1-9"), "", 2)], 2.0)
    judge.stays(1)
    judge.submitted(ElasticAsked(3, ("default", "1"), [1], False), 3.0)
    with pytest.raises(AssertionError, match="of one account"):
        judge.decided([Shrunk(1, Idset.parse("9"), "", 3)], 3.0)
    judge.submitted(ElasticAsked(4, ("default", "4"), [6], False), 4.0)
    with pytest.raises(AssertionError, match="not within its share"):
        judge.decided([Shrunk(1, Idset.parse("4-9"), "", 4)], 4.0)
