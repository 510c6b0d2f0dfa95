"""What an outsider sees of a simulated instance: the only thing that checkers are given.

Times are true virtual seconds; the clocks of the processes may be stepped, this one is not. Payloads are plain objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

EPOCH_S = 1_700_000_000.0
"""The wall time at which worlds begin, by clocks that are right."""


class Connected(NamedTuple):
    """A client has connected; `link` is the connection's number."""

    at_s: float
    actor: str
    link: int


class Sent(NamedTuple):
    """A client has sent a request."""

    at_s: float
    actor: str
    link: int
    topic: str
    payload: Any
    matchtag: int
    is_streaming: bool


class Received(NamedTuple):
    """A client has received a response, or (`errnum` None) a scheduler a request of the instance."""

    at_s: float
    actor: str
    link: int
    topic: str
    payload: Any
    matchtag: int
    errnum: int | None


class Answered(NamedTuple):
    """A scheduler has sent a response to the instance."""

    at_s: float
    actor: str
    link: int
    topic: str
    payload: Any
    matchtag: int
    errnum: int


class LinkEnded(NamedTuple):
    """A connection is over for the first of its two sides."""

    at_s: float
    link: int
    reason: str


class TaskBegan(NamedTuple):
    """A job's tasks really run now, on these cores of these ranks."""

    at_s: float
    jobid: int
    attempt: int
    cores: Mapping[int, frozenset[int]]


class TaskEnded(NamedTuple):
    """No task of the job runs any more."""

    at_s: float
    jobid: int
    attempt: int
    status: int


class TaskGrew(NamedTuple):
    """The job's tasks run on these cores, too."""

    at_s: float
    jobid: int
    cores: Mapping[int, frozenset[int]]


class TaskShrank(NamedTuple):
    """No task of the job, which runs on, is left on these ranks."""

    at_s: float
    jobid: int
    ranks: frozenset[int]


class TasksWait(NamedTuple):
    """On one of several hosts, the tasks of a job on a target wait behind their gate."""

    at_s: float
    host: str
    jobid: int
    rank: int


class TasksBegan(NamedTuple):
    """These tasks of a job run now on a target of that host; `recorded` are the hosts whose processes of the job are on
    the instance's record.
    """

    at_s: float
    host: str
    jobid: int
    tasks: frozenset[int]
    cores: Mapping[int, frozenset[int]]
    recorded: frozenset[str]


class TasksEnded(NamedTuple):
    """No task of the job is left on that target."""

    at_s: float
    host: str
    jobid: int
    rank: int
    status: int


class ProgramBegan(NamedTuple):
    """A program of the site, `what` is its name, runs now for a job on a host, on these of the job's cores."""

    at_s: float
    number: int
    what: str
    jobid: int
    host: str
    cores: Mapping[int, frozenset[int]]


class ProgramEnded(NamedTuple):
    """Nothing of it is left."""

    at_s: float
    number: int
    status: int


class HostStopped(NamedTuple):
    """Nothing is done on a host until then: its tasks neither run nor end."""

    at_s: float
    host: str
    until_s: float


class KeeperConnected(NamedTuple):
    """The instance has taken a connection of a host's keeper, in place of all before it."""

    at_s: float
    host: str


class ProcessStarted(NamedTuple):
    """A simulated process has started, for the `number`th time."""

    at_s: float
    process: str
    number: int


class ProcessEnded(NamedTuple):
    """A simulated process is gone: killed, or by itself."""

    at_s: float
    process: str
    number: int
    reason: str


class Configured(NamedTuple):
    """The configuration file names these planned outages from now on, as `resource.outage-add` has them."""

    at_s: float
    outages: tuple[Mapping[str, Any], ...]


class Faulted(NamedTuple):
    """A fault has been brought about."""

    at_s: float
    text: str


Observation = (
    Connected
    | Sent
    | Received
    | Answered
    | LinkEnded
    | TaskBegan
    | TaskEnded
    | TaskGrew
    | TaskShrank
    | TasksWait
    | TasksBegan
    | TasksEnded
    | ProgramBegan
    | ProgramEnded
    | HostStopped
    | KeeperConnected
    | ProcessStarted
    | ProcessEnded
    | Configured
    | Faulted
)
