"""Messages between an instance and its keeper, and their connection (rfc/keeper.md).

Law: a part of a transport message is one of ours; those of a turn travel together. Every report of the keeper has a
serial number, and is kept and repeated on each new connection until the instance says that it is stored. So an instance
that was killed misses nothing, and what it hears again it recognises by the job. The gate of a job opens, or its only
task is spawned, when its `JobSpawned` is stored. A start is idempotent by job id. Neither side is cut off for being
slow or for a large message: both are ours, and jobs would end with the connection.

A keeper serves the version that it was started with until its last job has ended. Keys that a reader does not know are
ignored, and new keys have defaults; a change that is more than that is a new VERSION, and the reader of the old one
stays here as long as jobs of it may run.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fluxsched.errors import RemoteProtocolError
from fluxsched.transport.base import PARTS_MAX
from fluxsched.transport.local import StreamClient

if TYPE_CHECKING:  # a keeper imports this for the report of its host, which comes before all that jobs need
    from fluxsched.core.jobspec import Jobspec

VERSION: Final = 3
"""Version of these messages. An instance starts no job at a keeper of another one."""


class KeeperMessage(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, tag_field="type"):
    """Base of all messages: an object whose key `type` names it."""


# -- from the instance ---------------------------------------------------------------------------------------------


class KeeperHello(KeeperMessage, frozen=True, tag="hello"):
    """The first message on a connection; answered by `KeeperWelcome`. It ends the connection before, if there is
    one.
    """

    version: int
    pid: int
    now_s: float = 0.0
    """Wall time of the instance (0: unknown), by which expirations are meant: the clock of another host may be wrong.
    """


class KeeperSettings(KeeperMessage, frozen=True, tag="settings"):
    """Settings common to all starts; sent after the welcome, and again when they have changed."""

    spool: str
    """Directory with one directory a job for what its tasks print."""
    environment: dict[str, str]
    """Variables that the instance adds to those of the jobs."""
    cores: list[str] | None
    """The processing units (idset) of each core id of this machine; None runs tasks unpinned."""
    kill_timeout_s: float
    """Time from SIGTERM to SIGKILL unless the instance sends another one."""
    outlives: bool
    """True if jobs continue when the connection ends: an instance with a state directory is started again."""
    forwards: bool = False
    """True for a keeper of another host: `spool` is not there, so what tasks print is sent (`JobOutput`)."""


class StartJob(KeeperMessage, frozen=True, tag="start"):
    """Run a job: spawn its tasks behind their gate. A job that is there is not started again."""

    jobid: int
    attempt: int
    """0 for a job that was not preempted before, as in the `submit` event; each attempt has a job id of its own."""
    jobspec: msgspec.Raw
    """An object; of ten thousand equal jobs it is written once and read once."""
    R: dict[str, Any]
    expiration_s: float = 0.0
    """Wall time at which the job expires, 0 if never; the keeper enforces it only while there is no instance."""
    ranks: str = ""
    """The targets (idset) of R whose tasks are this keeper's; empty if all are. All keepers of a job have the whole R,
    so that they number its tasks alike.
    """
    first: int = 0
    """Number of its first task: not 0 for targets that a running job gets on a further host."""
    is_shared: bool = False
    """True if other keepers run tasks of the job: its gate opens by `OpenJob`, once the processes of all are on record.
    """
    beside: int = 0
    """Job beside whose tasks this command runs, and whose id is in its environment; 0 for a job."""
    userid: int | None = None
    """User as whom its tasks run, at a keeper of root; None: as the keeper's user."""


class OpenJob(KeeperMessage, frozen=True, tag="open"):
    """Open the gate of a shared job, all of whose processes are on record. Idempotent."""

    jobid: int


class SignalJob(KeeperMessage, frozen=True, tag="signal"):
    """Signal all tasks of a job; a signal that asks to end is followed by SIGKILL after the grace time."""

    jobid: int
    signum: int
    grace_s: float | None = None


class LimitJob(KeeperMessage, frozen=True, tag="limit"):
    """The time limit of a running job has changed."""

    jobid: int
    expiration_s: float


class GrowJob(KeeperMessage, frozen=True, tag="grow"):
    """Run the tasks of these targets (idset) of R, which the job has got. Targets where it has tasks are passed
    over.
    """

    jobid: int
    R: dict[str, Any]
    ranks: str
    first: int | None = None
    """Number of the first new task; None: they follow those that the keeper has."""


class ShrinkJob(KeeperMessage, frozen=True, tag="shrink"):
    """End the tasks on these targets (idset), and report each as released; those that are ending are passed over."""

    jobid: int
    ranks: str
    grace_s: float | None = None


class SendInput(KeeperMessage, frozen=True, tag="input"):
    """Input for the tasks (idset; None: all) of a running job; answered by `InputAnswered` with the same number."""

    jobid: int
    number: int
    data: bytes
    tasks: str | None = None
    eof: bool = False
    window: tuple[int, int] | None = None
    """Rows and columns of the terminal from now on, for a task that has one."""


class OutputStored(KeeperMessage, frozen=True, tag="output-stored"):
    """Answer to each `JobOutput`, in their order: the file has so many bytes. If that is less than the piece's end, it
    was not stored, since there is no room: it is sent again later.
    """

    jobid: int
    name: str
    offset: int


class MeasureJob(KeeperMessage, frozen=True, tag="measure"):
    """Find what the tasks of a running job have used; answered by `JobMeasured` with the same number. Only a keeper
    whose welcome says that it measures knows it.
    """

    jobid: int
    number: int


class Stored(KeeperMessage, frozen=True, tag="stored"):
    """Confirmation that all reports up to this serial number are on disk: gates of jobs open, ended jobs are
    removed.
    """

    serial: int
    kept: list[int] = []
    """Reports that are excepted, since the instance failed to handle them: they are for the next one."""


class ClearProcesses(KeeperMessage, frozen=True, tag="clear"):
    """End what a keeper that was killed has left; answered by `ProcessesCleared`. Records are those of `JobSpawned`."""

    records: dict[int, Any]


class PmiFenceDone(KeeperMessage, frozen=True, tag="pmi-fence-done"):
    """Let the tasks of a shared job out of the barrier of this number, with what those of all its hosts have put.

    With `left` it is news instead: this one has left the program, and enters neither this barrier nor a later one.
    """

    jobid: int
    number: int
    puts: dict[str, str] = {}
    left: str = ""


class Leave(KeeperMessage, frozen=True, tag="leave"):
    """The instance will be back within this time (seconds). If it is not, jobs that do not outlive it end."""

    within_s: float


class Pong(KeeperMessage, frozen=True, tag="pong"):
    """Answer to the `Ping` of this number: the keeper's lease is extended from when it sent that."""

    number: int


class EndKeeper(KeeperMessage, frozen=True, tag="end"):
    """Kill what still runs and end; nothing is reported."""


class ToClient(KeeperMessage, frozen=True, tag="to-client"):
    """A message to a client of the sockets of a keeper's host, or a piece of one."""

    json: bool
    """True for a client of the local socket, whose payloads are JSON."""
    peer: bytes
    """The client's name at the keeper."""
    frames: list[bytes]
    is_cut: bool = False
    """True if the last frame goes on with the first one of the next message to the client."""


class DropClient(KeeperMessage, frozen=True, tag="drop-client"):
    """Cut a client off; answered by `ClientLost`, unless that is on its way."""

    json: bool
    peer: bytes
    reason: str


class RelayCredit(KeeperMessage, frozen=True, tag="relay-credit"):
    """Credit: the sender of this has taken over so many more bytes of messages from clients, or to them."""

    size_bytes: int


FromInstance = (
    KeeperHello | KeeperSettings | StartJob | SignalJob | LimitJob | GrowJob | ShrinkJob | SendInput | Stored
    | OutputStored | ClearProcesses | Leave | Pong | EndKeeper | OpenJob | PmiFenceDone | ToClient | DropClient
    | RelayCredit | MeasureJob
)  # fmt: skip

# -- from the keeper -----------------------------------------------------------------------------------------------


class HeldJob(msgspec.Struct, frozen=True, gc=False):
    """Job of the keeper that runs, or whose end is not known to be stored."""

    jobid: int
    attempt: int
    runs: bool = False
    """True if the job's gate is open and its end has not been reported."""
    ranks: str = ""
    """The targets where it was to run tasks and that are not released (idset)."""
    released: str = ""
    """The targets whose release is not known to be stored (idset); its reports follow."""
    signals: int = 0
    """Number of `signal` messages for it that the keeper has handled: what was sent later is sent again."""


class KeeperWelcome(KeeperMessage, frozen=True, tag="welcome"):
    """Jobs of the keeper; all reports that are not known to be stored follow, oldest first."""

    version: int
    pid: int
    jobs: list[HeldJob]
    measures: bool = False
    """True if the keeper knows `MeasureJob`."""


class JobSpawned(KeeperMessage, frozen=True, tag="spawned"):
    """Tasks wait behind their gate; `record` is what identifies the processes of the job, to be stored before it opens.
    That of a single task may name this keeper as the one that is about to spawn it.

    Again when it grows.
    """

    serial: int
    jobid: int
    record: dict[str, Any]


class JobStarted(KeeperMessage, frozen=True, tag="started"):
    """The gate is open: the tasks run."""

    serial: int
    jobid: int
    no_input: str = ""
    """Why its tasks are sent no input; empty if they are."""
    record: dict[str, Any] | None = None
    """Record that identifies the processes of the job from now on, if it is not that of `JobSpawned`."""


class JobRaised(KeeperMessage, frozen=True, tag="raised"):
    """Report that the job must end for this reason, a fatal exception; it is being killed, or will be."""

    serial: int
    jobid: int
    kind: str
    note: str


class JobFinished(KeeperMessage, frozen=True, tag="finished"):
    """Report that no process of the job is left; the last one about it."""

    serial: int
    jobid: int
    status: int
    """The largest wait status of its tasks."""
    usage: dict[str, Any] | None = None


class JobFailed(KeeperMessage, frozen=True, tag="failed"):
    """Report that the job could not be started and has no process; the last one about it."""

    serial: int
    jobid: int
    note: str


class TargetsReleased(KeeperMessage, frozen=True, tag="released"):
    """Report that no process of a running job is left on these targets (idset), which it was to give back."""

    serial: int
    jobid: int
    ranks: str


class JobOutput(KeeperMessage, frozen=True, tag="output"):
    """Bytes that tasks have written into a file of the job's spool directory at the keeper; answered by
    `OutputStored`.
    """

    jobid: int
    name: str
    offset: int
    data: bytes


class PmiFence(KeeperMessage, frozen=True, tag="pmi-fence"):
    """All tasks here of a shared job wait in its barrier of this number (the first is 1); answered by `PmiFenceDone`.

    The last two of a job are repeated on each new connection: no host is two ahead of another, so an instance that
    was restarted can answer all hosts.
    """

    jobid: int
    number: int
    puts: dict[str, str] = {}
    """Values by key that the tasks have put since their barrier before."""
    left: str = ""
    """Task that has left the program ("task 3 (exited 1)"), so that they will never all wait in this barrier; else
    empty.
    """


class InputAnswered(KeeperMessage, frozen=True, tag="input-answered"):
    """Notice that there is room for more input, or (`errnum`) that this one was refused.

    Not repeated on another connection.
    """

    number: int
    errnum: int = 0
    note: str = ""
    exceeded: bool = False
    """True if a limit was exceeded: then no further input is accepted."""


class JobMeasured(KeeperMessage, frozen=True, tag="measured"):
    """Usage of the tasks of a running job so far, as in `JobFinished`. Not repeated on another connection."""

    number: int
    usage: dict[str, Any] | None = None


class ProcessesCleared(KeeperMessage, frozen=True, tag="cleared"):
    """Report that none of the processes is left, with the findings by job id, in words."""

    notes: dict[int, str]


class Ping(KeeperMessage, frozen=True, tag="ping"):
    """Question of a keeper that has a lease whether its instance is there; answered by `Pong`."""

    number: int


class ClientFrames(KeeperMessage, frozen=True, tag="client"):
    """A message of a client of the sockets of the keeper's host, or a piece of one; see `ToClient`. A client is known
    from its first message until its `ClientLost`.
    """

    json: bool
    peer: bytes
    frames: list[bytes]
    is_cut: bool = False


class ClientLost(KeeperMessage, frozen=True, tag="client-lost"):
    """The connection of a client has ended, after all that it had sent."""

    json: bool
    peer: bytes
    reason: str


class ClientUnsent(KeeperMessage, frozen=True, tag="client-unsent"):
    """Bytes that a client which does not read leaves at the keeper; sent when they change, and when none is left."""

    json: bool
    peer: bytes
    size_bytes: int


JobReport = JobSpawned | JobStarted | JobRaised | JobFinished | JobFailed | TargetsReleased
"""Reports that are repeated until they are stored."""
FromKeeper = (
    KeeperWelcome | JobReport | JobOutput | PmiFence | InputAnswered | ProcessesCleared | Ping | ClientFrames
    | ClientLost | ClientUnsent | RelayCredit | JobMeasured
)  # fmt: skip

_encode = msgspec.msgpack.Encoder().encode
_from_instance = msgspec.msgpack.Decoder(FromInstance)
_from_keeper = msgspec.msgpack.Decoder(FromKeeper)


def packed_jobspec(jobspec: Jobspec) -> msgspec.Raw:
    """Return a jobspec in the form of `StartJob`."""
    return msgspec.Raw(_encode(jobspec.raw))


def packed(messages: Sequence[KeeperMessage]) -> Iterator[list[bytes]]:
    """Yield the transport's messages for the messages of one turn."""
    for start in range(0, len(messages), PARTS_MAX):
        yield [_encode(message) for message in messages[start : start + PARTS_MAX]]


def from_instance(frames: Sequence[bytes]) -> list[FromInstance]:
    """Return the messages of an instance in these frames. Raises RemoteProtocolError."""
    return _read(frames, _from_instance)


def from_keeper(frames: Sequence[bytes]) -> list[FromKeeper]:
    """Return the messages of a keeper in these frames. Raises RemoteProtocolError."""
    return _read(frames, _from_keeper)


def _read(frames: Sequence[bytes], decoder: msgspec.msgpack.Decoder[Any]) -> list[Any]:
    try:
        return [decoder.decode(frame) for frame in frames]
    except (RecursionError, UnicodeDecodeError, msgspec.MsgspecError) as exc:
        raise RemoteProtocolError(f"keeper: {exc}") from exc


# ---- connections

PART_BYTES_MAX: Final = 1 << 30
"""Maximum size of a message: a jobspec may have 512 MiB (`transport.local`)."""
UNSENT_BYTES_MAX: Final = 16 << 30
"""Limit of unsent bytes: more than a granted machine's jobs can have; without any, a fault of ours would use all
memory.
"""


def connected(
    connection: socket.socket, received: bytes = b"", *, part_bytes_max: int = PART_BYTES_MAX
) -> StreamClient:
    """Return the side of a keeper or of its instance that speaks over this connection, within the limits above."""
    return StreamClient(connection, received, message_limit_bytes=part_bytes_max, unsent_limit_bytes=UNSENT_BYTES_MAX)
