"""Any order of assigns, drains, weather, acquirers of both dialects, late messages, jobs, losses and restarts.

The judge is checker.py, which does not share a line with the module.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue, Refused, RemoteProtocolError
from fluxsched.resource.drain import OVERWRITE
from fluxsched.resource.effects import Saved
from fluxsched.resource.inventory import Inventory
from fluxsched.resource.module import ResourceModule
from tests.generated.share import examples

SPEC = importlib.util.spec_from_file_location("resource_checker", Path(__file__).with_name("checker.py"))
checker = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(checker)

SIZE = 6
CONFIG = {"b": {4}, "exclude": {5}}
GROUPS = ["default", "b", "c", "exclude"]
TARGETS = st.sets(st.integers(0, SIZE - 1), min_size=1, max_size=4)
REFUSALS = (Refused, InvalidValue)


def make_r(ranks):
    entries = [{"rank": str(Idset.of(ranks)), "children": {"core": "0-1"}}] if ranks else []
    hosts = ",".join(f"n{rank}" for rank in sorted(ranks))
    return ResourceSet.parse({"version": 1, "execution": {"R_lite": entries, "nodelist": [hosts]}})


class ResourceMachine(RuleBasedStateMachine):
    """The rules are what peers and people may do, in any order; `judge` runs after each."""

    def __init__(self):
        super().__init__()
        self.now_s = 0.0
        self.next_job = 1
        self.next_name = 1
        self.world = checker.World(range(SIZE), lambda rank: f"n{rank}")
        self.world.online = set(range(SIZE))
        self.boot()

    def boot(self):
        world = self.world
        present = world.ranks - world.lost
        saved = [Saved(table, key, value) for (table, key), value in world.rows.items()]
        groups = {name: Idset.of(ranks & present) for name, ranks in CONFIG.items()}
        inventory = Inventory(make_r(present), "dynamic-discovery", True)
        self.module = ResourceModule(inventory, groups, saved, now_s=self.now_s, online=Idset.of(world.online))
        for jobid, held in world.jobs.items():
            self.module.hold(jobid, Idset.of(held))
        world.perform(self.module.start(self.now_s))

    def call(self, name, *args, **kwargs):
        """A request whose refusal must leave nothing behind."""
        self.now_s += 1
        rows = dict(self.world.rows)
        try:
            effects = getattr(self.module, name)(*args, **kwargs)
        except REFUSALS:
            assert self.module.journal.take_effects() == []
            assert self.world.rows == rows
            return False
        self.world.perform(effects)
        return True

    # ---- people

    @rule(ranks=TARGETS, group=st.sampled_from(GROUPS), graceful=st.booleans())
    def assign(self, ranks, group, graceful):
        done = self.call("assign", Idset.of(ranks), group, self.now_s, graceful)
        assert done == (not ranks & self.world.lost)

    @rule(ranks=TARGETS, graceful=st.booleans())
    def include(self, ranks, graceful):
        self.call("include", Idset.of(ranks), self.now_s, graceful)

    @rule(ranks=TARGETS, mode=st.sampled_from([None, *OVERWRITE]))
    def drain(self, ranks, mode):
        excluded = set(self.module.targets_of_group("exclude"))
        wrong = ranks & (excluded | self.world.lost)
        twice = ranks & self.world.drained if mode in (None, "none") else set()
        done = self.call("drain", Idset.of(ranks), "why", mode, "ann", self.now_s)
        assert done == (not wrong and not twice)
        assert not done or ranks <= self.world.drained

    @rule(ranks=TARGETS, mode=st.sampled_from([None, *OVERWRITE]))
    def undrain(self, ranks, mode):
        idle = ranks - self.world.drained if mode in (None, "none") else set()
        done = self.call("undrain", Idset.of(ranks), None, mode, "ann", self.now_s)
        assert done == (mode != "add" and not idle and not ranks & self.world.lost)
        assert not done or not ranks & self.world.drained

    # ---- weather

    @rule(ranks=TARGETS, state=st.sampled_from(["online", "offline", "torpid", "lively"]))
    def change_availability(self, ranks, state):
        world, ranks = self.world, ranks - self.world.lost
        if state == "online":
            world.online |= ranks
        elif state == "offline":
            world.online -= ranks
            world.torpid -= ranks
        elif state == "torpid":
            world.torpid |= ranks & world.online
        else:
            world.torpid -= ranks
        assert self.call(f"set_{state}", Idset.of(ranks), self.now_s)

    @rule(rank=st.integers(0, SIZE - 1))
    def lose(self, rank):
        if f"n{rank}" in self.world.asleep:
            return  # not seen since the restart
        self.world.online.discard(rank)
        self.world.torpid.discard(rank)
        self.world.lost.add(rank)
        assert self.call("set_lost", Idset.of([rank]), self.now_s)

    @precondition(lambda self: self.world.lost)
    @rule(data=st.data())
    def restore(self, data):
        target = data.draw(st.sampled_from(sorted(self.world.lost)))
        self.world.lost.discard(target)
        self.world.asleep.discard(f"n{target}")
        assert self.call("add_targets", make_r({target}), self.now_s)
        assert self.module.resources.host(target) == f"n{target}"

    # ---- acquirers

    @rule(group=st.sampled_from(GROUPS), typed=st.booleans())
    def acquire(self, group, typed):
        group = group if typed else "default"
        name = f"S{self.next_name}"
        self.next_name += 1
        taken = {acquirer.group for acquirer in self.world.acquirers.values()}
        known = group in {view.name for view in self.module.report.groups()}
        self.world.acquirers[name] = checker.Acquirer(name, group, typed)
        done = self.call("acquire", name, group if typed else None, typed)
        assert done == (known and group != "exclude" and group not in taken)
        if not done:
            del self.world.acquirers[name]

    def some(self, data):
        return self.world.acquirers[data.draw(st.sampled_from(sorted(self.world.acquirers)))]

    @precondition(lambda self: self.world.acquirers)
    @rule(data=st.data())
    def lose_acquirer(self, data):
        self.drop(self.some(data))

    def drop(self, acquirer):
        raised = set(self.world.raised)
        expected = {job for job, held in self.world.jobs.items() if held & acquirer.sent_owing} - raised
        del self.world.acquirers[acquirer.name]
        assert self.call("disconnect", acquirer.name, self.now_s)
        assert self.world.ended.pop() == acquirer.name
        assert self.world.raised - raised == expected

    @precondition(lambda self: self.world.acquirers)
    @rule(data=st.data(), count=st.integers(1, 4))
    def read(self, data, count):
        self.some(data).read(count)

    @precondition(lambda self: any(acquirer.owing for acquirer in self.world.acquirers.values()))
    @rule(data=st.data(), early=st.booleans())
    def release(self, data, early):
        acquirer = self.some(data)
        targets = acquirer.owing if early else acquirer.releasable
        acquirer.owing = acquirer.owing - targets
        acquirer.sent_owing = acquirer.sent_owing - targets
        if acquirer.typed and targets:
            assert self.call("release", acquirer.name, acquirer.group, Idset.of(targets), self.now_s)

    @precondition(lambda self: self.world.acquirers)
    @rule(data=st.data(), ranks=TARGETS, group=st.sampled_from(GROUPS))
    def wrong_release(self, data, ranks, group):
        acquirer = self.some(data)
        if acquirer.typed and group == acquirer.group and ranks <= acquirer.sent_owing:
            return
        with pytest.raises(RemoteProtocolError):
            self.module.release(acquirer.name, group, Idset.of(ranks), self.now_s)
        assert self.module.journal.take_effects() == []

    # ---- jobs

    @precondition(lambda self: self.world.acquirers)
    @rule(data=st.data(), sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3), late=st.booleans())
    def start_jobs(self, data, sizes, late):
        """An acquirer allocates what it believes to be free; its success arrives, and the instance checks it."""
        acquirer = self.some(data)
        if not late:
            acquirer.read(len(acquirer.inbox))
        for size in sizes:
            targets = set(sorted(acquirer.free)[:size])
            if targets and self.success(acquirer, targets):
                self.start_job(acquirer, targets)

    def success(self, acquirer, targets):
        """Whether the instance takes it; only a plain acquirer that is late may be wrong, it has no release."""
        foreign = self.module.foreign([acquirer.group], Idset.of(targets))
        if foreign:
            assert not acquirer.typed, "a typed acquirer lost a target that it had not released"
            assert acquirer.inbox, "a plain acquirer that has read everything used what is not its own"
        return not foreign

    def start_job(self, acquirer, targets):
        jobid, self.next_job = self.next_job, self.next_job + 1
        self.world.jobs[jobid] = targets
        acquirer.busy[jobid] = targets
        self.world.perform(self.module.hold(jobid, Idset.of(targets)))

    @precondition(lambda self: self.world.jobs)
    @rule(data=st.data(), whole=st.booleans())
    def end_job(self, data, whole):
        jobid = data.draw(st.sampled_from(sorted(self.world.jobs)))
        held = self.world.jobs[jobid]
        freed = held if whole else {min(held)}
        left = held - freed
        if left:
            self.world.jobs[jobid] = left
        else:
            del self.world.jobs[jobid]
            self.world.raised.discard(jobid)
        for acquirer in self.world.acquirers.values():
            acquirer.inbox.append((("free", jobid, freed), {}))
        self.world.perform(self.module.unhold(jobid, Idset.of(freed), self.now_s))

    @rule()
    def restart(self):
        """Everybody is gone, jobs and rows are left."""
        self.world.acquirers.clear()
        self.world.raised.clear()
        self.world.torpid.clear()
        self.world.asleep = {self.world.key_of(rank) for rank in self.world.lost}
        for rank in self.world.lost:
            self.world.owners.pop(rank, None)
        self.boot()

    @initialize(typed=st.booleans(), sizes=st.lists(st.integers(1, 2), max_size=3), gone=st.booleans())
    def begin(self, typed, sizes, gone):
        """A machine at work: somebody has acquired default and started jobs, and is perhaps gone."""
        self.acquire("default", typed)
        (acquirer,) = self.world.acquirers.values()
        acquirer.read(1)
        for size in sizes:
            if targets := set(sorted(acquirer.free)[:size]):
                self.start_job(acquirer, targets)
        if gone:
            self.drop(acquirer)

    @invariant()
    def judge(self):
        self.world.check(self.module)


ResourceMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40)
TestResourceMachine = ResourceMachine.TestCase
