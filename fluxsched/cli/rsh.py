"""`fluxsched rsh`: a command on another host of a job, for programs that start their helpers by rsh or ssh."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click

from fluxsched.cli.attach import Forwarder, OutputWriter, exit_status, own_input
from fluxsched.cli.base import Command, EndingSignals
from fluxsched.cli.options import JOBID, InstanceHandle, connected
from fluxsched.cli.submit import COMMAND_LAST
from fluxsched.errors import Disconnected


class _Input(Forwarder):
    """Input of a command, which has its number once it runs; what it does not read is dropped."""

    @property
    def fd(self) -> int | None:
        """The descriptor, if it is to be read now."""
        return super().fd if self._jobid else None

    def begin(self, number: int) -> None:
        """Send input under this number from now on."""
        self._jobid = number

    def _answered(self, answer: Any, data: bytes) -> None:
        self._unsure_bytes -= len(data)
        self.ended |= answer.error is not None


@click.command("rsh", cls=Command, context_settings=COMMAND_LAST)
@click.option("--job", "jobid", metavar="JOBID", type=JOBID, envvar="FLUX_JOB_ID", required=True,
              help="The running job. [default: FLUX_JOB_ID, that of a task]")  # fmt: skip
@click.option("-n", "no_input", is_flag=True, help="Have the command read /dev/null.")
@click.option("-x", "_ignored", is_flag=True, expose_value=False, help="Ignored: launchers give it to ssh.")
@click.argument("host", metavar="HOST")
@click.argument("words", metavar="COMMAND...", nargs=-1, required=True)
@connected
def rsh(handle: InstanceHandle, jobid: int, no_input: bool, host: str, words: Sequence[str]) -> int:
    """Run a command on a host of a job, beside its tasks, and exit with its status.

    As with rsh and ssh, the words are joined by blanks and read by a shell, which has the environment and the working
    directory of the job's tasks. The command ends with this one, and with the job.
    """
    source = None if no_input else own_input(terminal=False)
    forwarder = _Input(handle, 0, os.open(os.devnull, os.O_RDONLY) if source is None else source)
    writer = OutputWriter()
    with EndingSignals():
        for piece in handle.stream(
            "job-manager.exec", {"id": jobid, "host": host, "command": " ".join(words)}, beside=forwarder
        ):
            if piece.get("number"):
                forwarder.begin(piece["number"])
            if piece.get("stream"):
                writer.write(piece)
            if piece.get("status") is not None:
                return exit_status({"status": piece["status"], "success": piece["status"] == 0})
    raise Disconnected("the instance has ended the stream of the command")
