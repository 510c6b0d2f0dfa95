"""An instance's connection to one keeper: what is said is gathered for a turn, and begins with the hello."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.errors import FluxschedError, LimitExceeded, Refused
from fluxsched.runtime.exec.base import InputAnswer, JobLaunch
from fluxsched.runtime.exec.keeper import messages as msg
from fluxsched.runtime.loop.turns import Timer, Turns
from fluxsched.runtime.messaging.payload_memo import ObjectMemo
from fluxsched.transport.base import Client

RECEIVE_MAX = 64
"""Transport messages taken at a time."""


class KeeperLink:
    """One keeper as its instance knows it."""

    def __init__(self, client: Client, turns: Turns) -> None:
        self.client = client
        self.jobs: set[int] = set()
        """Those that it has been given, or said that it has, whose end has not been reported."""
        self.is_known = False
        """Whether it has answered the hello."""
        self.version = msg.VERSION
        """Of its messages; a keeper that we have started has ours."""
        self.is_retiring = False
        """It serves the jobs that it has, and gets no other."""
        self.is_ending = False
        """It was told to end."""
        self.clearing: Mapping[int, object] | None = None
        """Records of processes that it is to end."""
        self.inputs: dict[int, tuple[int, int, InputAnswer]] = {}
        """By number: job, bytes and answer of input that it has not answered."""
        self.unhandled: list[int] = []
        """Serial numbers of reports whose handling failed."""
        self.patience: Timer | None = None
        """When it must have answered the hello."""
        self._turns = turns
        self._outbox: list[msg.KeeperMessage] = []
        self._has_said = False
        self._jobspecs = ObjectMemo(msg.packed_jobspec, lambda packed: memoryview(packed).nbytes)
        self._given: tuple[Mapping[str, str], Sequence[Idset] | None] | None = None

    @property
    def has_said(self) -> bool:
        """Whether there was anything to say to it."""
        return self._has_said

    def say(self, *messages: msg.KeeperMessage) -> None:
        """Send with the end of the turn."""
        if not self._has_said:
            self._has_said = True
            self._outbox.append(msg.KeeperHello(msg.VERSION, os.getpid()))
        self._outbox += messages
        self._turns.wake()

    def start(self, job: JobLaunch, kill_timeout_s: float, *, outlives: bool) -> None:
        """Have it start a job; what it has in common with those before is sent once."""
        given = self._given
        if given is None or given[0] is not job.environment or given[1] is not job.cores:
            self._given = job.environment, job.cores
            cores = None if job.cores is None else [str(units) for units in job.cores]
            spool = os.path.realpath(job.spool)
            self.say(msg.KeeperSettings(spool, dict(job.environment), cores, kill_timeout_s, outlives))
        self.jobs.add(job.jobid)
        jobspec = self._jobspecs.of(job.jobspec)
        self.say(msg.StartJob(job.jobid, job.attempt, jobspec, dict(job.R), job.expiration_s))

    def welcomed(self, version: int) -> None:
        """It has answered the hello."""
        if self.patience is not None:
            self.patience.cancel()
        self.is_known, self.version = True, version

    def flush(self) -> None:
        """Hand what was said to the transport."""
        if self._outbox:
            outbox, self._outbox = self._outbox, []
            for frames in msg.packed(outbox):
                self.client.send(frames)

    def receive(self) -> tuple[list[Any], bool]:
        """What it has said, and whether there may be more. Raises RemoteProtocolError."""
        arrived = self.client.receive(RECEIVE_MAX)
        return [one for frames in arrived for one in msg.from_keeper(frames)], len(arrived) == RECEIVE_MAX

    def held_bytes(self, jobid: int) -> int:
        """Input of a job that it has not answered."""
        return sum(size for job, size, _ in self.inputs.values() if job == jobid)

    def input_answered(self, one: msg.InputAnswered) -> None:
        """It has room for more input, or has refused this one."""
        refused = LimitExceeded if one.exceeded else Refused
        self.answer_input(one.number, refused(one.note, one.errnum) if one.errnum else None)

    def answer_input(self, number: int, error: FluxschedError | None) -> None:
        """Tell the sender of input what became of it."""
        found = self.inputs.pop(number, None)
        if found is not None:
            found[2](error)
