"""Commands beside the tasks of jobs (`job-manager.exec`): their start, their output and their end.

Law: a command lives as long as its request: it is ended when its client goes away, and with its job. What it writes
goes the way of what tasks write, and is removed with the stream.
"""

# Not compiled: it inherits from OutputFollower, which is not

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Container
from functools import partial

from fluxsched.core.jobid import format_f58
from fluxsched.errors import FluxschedError, Refused
from fluxsched.executor.base import spool_directory
from fluxsched.executor.commands import CommandExecutor, HostCommand
from fluxsched.executor.layout import remove
from fluxsched.messaging.peers import RpcRequest
from fluxsched.messaging.router import Router
from fluxsched.protocol.messages import jobs as msg
from fluxsched.services.job_effects import JobEffects
from fluxsched.services.job_streams import JobStreams, OutputFollower


class CommandFollower(OutputFollower):
    """The stream of one command."""

    status: int | None = None
    """Wait status of the command; None while it runs."""

    def __init__(self, request: RpcRequest, number: int, directory: str) -> None:
        """`directory` has what the command writes, and is removed when that is not needed any more."""
        super().__init__(request, number, follow=True)
        self._directory = directory

    def discard(self) -> None:
        """Remove what the command has written, if it has ended."""
        if self.status is not None:
            remove(self._directory)

    def has_ended(self, active: Container[int]) -> bool:
        """See `OutputFollower`."""
        return self.status is not None

    def send(self, piece: msg.OutputResponse) -> int:
        """See `OutputFollower`."""
        self.request.respond(msg.ExecResponse(stream=piece.stream, data=piece.data))
        return 0

    def end_stream(self) -> None:
        """See `OutputFollower`."""
        self.request.respond(msg.ExecResponse(status=self.status))
        self.request.finish()
        self.discard()


class JobCommands:
    """Serves `job-manager.exec`."""

    def __init__(
        self, effects: JobEffects, streams: JobStreams, router: Router, new_id: Callable[[float], int]
    ) -> None:
        self.running: set[int] = set()
        """The numbers of the commands that run."""
        self._effects = effects
        self._streams = streams
        self._new_id = new_id
        router.serve({"job-manager.exec": self._exec})

    def _exec(self, request: RpcRequest) -> None:
        wanted, executor = request.payload(msg.ExecRequest), self._effects.executors["local"]
        kill = executor.kill
        launch = self._effects.running_launch(wanted.id)
        if not isinstance(executor, CommandExecutor):
            raise Refused("commands run beside jobs of an instance with an engine (start --engine)", errno.ENOSYS)
        if launch.jobspec.request.elastic:
            raise Refused(f"job {format_f58(wanted.id)} is elastic: its hosts may change", errno.EINVAL)
        number = self._new_id(self._effects.turns.wall_s)
        directory = str(spool_directory(self._effects.settings.spool, number))
        follower = CommandFollower(request, number, directory)
        command = HostCommand(
            wanted.id, wanted.host, lambda: request.respond(msg.ExecResponse(number=number)),
            partial(self._ended, follower),
        )  # fmt: skip

        def lost() -> None:
            follower.discard()
            kill(number, signal.SIGTERM)

        self._streams.follow_files(follower, lost)
        try:
            executor.run_command(number, launch, wanted.host, wanted.command, command)
        except FluxschedError as fault:
            request.error(fault.errnum, str(fault))
        else:
            self.running.add(number)

    def _ended(self, follower: CommandFollower, status: int, note: str) -> None:
        self.running.discard(follower.jobid)
        follower.status = status
        if note:
            follower.request.error(errno.EHOSTUNREACH, note)
        if not follower.request.is_open:
            follower.discard()
