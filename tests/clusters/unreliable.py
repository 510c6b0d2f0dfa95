"""A site of two: leases here with a disk that a crash cuts off, and a cluster that loses messages, dies and comes back.

It shares no code with what it tests but the values that go in and out. What is seen from outside is in `begun` (a
program began in the cluster, under this name), `ended` (a job here ended, and how) and `settled`.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from fluxsched import leases as effect
from fluxsched.leases import Lease, LeaseEvent, LeaseState, LeaseTable, SeenJob

RETURN_AFTER_S = 60.0


@dataclass
class There:
    """A job of the cluster."""

    name: str
    id: int
    state: str = "waiting"
    began: bool = False

    def seen(self):
        if self.state == "ended":
            return SeenJob(self.name, self.id, LeaseEvent.FINISHED if self.began else LeaseEvent.REFUSED)
        return SeenJob(self.name, self.id, LeaseEvent.BEGUN if self.state == "running" else LeaseEvent.WAITING)


@dataclass
class Site:
    """`once`: the cluster knows names, as an instance of ours; else it takes two jobs of one name, as a Flux does."""

    once: bool = True
    now_s: float = 0.0
    disk: dict = field(default_factory=dict)
    """What is on disk here: jobs by id, with the state of their lease."""
    unwritten: list = field(default_factory=list)
    waiting: list = field(default_factory=list)
    """What waits for the disk: calls that the commit makes."""
    cluster: dict = field(default_factory=dict)
    is_up: bool = True
    is_connected: bool = False
    out: deque = field(default_factory=deque)
    back: deque = field(default_factory=deque)
    begun: Counter = field(default_factory=Counter)
    ended: dict = field(default_factory=dict)
    settled: set = field(default_factory=set)
    lost: set = field(default_factory=set)
    """Names that the cluster has forgotten by a fault."""
    next_id: int = 1
    jobs: int = 0

    def __post_init__(self):
        self.table = LeaseTable("east", RETURN_AFTER_S)

    # -- here

    def submit(self):
        self.jobs += 1
        self.write({self.jobs: "wanted"}, lambda jobid=self.jobs: self.want(jobid, LeaseState.WANTED))

    def want(self, jobid, state):
        lease = Lease(jobid, 0, "east", f"here/{jobid}", {}, state, since_s=self.now_s)
        self.perform(self.table.want(lease))

    def write(self, rows, then=lambda: None):
        self.unwritten.append((rows, then))

    def commit(self):
        unwritten, self.unwritten = self.unwritten, []
        for rows, _ in unwritten:
            for jobid, row in rows.items():
                if row is None:
                    self.disk.pop(jobid, None)
                else:
                    self.disk[jobid] = row
        for _, then in unwritten:
            then()

    def crash(self):
        """Killed: what was not written is lost, and so is every message on its way."""
        self.unwritten.clear()
        self.disconnect()
        self.table = LeaseTable("east", RETURN_AFTER_S)
        for jobid, row in list(self.disk.items()):
            self.want(jobid, LeaseState.RUNNING if row == "running" else LeaseState.SENT)

    def perform(self, effects):
        for one in effects:
            match one:
                case effect.SaveLease(lease):
                    self.write({lease.jobid: lease.state.value})
                case effect.LeaseFinished(jobid, _) | effect.LeaseFailed(jobid, _):
                    self.over(jobid, "ended")
                case effect.LeaseReturned(jobid, _):
                    self.over(jobid, "returned")
                case effect.LeaseDropped(jobid):
                    self.over(jobid, "dropped")
                case effect.LeaseBegan() | effect.LeaseSeen():
                    pass
                case _ if self.is_connected:
                    self.out.append(one)

    def over(self, jobid, how):
        def stored():
            assert jobid not in self.ended, "a job here ends once"
            self.ended[jobid] = how
            self.perform(self.table.stored(jobid))

        self.write({jobid: None}, stored)

    def late(self, passed_s):
        self.now_s += passed_s
        self.perform(self.table.expire(self.now_s))

    def kill(self, jobid):
        self.perform(self.table.kill(jobid))

    # -- the connection

    def disconnect(self):
        self.is_connected = False
        self.out.clear()
        self.back.clear()
        self.table.lost()

    def connect(self):
        if self.is_up and not self.is_connected:
            self.is_connected = True
            self.back.append(("listed", [job.seen() for job in self.cluster.values()]))

    def deliver(self):
        """The oldest message to the cluster, if any."""
        if self.out and self.is_up:
            self.handle(self.out.popleft())

    def hear(self):
        """The oldest message from the cluster, if any."""
        if self.back:
            kind, what = self.back.popleft()
            self.perform(getattr(self.table, kind)(what))

    # -- there

    def named(self, name):
        return [job for job in self.cluster.values() if job.name == name]

    def handle(self, message):
        match message:
            case effect.SubmitThere(lease):
                known = self.named(lease.name) if self.once else []
                job = known[0] if known else There(lease.name, self.next_id)
                if not known:
                    self.next_id += 1
                    self.cluster[job.id] = job
                self.tell(job)
            case effect.WithdrawThere(name, _):
                jobs = self.named(name)
                if not jobs:
                    self.back.append(("absent", name))
                for job in jobs:
                    if job.state == "waiting":
                        self.end(job)
            case effect.CancelThere(name, jobid, _):
                for job in self.named(name):
                    if job.state != "ended" and (job.id == jobid or (not jobid and job.state == "waiting")):
                        self.end(job)
            case effect.SettleThere(names):
                self.settled |= set(names)
                for job in [job for job in self.cluster.values() if job.name in names and job.state == "ended"]:
                    del self.cluster[job.id]

    def tell(self, job):
        if self.is_connected:
            self.back.append(("seen", job.seen()))

    def begin(self, job):
        if job.state == "waiting":
            job.state, job.began = "running", True
            self.begun[job.name] += 1
            self.tell(job)

    def end(self, job):
        if job.state != "ended":
            job.state = "ended"
            self.tell(job)

    def die(self, *, is_state_lost=False):
        """Killed; what it has stored it has when it is back, and its programs go on, unless its state is lost."""
        self.is_up = False
        self.disconnect()
        if is_state_lost:
            self.lost |= {job.name for job in self.cluster.values()}
            self.cluster.clear()
