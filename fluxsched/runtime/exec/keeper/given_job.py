"""A job as the instance knows it that is given to a keeper, what it is told, and where its tasks are sent their input.

Law: as long as no processes of a job are on record another keeper may have to start it, so what its keeper was told is
kept until then. What a keeper has said of a job's size before it met this instance may be out of date: a target that
it has released may have been given to the job again.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from itertools import count
from typing import Any

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import LimitExceeded, Refused
from fluxsched.runtime.exec.base import InputAnswer, JobLaunch, Window
from fluxsched.runtime.exec.keeper import messages as msg
from fluxsched.runtime.exec.keeper.link import KeeperLink
from fluxsched.runtime.exec.tasks import input as task_input
from fluxsched.runtime.exec.tasks.program import is_instance

TOO_OLD = "it is to give targets back, and was started by a version that cannot shrink jobs"


class GivenJob:
    """A job that is given to a keeper, or is to be."""

    __slots__ = (
        "_grown",
        "_outdated",
        "_shrunk",
        "going",
        "has_input",
        "is_open",
        "launch",
        "link",
        "no_input",
        "record",
        "signals",
        "tries",
    )

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
        self.going = EMPTY
        """Targets that it is to give back."""
        self._grown: list[msg.GrowJob] = []
        self._shrunk: list[msg.ShrinkJob] = []
        self._outdated = EMPTY
        """Targets whose release has been stored although its keeper does not know that: it reports it again."""

    def input_place(self, numbers: count[int]) -> KeeperInput | None:
        """Where its tasks are sent their input; None unless they run. Raises Refused if they are sent none."""
        if self.link is None or not self.is_open:
            return None
        if self.no_input:
            raise Refused(self.no_input, errno.ENOSYS)
        return KeeperInput(self.link, self, numbers)

    def signal(self, signum: int, grace_s: float | None) -> None:
        """Have its tasks signaled."""
        if self.link is None or self.record is None:
            self.signals.append((signum, grace_s))
        if self.link is not None:
            self.link.say(msg.SignalJob(self.launch.jobid, signum, grace_s))

    def grow(self, r: Mapping[str, Any]) -> None:
        """Have its tasks started on the targets of `r` (R of them alone), too."""
        ranks = ResourceSet.parse(r).ranks
        self._say(self._grown, msg.GrowJob(self.launch.jobid, dict(r), str(ranks)))

    def shrink(self, ranks: Idset, grace_s: float | None) -> str | None:
        """Have its tasks on these targets ended; why that is impossible, if it is."""
        self.going |= ranks
        self._say(self._shrunk, msg.ShrinkJob(self.launch.jobid, str(ranks), grace_s))
        return None if self.link is None or self.link.version >= msg.ELASTIC_SINCE else TOO_OLD

    def _say(self, kept: list[Any], one: msg.GrowJob | msg.ShrinkJob) -> None:
        if self.link is None or self.record is None:
            kept.append(one)
        if self.link is not None and self.link.version >= msg.ELASTIC_SINCE:
            self.link.say(one)

    def given(self, link: KeeperLink) -> None:
        """A keeper has it from now on: pass on what the keeper before, if any, was told and may not have done."""
        for signum, grace_s in self.signals:
            link.say(msg.SignalJob(self.launch.jobid, signum, grace_s))
        if link.version >= msg.ELASTIC_SINCE:
            link.say(*self._grown, *self._shrunk)
        if self.record is not None:
            self.settled()

    def settled(self) -> None:
        """Its processes are on record: no other keeper starts it."""
        self.signals.clear()
        self._grown.clear()
        self._shrunk.clear()

    def adopted(self, link: KeeperLink, held: msg.HeldJob) -> None:
        """A keeper has had it since before this instance: tell it what it missed."""
        self.link, self.is_open = link, held.runs
        jobspec = self.launch.jobspec
        if (held.ranks or held.released) and jobspec.request.elastic and not is_instance(jobspec):
            r, jobid = dict(self.launch.R), self.launch.jobid
            has, ranks = Idset.parse(held.ranks), ResourceSet.parse(r).ranks - self.going
            self._outdated = Idset.parse(held.released) & ranks
            if missing := ranks - has:
                link.say(msg.GrowJob(jobid, r, str(missing)))
            if surplus := has - ranks - self.going:
                link.say(msg.ShrinkJob(jobid, str(surplus)))
        self.given(link)

    def released(self, ranks: Idset) -> Idset:
        """A keeper says that nothing is left on these targets; those of which that is news."""
        news = (ranks - self._outdated) & self.going
        self._outdated -= ranks
        self.going -= news
        return news


class KeeperInput:
    """Where the tasks of one job are sent their input."""

    def __init__(self, link: KeeperLink, job: GivenJob, numbers: count[int]) -> None:
        self._link = link
        self._job = job
        self._numbers = numbers

    def send(
        self, data: bytes, tasks: Idset | None, *, eof: bool, answered: InputAnswer, window: Window | None = None
    ) -> None:
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
        link.say(msg.SendInput(jobid, number, data, None if tasks is None else str(tasks), eof, window))
