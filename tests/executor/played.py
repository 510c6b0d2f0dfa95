"""An executor, and its keepers, which the test plays over a transport in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from fluxsched.core.jobspec import Jobspec
from fluxsched.executor import wire as msg
from fluxsched.executor.base import JobLaunch, Reports, ResumedJob, TaskSettings
from fluxsched.executor.proxy import KeeperExecutor, KeeperLimits
from fluxsched.system.clock import SystemClock
from fluxsched.system.loop import Turns
from fluxsched.transport.base import Arrived, Client
from tests.transport.memory import MemoryServer
from tests.waiting import until

RECORD = {"pid": 1}


class Played:
    """A keeper that says what the test has it say."""

    def __init__(self) -> None:
        self.server = MemoryServer()
        self.peer = b""
        self.heard: list[Any] = []
        self.is_ended = False

    def say(self, *messages: msg.KeeperMessage) -> None:
        for frames in msg.packed(messages):
            self.server.send(self.peer, frames)

    def listen(self) -> None:
        for one in self.server.receive(1000):
            if isinstance(one, Arrived):
                self.peer = one.peer
                self.heard += msg.from_instance(one.frames)

    def welcome(self, *held: int, version: int = msg.VERSION, measures: bool = True) -> None:
        self.say(msg.KeeperWelcome(version, 7, [msg.HeldJob(jobid, 0, True) for jobid in held], measures))

    def words(self, *kinds: type) -> list[Any]:
        self.listen()
        return [one for one in self.heard if isinstance(one, kinds)]

    @property
    def started(self) -> list[int]:
        return [one.jobid for one in self.words(msg.StartJob)]


class Bench:
    """An executor with what it reports, and its keepers."""

    def __init__(self, limits: KeeperLimits, **options: Any) -> None:
        self.turns = Turns(SystemClock(), noted=self._note)
        self.clients: dict[Any, Played] = {}
        self.said: list[tuple[Any, ...]] = []
        self.expects_bugs = False
        self.keepers: list[Played] = []
        self.left: list[Played] = []
        self.fault: OSError | None = None
        self.settled = False
        reports = Reports(
            lambda jobid: self.said.append(("started", jobid)),
            lambda jobid, status, usage: self.said.append(("finished", jobid, status)),
            lambda jobid, note: self.said.append(("failed", jobid, note)),
            lambda jobid, record, then: self.said.append(("record", jobid, record)),
            lambda jobid, kind, note: self.said.append(("raised", jobid, kind, note)),
            lambda jobid: self.said.append(("opened", jobid)),
            self.turns.post,
            lambda jobid, ranks: self.said.append(("released", jobid, str(ranks))),
            fence=lambda one: self.said.append(("fence", one)),
            node_failed=lambda jobid, note: self.said.append(("node_failed", jobid, note)),
        )
        self.executor = KeeperExecutor(self.turns, reports, self, 5.0, outlives=True, limits=limits, **options)
        self.turns.start(asyncio.get_running_loop())

    def _note(self, what: str, fault: Exception) -> None:
        if not self.expects_bugs:
            raise fault
        self.said.append(("bug", type(fault)))

    # the host of keepers

    def living(self) -> list[Client]:
        return [self._connect(keeper) for keeper in self.left]

    def start(self) -> Client:
        if self.fault is not None:
            raise self.fault
        return self._connect(Played())

    def end_keeper(self, client: Client, timeout_s: float) -> None:
        self.clients[client].is_ended = True

    def _connect(self, keeper: Played) -> Client:
        keeper.server.start(asyncio.get_running_loop(), keeper.listen)
        self.keepers.append(keeper)
        client = keeper.server.connect()
        self.clients[client] = keeper
        return client

    # what the test does

    def launch(self, jobid: int) -> JobLaunch:
        return JobLaunch(jobid, Jobspec.from_command(["true"]), {}, TaskSettings({}, Path("/spool")))

    def resume(self, *jobs: ResumedJob, records: dict[int, Any] | None = None) -> None:
        recorded = {job.launch.jobid: job.record for job in jobs if job.record is not None}
        self.executor.resume(jobs, recorded if records is None else records, self._settle)

    def _settle(self) -> None:
        self.settled = True

    def resumed(self, jobid: int, record: object | None = None, *, ending: bool = False) -> ResumedJob:
        return ResumedJob(self.launch(jobid), record, None, ending)

    until = staticmethod(until)

    def reported(self, kind: str) -> list[Any]:
        return [one[1:] for one in self.said if one[0] == kind]
