"""`job-manager.input`: what clients send to the tasks of a job.

Law: a request is answered when there is room for more, so the slowest task holds back a client that waits for answers.
What comes before the job has started waits with its request, and is gone if its sender goes away; what a task
has not read when the job ends is dropped. Nothing of it is on disk.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import NamedTuple

from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58
from fluxsched.errors import FluxschedError, LimitExceeded, Refused
from fluxsched.jobs.job.states import INACTIVE
from fluxsched.protocol.messages.jobs import InputRequest
from fluxsched.runtime.exec.base import InputPlace, Window
from fluxsched.runtime.exec.tasks.input import HELD_BYTES_MAX
from fluxsched.runtime.messaging.peers import Peer, RpcRequest
from fluxsched.runtime.messaging.router import Router
from fluxsched.runtime.services.jobs.effects import JobEffects
from fluxsched.runtime.services.jobs.streams import JobStreams

ENDED = errno.ESRCH
"""The errno for input of a job that has ended: rarely a fault, since jobs end when they have read enough."""


class _Early(NamedTuple):
    """Input that came before the job has started."""

    request: RpcRequest
    data: bytes
    tasks: Idset | None
    eof: bool
    window: Window | None


class JobInputs:
    """Passes input on to the executor that runs the job."""

    def __init__(self, effects: JobEffects, streams: JobStreams, router: Router) -> None:
        self._effects = effects
        self._streams = streams
        self.input_of: Callable[[int], InputPlace | None] = lambda jobid: None
        """Where the input of a running job goes."""
        self._early: dict[int, list[_Early]] = {}
        router.serve({"job-manager.input": self._input})
        router.on_lost(self._lost)

    def _input(self, request: RpcRequest) -> None:
        wanted = request.payload(InputRequest)
        tasks = None if wanted.tasks is None else Idset.parse(wanted.tasks)
        self.send(request, wanted.id, wanted.data, tasks, eof=wanted.eof, window=wanted.window)

    def send(
        self, request: RpcRequest, jobid: int, data: bytes, tasks: Idset | None, *, eof: bool,
        window: Window | None = None,
    ) -> None:  # fmt: skip
        """Send what `request` asks for, and answer it in time.

        Raises Refused: ENOENT for an unknown job, ESRCH for one that has ended, ENOSYS for one that is sent no input,
        EPIPE behind an end; LimitExceeded if too much waits, which ends a job that runs.
        """
        self._check(jobid)
        one = _Early(request, data, tasks, eof, window)
        place = self.input_of(jobid)
        if place is None:
            self._keep(jobid, one)
        else:
            self._pass(place, jobid, one)

    def opened(self, jobid: int) -> None:
        """The job's tasks run: they are sent what came before."""
        for one in self._early.pop(jobid, ()):
            try:
                place = self.input_of(jobid)
                assert place is not None, "the tasks of the job run"
                self._pass(place, jobid, one)
            except FluxschedError as error:
                one.request.error(error.errnum, str(error))

    def _check(self, jobid: int) -> None:
        job = self._effects.manager.jobs.get(jobid)
        if job.state is INACTIVE:
            raise Refused(f"job {format_f58(jobid)} has ended: its input is no longer read", ENDED)
        assert job.jobspec is not None, "an active job has its jobspec"
        if job.jobspec.test_run_duration_s is not None:
            raise Refused("nothing runs for a job of the test executor: it reads no input", errno.ENOSYS)
        if job.jobspec.input is not None:
            raise Refused(f"the tasks of job {format_f58(jobid)} read {job.jobspec.input}", errno.ENOSYS)

    def _pass(self, place: InputPlace, jobid: int, one: _Early) -> None:
        def answered(error: FluxschedError | None) -> None:
            if error is None:
                one.request.respond()
                return
            if isinstance(error, LimitExceeded):
                self._effects.raise_jobs([jobid], str(error))
            one.request.error(error.errnum, str(error))

        try:
            place.send(one.data, one.tasks, eof=one.eof, answered=answered, window=one.window)
        except FluxschedError as error:
            answered(error)

    def _keep(self, jobid: int, one: _Early) -> None:
        held_bytes = sum(len(each.data) for each in self._early.get(jobid, ()))
        if held_bytes + len(one.data) > HELD_BYTES_MAX:
            limit = f"{HELD_BYTES_MAX >> 20} MiB of input wait for the job to start"
            raise LimitExceeded(f"more than {limit}: wait for answers, or for the job")
        self._early.setdefault(jobid, []).append(one)
        self._streams.when_inactive(jobid, one.request, lambda result: self._ended(jobid, one.request))

    def _ended(self, jobid: int, request: RpcRequest) -> None:
        self._early.pop(jobid, None)
        request.error(ENDED, f"job {format_f58(jobid)} has ended: its input is no longer read")

    def _lost(self, peer: Peer) -> None:
        for jobid, found in list(self._early.items()):
            left = [one for one in found if one.request.peer is not peer]
            if left:
                self._early[jobid] = left
            else:
                del self._early[jobid]
