"""A job as the instance knows it that is given to a keeper, and where its tasks are sent their input."""

from __future__ import annotations

import errno
from itertools import count

from fluxsched.core.idset import Idset
from fluxsched.errors import LimitExceeded, Refused
from fluxsched.runtime.exec.base import InputAnswer, JobLaunch
from fluxsched.runtime.exec.keeper import messages as msg
from fluxsched.runtime.exec.keeper.link import KeeperLink
from fluxsched.runtime.exec.tasks import input as task_input


class GivenJob:
    """A job that is given to a keeper, or is to be."""

    __slots__ = ("has_input", "is_open", "launch", "link", "no_input", "record", "signals", "tries")

    def __init__(self, launch: JobLaunch, record: object | None) -> None:
        self.launch = launch
        self.record = record
        self.link: KeeperLink | None = None
        self.is_open = False
        self.no_input = ""
        """Why its tasks are sent no input, as far as is known."""
        self.has_input = True
        """Whether it may be sent more: what comes after something that was too much would be behind a hole."""
        self.tries = 0
        self.signals: list[tuple[int, float | None]] = []
        """Sent to it before its processes were on record: another keeper than now may have to start it."""


class KeeperInput:
    """Where the tasks of one job are sent their input."""

    def __init__(self, link: KeeperLink, job: GivenJob, numbers: count[int]) -> None:
        self._link = link
        self._job = job
        self._numbers = numbers

    def send(self, data: bytes, tasks: Idset | None, *, eof: bool, answered: InputAnswer) -> None:
        """See `InputPlace.send`."""
        link, jobid = self._link, self._job.launch.jobid
        if data and not self._job.has_input:
            raise Refused("the input of all tasks has ended", errno.EPIPE)
        if link.held_bytes(jobid) + len(data) > task_input.HELD_BYTES_MAX:
            self._job.has_input = False
            raise LimitExceeded(
                f"more than {task_input.HELD_BYTES_MAX >> 20} MiB of input wait to be read: "
                "give a file instead (--input)"
            )
        number = next(self._numbers)
        link.inputs[number] = jobid, len(data), answered
        link.say(msg.SendInput(jobid, number, data, None if tasks is None else str(tasks), eof))
