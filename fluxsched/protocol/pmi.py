"""PMI-1, the process manager's side (RFC 13): one key-value space and one barrier a job, a line at a time, no I/O.

Law: whatever a task sends gets an answer to that task, and hurts no other: a wrong line is answered with `rc=-1` and a
reason, one that cannot even be framed ends that task's connection. Only what makes the whole program impossible (abort,
a task gone that others wait for) is a failure of the job. Everything has a limit, so that a program gone wild fills
its own space and nothing else.

The tasks of a job may be on several hosts. Each has a server for its own tasks, which exchange what these have put with
every barrier: so a value can be read by all once the barrier after its put is over, as RFC 13 has it, and by tasks of
the same host before. A host may fill its tasks' share of what is left of the space, so that the limits of the job hold
whatever the others put at the same time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

from fluxsched.core.idset import Idset

NAME_MAX = 64
"""Bytes of the name of the key-value space, its end counted (RFC 13 recommends 16 or more)."""
KEY_MAX = 64
"""Bytes of a key, its end counted (RFC 13 recommends 32 or more)."""
VALUE_MAX = 1024
"""Bytes of a value, its end counted: what MPICH's and Flux's managers have; libraries split what is longer."""
LINE_BYTES_MAX = 8192
"""A request, far above the longest that the three limits make; a task that sends more without an end is not in step."""
KEYS_MAX = 1 << 16
"""Keys of one job: sixteen for each of 4096 tasks."""
SPACE_BYTES_MAX = 16 << 20
"""Keys and values of one job."""
SPAWN_LINES_MAX = 1024
"""Lines of a spawn request, which is read to its end and refused."""
MAPPING: Final = "PMI_process_mapping"
_VALUE: Final = re.compile(rb"[\t -~]*")
ABORT_NOTE_MAX = 256
"""Characters kept of a program's abort message: one line beside each failed job."""


class PmiReply(NamedTuple):
    """Send this line to a task."""

    rank: int
    line: bytes


class Hangup(NamedTuple):
    """End the connection of a task that is out of step."""

    rank: int
    note: str


class Fence(NamedTuple):
    """Let the other hosts know that all tasks here wait in the barrier of this number, or never will."""

    number: int
    puts: dict[str, str]
    """Values by key that they have put since their barrier before."""
    left: int | None = None
    """First task here that has left the program; None while none has."""


class Failed(NamedTuple):
    """The program cannot go on, because of this task."""

    rank: int | None
    """None if it is the task of another host that the note begins with."""
    note: str
    left: bool = False
    """True if the client left without MPI_Finalize, False if it aborted."""
    exit_code: int = 0
    """Exit code that the client gave for the program; 0 if it gave none."""


PmiEffect: TypeAlias = PmiReply | Hangup | Fence | Failed
PmiFields: TypeAlias = dict[str, str]


class PmiFault(ValueError):
    """Fault of a request; one word, since clients read no more."""


def process_mapping(ntasks: Iterable[int]) -> str:
    """Return which tasks share a node, given the tasks of each node in order; "" if that is too long for a value."""
    blocks, node = [], 0
    for each, nodes in groupby(ntasks):
        count = len(list(nodes))
        if each:
            blocks.append(f"({node},{count},{each})")
        node += count
    text = f"(vector,{','.join(blocks)})"
    return text if len(text) < VALUE_MAX else ""


class _Client:
    """State of one task's connection."""

    __slots__ = ("buffer", "finalized", "gone", "initialized", "spawn_lines", "waits")

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.initialized = self.finalized = self.gone = self.waits = False
        self.spawn_lines = 0


class PmiServer:
    """Answers the tasks of one job on one host. Bytes and ends come in, effects go out."""

    def __init__(self, name: str, ntasks: Sequence[int], own: Idset | None = None) -> None:
        """`ntasks` are the tasks of each node, which are ranked in that order; `own` are those of this host, all if it
        is None.
        """
        self.name = name
        self.size = sum(ntasks)
        self._clients = {rank: _Client() for rank in (range(self.size) if own is None else own)}
        self._space = {MAPPING: process_mapping(ntasks)}
        """Values that all tasks of the job can read."""
        self._space_bytes = 0
        self._puts: dict[str, str] = {}
        """Values put here since the last barrier."""
        self._new_keys = self._new_bytes = 0
        """Growth of the space by them."""
        self._keys_left = self._bytes_left = 0
        self._waiting = 0
        self._number = 0
        """Number of the barrier that is next."""
        self._gone: int | None = None
        self._gone_elsewhere: tuple[int, str] | None = None
        """Number of the first barrier that lacks a task of another host, and who that is, in words."""
        self._failed = False
        self._merge({})

    @property
    def is_shared(self) -> bool:
        """Return whether tasks of the job are on other hosts."""
        return len(self._clients) < self.size

    def receive(self, rank: int, data: bytes) -> list[PmiEffect]:
        """Process bytes that a task has sent, in pieces of any size."""
        client = self._clients[rank]
        effects: list[PmiEffect] = []
        if client.gone:
            return effects
        client.buffer += data
        while (end := client.buffer.find(b"\n")) >= 0 and not client.gone:
            line = bytes(client.buffer[:end])
            del client.buffer[: end + 1]
            if end > LINE_BYTES_MAX:
                return [*effects, self._hang_up(client, rank)]
            effects += self._line(client, rank, line)
        if len(client.buffer) > LINE_BYTES_MAX:
            effects.append(self._hang_up(client, rank))
        return effects

    def excuse(self, rank: int) -> None:
        """Allow a task, if it is one of these, to leave the MPI program without MPI_Finalize."""
        if rank in self._clients:
            self._clients[rank].finalized = True

    def ended(self, rank: int) -> list[PmiEffect]:
        """Record that a task's end of the connection is gone: it has ended, or wants no more of it."""
        client = self._clients[rank]
        if client.gone:
            return []
        client.gone = True
        if client.initialized and not client.finalized:
            return self._fail(rank, "left the MPI program without MPI_Finalize", left=True)
        effects: list[PmiEffect] = []
        if self._gone is None:
            self._gone = rank
            if self.is_shared and not self._gone_elsewhere:
                effects.append(Fence(self._number, {}, rank))
        return effects + self._check_barrier()

    def fence_done(self, number: int, puts: Mapping[str, str]) -> list[PmiEffect]:
        """Let all tasks out of the barrier of this number, given what those of all hosts have put; a number that is not
        waited for is passed over.
        """
        if number != self._number or self._waiting < len(self._clients):
            return []
        self._merge(puts)
        return self._leave_barrier()

    def left_elsewhere(self, number: int, who: str) -> list[PmiEffect]:
        """Take the news that a task of another host, in words, has left the program before the barrier of this
        number.
        """
        if self._gone_elsewhere is None or number < self._gone_elsewhere[0]:
            self._gone_elsewhere = number, who
        return self._check_barrier()

    def _hang_up(self, client: _Client, rank: int) -> Hangup:
        client.buffer.clear()
        return Hangup(rank, f"it sent a line of more than {LINE_BYTES_MAX} bytes")

    def _line(self, client: _Client, rank: int, line: bytes) -> list[PmiEffect]:
        if client.spawn_lines or line.startswith(b"mcmd="):
            return self._spawn(client, rank, line)
        command = "unknown"
        try:
            fields = _parse(line)
            command = fields.get("cmd", "")
            handler = _COMMANDS.get(command)
            if handler is None:
                raise PmiFault("unknown_command" if command else "no_cmd")
            return handler(self, client, rank, fields)
        except PmiFault as fault:
            return [_answer(rank, _REPLIES.get(command, "error"), rc=-1, msg=fault)]

    def _spawn(self, client: _Client, rank: int, line: bytes) -> list[PmiEffect]:
        client.spawn_lines += 1
        if client.spawn_lines > SPAWN_LINES_MAX:
            client.spawn_lines = 0
            return [Hangup(rank, f"its spawn request has more than {SPAWN_LINES_MAX} lines")]
        if line.strip() != b"endcmd":
            return []
        client.spawn_lines = 0
        return [_answer(rank, "spawn_result", rc=-1, msg="spawn_is_not_supported", errcodes="-1")]

    # -- commands -----------------------------------------------------------------------------------------------

    def _init(self, client: _Client, rank: int, fields: PmiFields) -> list[PmiEffect]:
        if not fields.get("pmi_version", "").isdecimal():
            raise PmiFault("no_pmi_version")
        client.initialized, client.finalized = True, False
        return [_answer(rank, "response_to_init", rc=0, pmi_version=1, pmi_subversion=1)]

    def _maxes(self, client: _Client, rank: int, fields: PmiFields) -> list[PmiEffect]:
        return [_answer(rank, "maxes", rc=0, kvsname_max=NAME_MAX, keylen_max=KEY_MAX, vallen_max=VALUE_MAX)]

    def _appnum(self, client: _Client, rank: int, fields: PmiFields) -> list[PmiEffect]:
        return [_answer(rank, "appnum", rc=0, appnum=0)]

    def _universe(self, client: _Client, rank: int, fields: PmiFields) -> list[PmiEffect]:
        return [_answer(rank, "universe_size", rc=0, size=self.size)]

    def _kvsname(self, client: _Client, rank: int, fields: PmiFields) -> list[PmiEffect]:
        return [_answer(rank, "my_kvsname", rc=0, kvsname=self.name)]

    def _put(self, client: _Client, rank: int, fields: PmiFields) -> list[PmiEffect]:
        key, value = self._key(fields), fields.get("value")
        if value is None:
            raise PmiFault("no_value")
        if len(value) >= VALUE_MAX:
            raise PmiFault(f"value_of_{len(value)}_bytes_exceeds_{VALUE_MAX - 1}")
        if key.startswith("PMI_"):
            raise PmiFault("key_is_reserved")
        if client.waits:
            raise PmiFault("in_the_barrier")
        old = self._puts.get(key)
        new_keys = self._new_keys + (old is None and key not in self._space)
        new_bytes = self._new_bytes + self._growth(key, value) - (0 if old is None else self._growth(key, old))
        if new_keys > self._keys_left:
            raise PmiFault(f"more_than_{len(self._space) + self._keys_left}_keys")
        if new_bytes > self._bytes_left:
            raise PmiFault(f"more_than_{self._space_bytes + self._bytes_left}_bytes_in_all")
        self._new_keys, self._new_bytes = new_keys, new_bytes
        self._puts[key] = value
        return [_answer(rank, "put_result", rc=0)]

    def _growth(self, key: str, value: str) -> int:
        """Return the bytes by which this value makes the space grow with the next barrier."""
        old = self._space.get(key)
        return len(key) + len(value) if old is None else max(0, len(value) - len(old))

    def _merge(self, puts: Mapping[str, str]) -> None:
        """Add what all hosts have put to the space, and allot what is left of it by tasks."""
        for key, value in puts.items():
            old = self._space.get(key)
            self._space_bytes += len(key) + len(value) if old is None else len(value) - len(old)
            self._space[key] = value
        self._puts = {}
        self._new_keys = self._new_bytes = 0
        self._keys_left = (KEYS_MAX - len(self._space)) * len(self._clients) // self.size
        self._bytes_left = (SPACE_BYTES_MAX - self._space_bytes) * len(self._clients) // self.size
        self._number += 1

    def _get(self, client: _Client, rank: int, fields: PmiFields) -> list[PmiEffect]:
        key = self._key(fields)
        value = self._puts.get(key, self._space.get(key))
        if value is None:
            raise PmiFault("key_not_found")
        return [_answer(rank, "get_result", rc=0, value=value)]

    def _key(self, fields: PmiFields) -> str:
        if fields.get("kvsname") != self.name:
            raise PmiFault("unknown_kvsname")
        key = fields.get("key", "")
        if not key:
            raise PmiFault("no_key")
        if len(key) >= KEY_MAX:
            raise PmiFault(f"key_of_{len(key)}_bytes_exceeds_{KEY_MAX - 1}")
        return key

    def _barrier(self, client: _Client, rank: int, fields: PmiFields) -> list[PmiEffect]:
        if client.waits:
            raise PmiFault("already_in_the_barrier")
        client.waits = True
        self._waiting += 1
        if self._waiting < len(self._clients) or self._lacks_another():
            return self._check_barrier()
        if self.is_shared:
            return [Fence(self._number, self._puts)]
        self._merge(self._puts)
        return self._leave_barrier()

    def _leave_barrier(self) -> list[PmiEffect]:
        self._waiting = 0
        for each in self._clients.values():
            each.waits = False
        return [_answer(each, "barrier_out", rc=0) for each in self._clients]

    def _lacks_another(self) -> bool:
        """Return whether a task of another host will never enter the barrier that is next."""
        return self._gone_elsewhere is not None and self._gone_elsewhere[0] <= self._number

    def _check_barrier(self) -> list[PmiEffect]:
        """Fail if a task is in a barrier that another task will never enter."""
        if not self._waiting or (self._gone is None and not self._lacks_another()):
            return []
        waiting = Idset.of([rank for rank, client in self._clients.items() if client.waits])
        who = f"task {waiting} waits" if len(waiting) == 1 else f"tasks {waiting} wait"
        note = f"has left the MPI program, and {who} for it in a barrier"
        if self._gone is None and self._gone_elsewhere is not None:
            note = f"{self._gone_elsewhere[1]} {note}"
        return self._fail(self._gone, note, left=True)

    def _finalize(self, client: _Client, rank: int, fields: PmiFields) -> list[PmiEffect]:
        client.finalized = True
        return [_answer(rank, "finalize_ack", rc=0)]

    def _abort(self, client: _Client, rank: int, fields: PmiFields) -> list[PmiEffect]:
        client.finalized = True
        code, message = fields.get("exitcode"), " ".join(fields.get("error_msg", "").split())[:ABORT_NOTE_MAX]
        exit_code = int(code) if code and re.fullmatch("-?[0-9]{1,10}", code) else None
        status = "" if exit_code is None else f" with exit code {exit_code}"
        note = f"called MPI_Abort{status}{f': {message}' if message else ''}"
        return self._fail(rank, note, exit_code=exit_code or 0)

    def _refuse(self, client: _Client, rank: int, fields: PmiFields) -> list[PmiEffect]:
        raise PmiFault("not_supported")

    def _fail(self, rank: int | None, note: str, *, left: bool = False, exit_code: int = 0) -> list[PmiEffect]:
        """Once: what follows is a consequence."""
        if self._failed:
            return []
        self._failed = True
        return [Failed(rank, note, left, exit_code)]


_COMMANDS: Final[dict[str, Callable[[PmiServer, _Client, int, PmiFields], list[PmiEffect]]]] = {
    "init": PmiServer._init,
    "get_maxes": PmiServer._maxes,
    "get_appnum": PmiServer._appnum,
    "get_universe_size": PmiServer._universe,
    "get_my_kvsname": PmiServer._kvsname,
    "put": PmiServer._put,
    "get": PmiServer._get,
    "barrier_in": PmiServer._barrier,
    "finalize": PmiServer._finalize,
    "abort": PmiServer._abort,
    "publish_name": PmiServer._refuse,
    "unpublish_name": PmiServer._refuse,
    "lookup_name": PmiServer._refuse,
}
_REPLIES = {
    "init": "response_to_init",
    "get_maxes": "maxes",
    "get_appnum": "appnum",
    "get_universe_size": "universe_size",
    "get_my_kvsname": "my_kvsname",
    "put": "put_result",
    "get": "get_result",
    "barrier_in": "barrier_out",
    "finalize": "finalize_ack",
    "publish_name": "publish_result",
    "unpublish_name": "unpublish_result",
    "lookup_name": "lookup_result",
}
_TAILS: Final = ("value", "error_msg")
"""Keys whose value goes on to the end of the line, blanks and all (RFC 13: string)."""


def _parse(line: bytes) -> PmiFields:
    """Return the fields of a request. Raises PmiFault."""
    if _VALUE.fullmatch(line) is None:
        raise PmiFault("not_printable_ASCII")
    rest = line.decode("ascii").lstrip()
    fields: PmiFields = {}
    while rest:
        key, equals, rest = rest.partition("=")
        if not equals or not key or " " in key or "\t" in key:
            raise PmiFault("not_key_and_value")
        if key in _TAILS:
            fields.setdefault(key, rest)
            break
        word, _, rest = rest.replace("\t", " ").partition(" ")
        fields.setdefault(key, word)
        rest = rest.lstrip()
    return fields


def _answer(rank: int, reply: str, **fields: object) -> PmiReply:
    line = "".join((f"cmd={reply}", *[f" {key}={value}" for key, value in fields.items()], "\n"))
    return PmiReply(rank, line.encode())
