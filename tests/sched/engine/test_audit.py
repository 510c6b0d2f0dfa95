"""An auditor that sees only what goes in and out: the books of the job manager and the resource module.

It shares no code with the ledger. A hypothesis machine drives a whole scheduler; the auditor asserts at every
message that nothing is held twice, and that what the scheduler calls allocated is what is out. A scheduler that skips
one free is caught.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.sched.decisions import Canceled, Denied, Granted, Raise, Release
from tests.generated.share import examples
from tests.sched.site import scheduler_of, spec

RANKS, CORES = 6, 3


def targets(ranks):
    lite = [{"rank": str(ranks), "children": {"core": f"0-{CORES - 1}"}}] if ranks else []
    execution = {"R_lite": lite, "starttime": 0.0, "expiration": 0.0, "nodelist": [f"n[{ranks}]" if ranks else ""]}
    return ResourceSet.parse({"version": 1, "execution": execution})


class Auditor:
    """Who was granted which core, which targets are ours, up, and leaving."""

    def __init__(self):
        self.out = {}
        self.waiting = set()
        self.ended = set()
        self.ours = self.up = self.leaving = EMPTY

    def sees(self, effects):
        for effect in effects:
            match effect:
                case Granted(jobid, granted):
                    self.waiting.remove(jobid)
                    self.granted(jobid, ResourceSet.parse(granted))
                case Denied(jobid) | Canceled(jobid):
                    self.waiting.remove(jobid)
                case Release(_, released):
                    assert released <= self.leaving, "released what is not leaving, or twice"
                    assert not released & self.busy, "released what a job holds"
                    self.leaving -= released
                case Raise(jobid):
                    assert jobid in self.out.values(), "raised on a job that holds nothing"
                    assert jobid not in self.ended, "raised twice"
                    self.ended.add(jobid)

    def granted(self, jobid, resources):
        assert resources.ranks <= self.up & self.ours, "granted what is down or not ours"
        for core in cores_of(resources):
            assert core not in self.out, f"{core} granted to {jobid}, held by {self.out[core]}"
            self.out[core] = jobid

    def freed(self, resources):
        for core in cores_of(resources):
            del self.out[core]

    @property
    def busy(self):
        return Idset.of({rank for rank, _ in self.out})

    def audits(self, scheduler):
        total, down, allocated = scheduler.report.resource_status()
        assert total.ranks == self.ours
        assert down.ranks == self.ours - self.up
        assert set(cores_of(allocated)) == {core for core in self.out if core[0] in self.ours}, "the books differ"
        assert self.leaving <= self.busy, "a target was not released when it became free"
        ended = {jobid for (rank, _), jobid in self.out.items() if rank in self.leaving}
        assert ended <= self.ended, "a job on a leaving target was not told"


def cores_of(resources):
    return [(rank, core) for entry in resources.entries for rank in entry.ranks for core in entry.children.cores]


SETS = st.sets(st.integers(0, RANKS - 1), min_size=1).map(Idset.of)


class SchedulerMachine(RuleBasedStateMachine):
    """Jobs and targets come and go; after each event a pass, or no pass."""

    policy = "firstfit:placement=best-fit"

    def __init__(self):
        super().__init__()
        self.scheduler, self.auditor = scheduler_of(self.policy), Auditor()
        self.held = {}
        self.jobid = 0
        self.now_s = 1.0

    def did(self, effects):
        self.auditor.sees(effects)
        for effect in effects:
            if isinstance(effect, Granted):
                self.held[effect.jobid] = ResourceSet.parse(effect.R)

    @rule(ranks=SETS, down=SETS)
    def grow(self, ranks, down):
        new = ranks - self.auditor.ours - self.auditor.leaving
        self.auditor.ours |= new
        self.auditor.up = (self.auditor.up - new) | (new - down)
        self.did(self.scheduler.grown("default", targets(new), new - down, new & down))

    @rule(ranks=SETS)
    def shrink(self, ranks):
        leaving = ranks & self.auditor.ours
        self.auditor.ours -= leaving
        self.auditor.leaving |= leaving
        self.did(self.scheduler.shrunk("default", leaving, True))

    @rule(ranks=SETS, up=st.booleans())
    def change_availability(self, ranks, up):
        ranks &= self.auditor.ours
        self.auditor.up = self.auditor.up | ranks if up else self.auditor.up - ranks
        self.did((self.scheduler.went_online if up else self.scheduler.went_offline)(ranks))

    @rule(
        nodes=st.none() | st.integers(1, 3), cores=st.integers(1, 3), whole=st.booleans(), priority=st.integers(0, 3),
        limit_s=st.sampled_from([0.0, 5.0, 9.0]),
    )  # fmt: skip
    def submit(self, nodes, cores, whole, priority, limit_s):
        self.jobid += 1
        self.auditor.waiting.add(self.jobid)
        spec = Jobspec.from_command(
            ["true"], ntasks=nodes or 2, nodes=nodes, cores_per_task=cores, exclusive=whole and nodes is not None,
            duration_s=limit_s,
        )  # fmt: skip
        self.did(self.scheduler.alloc(self.jobid, priority, 1000, 0.0, spec))

    @rule(passed_s=st.sampled_from([0.0, 2.0]))
    def run(self, passed_s):
        self.now_s += passed_s
        self.did(list(self.scheduler.schedule(self.now_s)))

    @rule(data=st.data(), end_s=st.integers(0, 20).map(float))
    @precondition(lambda self: self.held)
    def expire(self, data, end_s):
        self.did(self.scheduler.expiration(data.draw(st.sampled_from(sorted(self.held))), end_s))

    @rule(data=st.data())
    @precondition(lambda self: self.held)
    def free(self, data):
        jobid = data.draw(st.sampled_from(sorted(self.held)))
        held = self.held.pop(jobid)
        part = held.restrict(held.ranks.first(data.draw(st.integers(1, len(held)))))
        if rest := held.ranks - part.ranks:
            self.held[jobid] = held.restrict(rest)
        self.auditor.freed(part)
        self.did(self.scheduler.free(jobid, part, not rest))

    @rule(data=st.data(), priority=st.integers(0, 3), cancel=st.booleans())
    @precondition(lambda self: self.jobid)
    def change(self, data, priority, cancel):
        jobid = data.draw(st.integers(1, self.jobid))
        self.did(self.scheduler.cancel(jobid) if cancel else self.scheduler.prioritize([(jobid, priority)]))

    @rule()
    def reload(self):
        """The scheduler is gone and a new one says hello; what was leaving comes back no more."""
        self.scheduler = scheduler_of(self.policy)
        self.auditor.waiting.clear()
        self.auditor.ended.clear()  # the new one cannot know whom the old one told
        self.auditor.leaving = EMPTY
        foreign = Idset.of({rank for rank, _ in self.auditor.out}) - self.auditor.ours
        up, ours = self.auditor.up & self.auditor.ours, self.auditor.ours
        self.did(self.scheduler.grown("default", targets(ours), up, ours - up))
        for jobid, held in self.held.items():
            self.did(self.scheduler.hello(jobid, 16, 1000, 0.0, held))
        there = sum(bool(held.ranks & foreign) for held in self.held.values())
        assert self.scheduler.report.stats()["foreign"] == there

    @invariant()
    def books_agree(self):
        self.scheduler.check()
        self.auditor.audits(self.scheduler)


class FifoMachine(SchedulerMachine):
    policy = "fifo:placement=worst-fit"


class EasyMachine(SchedulerMachine):
    policy = "easy:order=sjf"


class HybridMachine(SchedulerMachine):
    policy = "hybrid:depth=2"


class CompressMachine(SchedulerMachine):
    policy = "conservative:compress=yes"


SchedulerMachine.TestCase.settings = settings(max_examples=examples(25), stateful_step_count=30)
for machine in (FifoMachine, EasyMachine, HybridMachine, CompressMachine):
    machine.TestCase.settings = settings(max_examples=examples(15), stateful_step_count=30)
TestFirstFit = SchedulerMachine.TestCase
TestFifo = FifoMachine.TestCase
TestEasy, TestHybrid, TestCompress = EasyMachine.TestCase, HybridMachine.TestCase, CompressMachine.TestCase


@pytest.mark.plain_only("replaces a method of Pool")
def test_the_auditor_catches_a_skipped_free(monkeypatch):
    """The mutation: `give` forgets rank 1, so the cores freed there stay allocated."""
    scheduler, auditor = scheduler_of("fifo"), Auditor()
    pool = type(scheduler.group("default").pool)
    give = pool.give
    auditor.ours = auditor.up = Idset.parse("0-1")
    scheduler.grown("default", targets(auditor.ours), auditor.ours, EMPTY)
    auditor.waiting.add(1)
    scheduler.alloc(1, 16, 1000, 0.0, spec(nodes=1, constraint={"ranks": ["1"]}))
    (granted,) = scheduler.schedule(1.0)
    auditor.sees([granted])
    auditor.audits(scheduler)
    assert isinstance(granted, Granted)
    monkeypatch.setattr(pool, "give", lambda own, blocks: give(own, [block for block in blocks if block.word != 0b10]))
    whole = ResourceSet.parse(granted.R)
    auditor.freed(whole)
    scheduler.free(1, whole, True)
    with pytest.raises(AssertionError, match="the books differ"):
        auditor.audits(scheduler)
