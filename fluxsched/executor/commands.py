"""Commands beside the tasks of a job, each on one of its hosts: how a launcher starts its helpers there, as rsh would.

Law: a command has a number as jobs have, and runs at its host's keeper as a job of one task does: behind a gate, on
record, with its own process group and strays. It uses what its job holds, so the job is not over before they are: when
its tasks have ended they are asked to end, and its end is reported when none is left.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from msgspec import structs

from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import Refused
from fluxsched.executor.base import JobLaunch

NO_COMMANDS = "commands run beside jobs of an instance with an engine (start --engine)"
CommandEnded = Callable[[int, str], None]
"""Called with the wait status of a command, and the reason if it could not be run to its end (else empty)."""


@dataclass(frozen=True, slots=True)
class HostCommand:
    """Command that runs, or is to."""

    jobid: int
    host: str
    opened: Callable[[], None]
    """Function called when it accepts input."""
    ended: CommandEnded


@runtime_checkable
class CommandExecutor(Protocol):
    """Executor of several hosts, which runs commands beside the tasks of jobs."""

    def run_command(self, number: int, job: JobLaunch, host: str, text: str, command: HostCommand) -> None:
        """Run a command beside the tasks of a running job on one of its hosts. `number` is its own, as of a job, for
        its input, its signals and its output.

        Raises FluxschedError.
        """
        ...


def command_launch(job: JobLaunch, number: int, host: str, text: str) -> JobLaunch:
    """Return the launch of a command for the shell, with the environment and working directory of the job's tasks, on
    the cores that the job has on this host. Raises Refused if it has none there.
    """
    resources = ResourceSet.parse(job.R)
    ranks = [rank for rank in resources.ranks if resources.host(rank) == host]
    if not ranks:
        hosts = resources.nodelist.unique()
        raise Refused(f"job {format_f58(job.jobid)} has nothing on host {host!r}, but on {hosts}", errno.ENOENT)
    r: dict[str, Any] = resources.restrict(Idset.one(ranks[0])).to_json()
    r["execution"]["nslots"] = 1
    spec, words = job.jobspec, ["/bin/sh", "-c", text]
    jobspec = Jobspec.from_command(words, ntasks=1, cwd=spec.cwd, environment=spec.environment)
    return structs.replace(job, jobid=number, beside=job.jobid, jobspec=jobspec, R=r, attempt=0, expiration_s=0.0)


class HostCommands:
    """The commands that run, and the ends of jobs that wait for them."""

    def __init__(self, kill: Callable[[int], None]) -> None:
        """`kill` is called with the number of a command that is to end."""
        self._kill = kill
        self._commands: dict[int, HostCommand] = {}
        self._waiting: dict[int, Callable[[], None]] = {}

    def add(self, number: int, command: HostCommand) -> None:
        """Add a command that is about to start. Raises Refused if the tasks of its job have ended."""
        if command.jobid in self._waiting:
            raise Refused(f"the tasks of job {format_f58(command.jobid)} have ended", errno.ESRCH)
        self._commands[number] = command

    def get(self, number: int) -> HostCommand | None:
        """Return a command; None if there is none of this number."""
        return self._commands.get(number)

    def has_any(self, jobid: int) -> bool:
        """Return whether commands of the job run."""
        return any(command.jobid == jobid for command in self._commands.values())

    def after(self, jobid: int, call: Callable[[], None]) -> None:
        """End the commands of a job whose tasks have ended, and call when none is left."""
        if not self.has_any(jobid):
            call()
            return
        self._waiting[jobid] = call
        for number in [number for number, command in self._commands.items() if command.jobid == jobid]:
            self._kill(number)

    def ended(self, number: int, status: int, note: str) -> None:
        """Record that nothing of a command is left."""
        command = self._commands.pop(number)
        command.ended(status, note)
        if command.jobid in self._waiting and not self.has_any(command.jobid):
            self._waiting.pop(command.jobid)()
