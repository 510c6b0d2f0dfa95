"""A site that accounts share, for the tests of policy `fair`."""

from collections import Counter
from functools import cache

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.sched.decisions import Annotated, Denied, Granted
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.fair.accounts import FairSettings
from tests.sched.site import holding, make_r, policy_of, spec


class Shared:
    """A scheduler of one group that `fair` decides for; users are named by their ids, `a` is 1."""

    def __init__(self, cores, policy="fair", **fair):
        self.scheduler = Scheduler(policy_of(policy), fair=FairSettings(**fair), user_name=lambda user: chr(96 + user))
        resources = make_r("0", cores=cores)
        self.scheduler.grown("default", resources, resources.ranks, Idset())
        self.jobid = 0
        self.users = {}
        self.now_s = 0.0
        self.told = {}
        self.estimates = {}

    def submit(self, user, cores, jobs=1, bank=None, after=None, limit=0.0, priority=16):
        """So many jobs of as many cores; their ids."""
        found = []
        for _ in range(jobs):
            self.jobid += 1
            asked, who = _spec(cores, bank, after, limit), ord(user) - 96
            effects = self.scheduler.alloc(self.jobid, priority, who, float(self.jobid), asked, self.now_s)
            assert not any(isinstance(effect, Denied) for effect in effects), effects
            self.users[self.jobid] = user
            found.append(self.jobid)
        return found

    def starts(self, now_s=None):
        """The jobs that start in a pass, in that order."""
        self.now_s = self.now_s if now_s is None else now_s
        started = []
        for effect in self.scheduler.schedule(self.now_s):
            if isinstance(effect, Granted):
                started.append(effect.jobid)
            elif isinstance(effect, Annotated):
                said = effect.annotations["sched"]
                self.told[effect.jobid] = said.get("reason_pending", "")
                if "t_estimate" in said:
                    self.estimates[effect.jobid] = said["t_estimate"]
        self.scheduler.check()
        return started

    def sequence(self):
        """`A10`: an account starts a job, after which it uses so much."""
        used = Counter()
        found = []
        book = self.scheduler.accounts
        assert book is not None
        for jobid in self.starts():
            held = holding(self.scheduler, jobid)
            used[self.users[jobid]] += sum(cores.bit_count() for cores, _ in held.parts.values())
            found.append(f"{self.users[jobid].upper()}{used[self.users[jobid]]}")
        return found

    def used(self):
        """What users hold, in units of weight."""
        book = self.scheduler.accounts
        assert book is not None
        return {account.name: account.all_jobs.usage for account in book.tree.root.walk() if not account.children}


@cache
def _spec(cores, bank, after, limit):
    return Jobspec.parse(spec(cores=cores, bank=bank, preemptible_after=after, duration=limit))


@pytest.fixture(scope="session")
def shared():
    return lambda cores, *args, **options: Shared(cores, *args, **options)
