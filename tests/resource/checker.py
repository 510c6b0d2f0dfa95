"""An independent judge of the resource module: plain sets, fed with nothing but requests, effects and a few reads.

Law: it never looks inside the module. Model acquirers believe what they are told, some of them late; model jobs take
what their acquirer believes to be free. After every step `World.check` asserts the law: a target belongs to
one group, at most one acquirer counts it, and no two jobs of different acquirers ever hold it.
"""

from __future__ import annotations

from fluxsched.core.idset import Idset
from fluxsched.core.resources import GroupChange
from fluxsched.resource.effects import AcquisitionEnded, Journal, RaiseJobs, Save, ToAcquirer


class Acquirer:
    """What one acquirer was sent (`sent_*`, at once) and what it has read and believes (late)."""

    def __init__(self, name, group, typed):
        self.name, self.group, self.typed = name, group, typed
        self.sent_told, self.sent_owing, self.sent_up = set(), set(), set()
        self.told, self.owing, self.up = set(), set(), set()
        self.busy = {}  # jobs that it knows of: those of hello and its own
        self.inbox = []
        self.first_seen = False

    def send(self, change, hello):
        """The module's words arrive in the inbox; they must make sense in this order."""
        assert change != GroupChange(), "an empty change"
        assert self.first_seen or change.grow is not None, "something before the first grow"
        if change.grow is not None:
            assert self.typed or not self.first_seen, "a plain acquirer was sent a grow"
            joined = self._parts(change.grow, change.online & change.joined, change.offline & change.joined)
            assert not joined & (self.sent_told | self.sent_owing), "grown twice, or before its release"
            self.first_seen = True
            self.sent_told |= joined
            self.sent_up |= set(change.online & change.joined)
        leaving = set(change.shrink)
        assert leaving <= self.sent_told, "shrink of what it was not told"
        self.sent_told -= leaving
        self.sent_up -= leaving
        self.sent_owing |= leaving if self.typed else set()
        on, off = set(change.online - change.joined), set(change.offline - change.joined)
        assert on <= self.sent_told - self.sent_up, "online that was online, or not told"
        assert off <= self.sent_up, "offline that was not online"
        self.sent_up = (self.sent_up | on) - off
        self.inbox.append((change, hello))

    @staticmethod
    def _parts(resources, online, offline):
        joined = set(resources.ranks)
        assert not set(online) & set(offline), "online and offline at once"
        assert set(online) | set(offline) == joined, "neither online nor offline"
        return joined

    def read(self, count):
        """Believe the next `count` things in the inbox."""
        taken, self.inbox = self.inbox[:count], self.inbox[count:]
        for change, hello in taken:
            match change:
                case GroupChange():
                    self.told |= set(change.joined)
                    self.up = (self.up | set(change.online)) - set(change.offline | change.shrink)
                    self.busy |= hello
                    self.told -= set(change.shrink)
                    self.owing |= set(change.shrink) if self.typed else set()
                case ("free", jobid, targets):
                    if jobid in self.busy:
                        self.busy[jobid] = self.busy[jobid] - targets

    @property
    def in_use(self):
        return set().union(*self.busy.values())

    @property
    def free(self):
        return (self.told & self.up) - self.in_use

    @property
    def releasable(self):
        return self.owing - self.in_use


class World:
    """Everything around one module: its store, its acquirers, the jobs, and the weather as it was reported."""

    def __init__(self, ranks, key_of):
        self.ranks, self.key_of = set(ranks), key_of
        self.rows, self.acquirers, self.jobs, self.raised = {}, {}, {}, set()
        self.online, self.torpid, self.lost = set(), set(), set()
        self.asleep = set()  # keys of hosts that were not there at the last restart: their rows sleep
        self.ended = []
        self.owners = {}

    # ---- performing effects

    def perform(self, effects):
        for effect in effects:
            match effect:
                case Save(table, key, None):
                    assert (table, key) in self.rows, f"delete of {key}, which is not in {table}"
                    del self.rows[table, key]
                case Save(table, key, value):
                    self.rows[table, key] = value
                case ToAcquirer(name, change, group):
                    acquirer = self.acquirers[name]
                    assert acquirer.group == group
                    if acquirer.first_seen:
                        assert not set(change.joined) & self.held, "a target was grown while a job holds it"
                        acquirer.send(change, {})
                    else:
                        acquirer.send(change, self._hello(change))
                case RaiseJobs(targets, jobids, _):
                    self._check_raise(set(targets), jobids)
                case AcquisitionEnded(name):
                    self.ended.append(name)
                case Journal(event):
                    assert event["name"]
                    assert event["context"]

    def _hello(self, change):
        """What `job-manager.sched-hello` tells whoever has just acquired: the jobs on what it got."""
        mine = set(change.joined)
        return {jobid: held & mine for jobid, held in self.jobs.items() if held & mine}

    def _check_raise(self, targets, jobids):
        assert jobids
        for jobid in jobids:
            assert jobid not in self.raised, f"job {jobid} is raised twice"
            assert self.jobs[jobid] & targets, f"job {jobid} is raised for targets it does not hold"
            self.raised.add(jobid)

    # ---- the judgement

    @property
    def held(self):
        return set().union(*self.jobs.values())

    @property
    def drained(self):
        return {rank for rank in self.ranks if ("drain", self.key_of(rank)) in self.rows}

    @property
    def usable(self):
        return self.online - self.torpid - self.drained

    def check(self, module):
        """Everything that must hold between two steps."""
        module.check()
        self._check_groups(module)
        self._check_acquirers(module)
        self._check_jobs()
        self._check_rows(module)

    def _check_groups(self, module):
        owners = {}
        for view in module.report.groups():
            assert not view.targets & view.leaving, "member and leaving at once"
            assert view.acquirer is not None or not view.leaving & view.incoming, "it could be home"
            for rank in view.targets | view.leaving:
                assert rank not in owners, f"target {rank} belongs to {owners[rank]} and {view.name}"
                owners[rank] = view.name
        assert self.ranks - self.lost <= owners.keys() <= self.ranks, "a target belongs to no group"
        for rank, before in self.owners.items():
            after = owners.get(rank)
            assert after == before or rank not in self.held, f"target {rank} moved to {after} while a job holds it"
        self.owners = owners
        excluded = set(module.targets_of_group("exclude"))
        assert not excluded & self.drained, "an excluded target is drained"
        assert all(acquirer.group != "exclude" for acquirer in self.acquirers.values())

    def _check_acquirers(self, module):
        counted, groups = {}, set()
        for acquirer in self.acquirers.values():
            assert acquirer.group not in groups, "a group was acquired twice"
            groups.add(acquirer.group)
            for rank in acquirer.sent_told | acquirer.sent_owing:
                assert rank not in counted, f"target {rank} counts for {counted[rank]} and {acquirer.name}"
                assert self.owners[rank] == acquirer.group, f"{acquirer.name} counts {rank} of another group"
                counted[rank] = acquirer.name
            members = set(module.targets_of_group(acquirer.group))
            if acquirer.typed:
                assert acquirer.sent_told == members, "the acquirer's view is not the module's"
            assert acquirer.sent_told <= members, "a plain acquirer was told of more than its group has"
            assert acquirer.sent_up == acquirer.sent_told & self.usable, "it has not heard what is usable"
            assert set(module.usable(acquirer.group)) == members & self.usable

    def _check_jobs(self):
        taken = {}
        for jobid, held in self.jobs.items():
            for rank in held:
                assert rank not in taken, f"target {rank} is held by jobs {taken[rank]} and {jobid}"
                taken[rank] = jobid

    def _check_rows(self, module):
        state = module.report.move_state(Idset.of(self.ranks))
        moving = {self.key_of(rank) for rank in state.leaving | state.draining}
        stored = {key for table, key in self.rows if table == "leaving"} - self.asleep
        assert stored == moving, "stored moves are not those under way"
        for rank in state.draining:
            assert rank in self.held, f"target {rank} waits for a graceful move, but no job holds it"
        owing = set().union(*(acquirer.sent_owing for acquirer in self.acquirers.values()))
        for rank in state.leaving:
            bound = rank in owing or rank in self.held
            assert bound, f"target {rank} is leaving and nothing holds it back"
