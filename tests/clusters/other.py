"""A cluster by hand: it answers what a test says, and shares no state with the loop that speaks to it."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

from fluxsched.clusters.links import ClusterPace, OwnLink
from fluxsched.clusters.loop import ClusterLoop, LeaseReports, OutputCopy
from fluxsched.config.values import ClusterSettings
from fluxsched.core.idset import EMPTY
from fluxsched.executor.base import Reports
from fluxsched.leases import Lease, LeaseState
from fluxsched.protocol import framing
from fluxsched.protocol.framing import decode, encode, make_error, make_response, unpack_bundle
from fluxsched.store.store import ImmediateWriter
from fluxsched.system.clock import SystemClock
from fluxsched.system.loop import Turns

R = {"version": 1, "execution": {"R_lite": [{"rank": "0", "children": {"core": "0"}}], "nodelist": ["node0"]}}


class Other:
    """One connection to the cluster, a `transport.base.Client`. `jobs` are the entries that it lists."""

    def __init__(self, jobs=(), *, is_silent=False):
        self.jobs, self.is_silent = list(jobs), is_silent
        self.lost = None
        self.asked: list = []
        self.messages: list = []
        self.inbox = deque()
        self._watch = None

    def start(self, loop, wake):
        self._loop, self._wake = loop, wake

    def receive(self, limit):
        return [self.inbox.popleft() for _ in range(min(limit, len(self.inbox)))]

    def send(self, frames):
        for message in unpack_bundle(decode(frames)):
            self.messages.append(message)
            self.asked.append((message.topic, framing.unpack_answer(message.payload)))
            if not self.is_silent:
                self._handle(message)

    def close(self):
        self.lost = "closed"

    def _handle(self, message):
        if message.topic == "job-manager.queue-status":
            self.put(make_error(message, 2, "no such queue"))
        elif message.topic == "resource.watch":
            self.put(make_response(message, framing.pack({"R": R, "states": {"free": "0"}, "groups": []})))
        elif message.topic == "lease.watch":
            self._watch = message
            self.tell(*self.jobs, whole=True)
        elif message.topic in ("lease.submit", "instance.info"):
            self.last = message

    def put(self, message):
        self.inbox.append(encode(message))
        self._loop.call_soon(self._wake)  # as a socket, after the turn that sent the request

    def tell(self, *jobs, whole=False):
        """Say how jobs are."""
        self.put(make_response(self._watch, framing.pack({"leases": list(jobs), "whole": whole})))

    def accept(self, jobid):
        """Answer the last submit."""
        self.put(make_response(self.last, framing.pack({"id": jobid})))

    def refuse(self, errnum, text):
        """The same with an error."""
        self.put(make_error(self.last, errnum, text))

    def lose(self):
        """The connection breaks."""
        self.lost = "connection closed"
        self._wake()

    def said(self, topic):
        """What it was asked."""
        return [payload for name, payload in self.asked if name == topic]


class Bench:
    """A loop with one lease, and what it reports; `others` are the connections it will get, one after the other."""

    def __init__(self, tmp_path, loop, *others, state=LeaseState.WANTED, **pace):
        self.others = deque(others)
        self.reported: list = []
        self.rows: list = []
        self.turns = Turns(SystemClock())
        self.turns.start(loop)
        reports = Reports(
            lambda jobid: self.reported.append(("started", jobid)),
            lambda jobid, status, usage: self.reported.append(("finished", jobid, status)),
            lambda jobid, note: self.reported.append(("failed", jobid, note)),
            lambda *_: None,
            lambda jobid, kind, note: self.reported.append(("raised", jobid, kind)),
        )
        lease_reports = LeaseReports(
            lambda: None, lambda *_: None, lambda jobid, note: self.reported.append(("returned", jobid)),
            lambda *_: None,
        )  # fmt: skip
        offered = SimpleNamespace(
            change=lambda *_: setattr(offered, "is_known", True), silent=lambda: None, targets=EMPTY, online=EMPTY,
            mirror=SimpleNamespace(wanted_groups=None), is_known=False, closed="", note="",
            close=lambda why: setattr(offered, "closed", why),
        )  # fmt: skip
        store = SimpleNamespace(
            change=lambda *row: self.rows.append(row), remove=lambda *row: self.rows.append(row), add=lambda *_: None
        )
        quick = ClusterPace(**{"reconnect_s": 0.005, "resubmit_s": 0.005} | pace)
        self.loop = ClusterLoop(
            "east", ClusterSettings("east", "ipc:///x"), self.connect,
            lambda connection, events: OwnLink(connection, events, "me", 1, None, quick), offered,
            OutputCopy(tmp_path, lambda jobid: False), reports,
            lease_reports, store, self.turns,
            ImmediateWriter(), quick,
        )  # fmt: skip
        self.turns.post(lambda: self.loop.want(Lease(1, 0, "east", "me/1", {}, state, since_s=SystemClock.wall_s())))
        self.turns.post(self.loop.open)

    def connect(self, uri, key):
        return self.others.popleft() if self.others else Other(is_silent=True)


def entry(name="me/1", jobid=7, state="waiting", **more):
    """How the cluster lists a job."""
    return {"name": name, "id": jobid, "state": state, **more}
