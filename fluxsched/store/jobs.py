"""Rows of `job_log`, the parts of jobspecs that they refer to, and the bytes of events in them.

Law: what is read is equal to what was written, by this version or an earlier one. A jobspec is kept as JSON in which a
mark stands for each large part, which many jobs have in common and which is kept once, by content; JSON never has the
bytes of marks. A part is stored before the first row that refers to it, and is found again by content until it is
forgotten, which precedes its removal; it is compressed if that makes it smaller, and no JSON begins with the first byte
of zlib's format. Events are one flat list of msgpack, three values an event: its time (nil: that of the event before
it), its name as a number and its context; an event that is unlike those of RFC 21 stands there as a whole, in place of
its name.
"""

from __future__ import annotations

import errno
import re
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.json import decode, encode

from fluxsched.core.jobid import format_f58
from fluxsched.errors import FluxschedError, Refused
from fluxsched.jobs.states import Event
from fluxsched.store.integrity import DIFFERS, SELECTED, is_intact

ALIKE_MAX = 64
"""Stretches of events that are kept read, some hundred bytes each: a restart logs the same for all jobs that wait."""
NOTED_MAX = 1024
"""Annotations that are kept coded, some hundred bytes each."""
PARTS_READ_MAX = 64
"""Parts that are kept while jobs are read one after another: environments of so many users."""

PART_COLUMNS = ("environment", "files")
"""Columns of `job_log` with ids of parts."""

Query = Callable[[str, Sequence[Any]], Iterable[tuple[Any, ...]]]
"""A query on the store."""


class JobRecord(NamedTuple):
    """Job as on disk; the jobspec as JSON, R decoded, where there is one."""

    jobid: int
    events: list[Event]
    jobspec: bytes | None
    R: dict[str, Any] | None


class DamagedJob(Refused):
    """Error of a job whose rows cannot be read (EIO)."""

    def __init__(self, jobid: int, why: Exception) -> None:
        self.brief = f"job {format_f58(jobid)} cannot be read: {why}"
        super().__init__(
            f"job {format_f58(jobid)} cannot be read from the state, which is damaged there: {why}: restore a backup "
            "(fluxsched restore), or start with --salvage to continue without it",
            errno.EIO,
        )


def read_job(read: Query, jobid: int) -> dict[str, Any] | None:
    """Return a job's log, jobspec and R; None if the store does not have it."""
    row = next(_rows(read, "SELECT ? AS jobid", (jobid,), lambda row, ended: row.whole(_part(read))), None)
    if row is None:
        return None
    jobspec = None if row.jobspec is None else decode(row.jobspec)
    return {"eventlog": row.events, "jobspec": jobspec, "R": row.R}


def read_events(read: Query, jobid: int) -> list[Event] | None:
    """Return a job's log alone; None if the store does not have it."""
    found: list[Event] = []
    for row in read(f"SELECT {SELECTED['job_log']} FROM job_log WHERE jobid = ? ORDER BY seq", (jobid,)):
        try:
            _check(row)
            found += unpack_events(row[2])
        except (ValueError, LookupError, TypeError) as exc:
            raise DamagedJob(jobid, exc) from exc
    return found or None


def read_active(read: Query, damaged: Callable[[DamagedJob], None]) -> Iterator[JobRecord]:
    """Yield all active jobs, in order of job id; `damaged` is called for each that cannot be read."""
    part = _part(read)
    wanted = "SELECT jobid FROM job_log EXCEPT SELECT jobid FROM job_log WHERE ended"

    def whole(row: JobspecRow, ended: bool) -> bytes:
        if ended:
            raise ValueError("it has ended, and the index of ended jobs lacks it")
        return row.whole(part)

    return _rows(read, wanted, (), whole, damaged)


def ended_last(read: Query, ended_max: int) -> list[int]:
    """Return the ids of the jobs that ended last, the latest first."""
    return [jobid for (jobid,) in read(
        "SELECT jobid FROM job_log WHERE ended ORDER BY ended DESC, seq DESC LIMIT ?", (ended_max,)
    )]  # fmt: skip


def read_ended(read: Query, jobids: Sequence[int], damaged: Callable[[DamagedJob], None]) -> Iterator[JobRecord]:
    """Yield these jobs, as far as they still exist and can be read; `damaged` is called for each that cannot.

    Their jobspecs lack the large parts.
    """
    wanted = "SELECT value AS jobid FROM json_each(?)"
    return _rows(read, wanted, (id_list(jobids),), lambda row, ended: row.bare(), damaged)


def ended_count(read: Query) -> int:
    """Return the number of ended jobs."""
    ((count,),) = read("SELECT count(*) FROM job_log WHERE ended", ())
    return int(count)


def oldest_ended(read: Query, count_max: int) -> list[tuple[int, int]]:
    """Return ids and ends (seconds) of the jobs that ended first."""
    return [*read("SELECT jobid, ended FROM job_log WHERE ended ORDER BY ended, jobid LIMIT ?", (count_max,))]


def last_jobid(read: Query) -> int:
    """Return the highest id; 0 without jobs."""
    ((jobid,),) = read("SELECT coalesce(max(jobid), 0) FROM job_log", ())
    return int(jobid)


def parts_of_only(read: Query, jobids: Sequence[int]) -> list[int]:
    """Return the parts to which these jobs refer and no others."""
    several = "(SELECT value FROM json_each(?1))"
    parts = f"SELECT {{0}} AS part FROM job_log WHERE jobid IN {several} AND {{0}}"
    others = f"SELECT 1 FROM job_log WHERE {{0}} = part AND {{0}} AND jobid NOT IN {several}"
    unshared = " AND ".join(f"NOT EXISTS ({others.format(column)})" for column in PART_COLUMNS)
    union = " UNION ".join(parts.format(column) for column in PART_COLUMNS)
    return [part for (part,) in read(f"SELECT part FROM ({union}) WHERE {unshared}", (id_list(jobids),))]


def id_list(ids: Sequence[int]) -> str:
    """Return ids for a statement with `json_each`: JSON as text, since SQLite may take bytes for JSON of its own."""
    return encode(ids).decode()


def known_parts(read: Query) -> tuple[list[tuple[int, bytes]], int]:
    """Return ids and digests of the parts that were added last, in order, and the highest id."""
    rows = list(read("SELECT id, digest FROM part ORDER BY id DESC LIMIT ?", (PARTS_KNOWN_MAX,)))
    return [(number, digest) for number, digest in reversed(rows)], rows[0][0] if rows else 0


def _rows(
    read: Query,
    wanted: str,
    parameters: tuple[Any, ...],
    text_of: Callable[[JobspecRow, bool], bytes],
    damaged: Callable[[DamagedJob], None] | None = None,
) -> Iterator[JobRecord]:
    """Yield the jobs whose ids the query `wanted` returns.

    Rows are ordered by `seq`. For a job that cannot be read `damaged` is called, if given; else DamagedJob is raised.
    """
    rows = read(
        f"""
        WITH wanted AS ({wanted})
        SELECT job_log.jobid, ended, events, jobspec, environment, files, R, crc
        FROM wanted CROSS JOIN job_log ON job_log.jobid = wanted.jobid ORDER BY wanted.jobid, seq
        """,
        parameters,
    )
    alike: dict[bytes, list[Event]] = {}
    for jobid, stretch in groupby(rows, key=itemgetter(0)):
        try:
            yield _record(jobid, stretch, alike, text_of)
        except (FluxschedError, ValueError, LookupError, TypeError) as exc:
            fault = DamagedJob(jobid, exc)
            if damaged is None:
                raise fault from exc
            damaged(fault)


def _record(
    jobid: int,
    stretch: Iterable[tuple[Any, ...]],
    alike: dict[bytes, list[Event]],
    text_of: Callable[[JobspecRow, bool], bytes],
) -> JobRecord:
    """Return one job, from its rows; `alike` has stretches of events that were read before."""
    events: list[Event] = []
    jobspec = resources = None
    has_ended = False
    for row in stretch:
        _check(row)
        _, ended, some, text, environment, files, resources_text, _ = row
        has_ended |= bool(ended)
        known = alike.get(some)
        if known is None:
            if len(alike) >= ALIKE_MAX:
                alike.clear()
            known = alike[some] = unpack_events(some)
        events += known
        jobspec = JobspecRow(text, environment or 0, files or 0) if text is not None else jobspec
        resources = decode(_spelled_out(resources_text)) if resources_text is not None else resources
    return JobRecord(jobid, events, None if jobspec is None else text_of(jobspec, has_ended), resources)


def _check(row: Sequence[Any]) -> None:
    """Raise ValueError unless the row is as it was written."""
    if not is_intact(row):
        raise ValueError(DIFFERS)


def _part(read: Query) -> Callable[[int], bytes]:
    """Return a function that reads parts by id, and caches the last ones."""
    known: OrderedDict[int, bytes] = OrderedDict()

    def part(number: int) -> bytes:
        text = known.get(number)
        if text is None:
            (row,) = read(f"SELECT {SELECTED['part']} FROM part WHERE id = ?", (number,))
            _check(row)
            text = known[number] = expanded(bytes(row[2]))
            if len(known) > PARTS_READ_MAX:
                known.popitem(last=False)
        return text

    return part


# ---- parts that jobspecs share

ENVIRONMENT_MARK: Final = b"\0"
"""Replacement for an environment except its closing brace: variables of the job alone may follow."""
FILES_MARK: Final = b"\1"
PER_JOB: Final = "FLUX_JOB_CC"
"""The variable that differs in each job of an array: it stays with the job, so that the others are shared."""
PART_BYTES_MIN: Final = 128
"""A smaller part stays where it is: a row of its own would take as much."""
PARTS_KNOWN_MAX = 4096
"""Number of parts that are found again by content (a megabyte); one that recurs after so many others is kept twice."""
OBJECTS_KNOWN_MAX = 64
"""Objects whose content is known: jobs that are submitted together have one environment between them."""
DIGEST_BYTES: Final = 16

_json = msgspec.json.encode

AddPart = Callable[[tuple[int, bytes, bytes]], None]
"""Takes the row of a part that is to be stored now: id, digest and text, which may be compressed there."""


class JobspecRow(NamedTuple):
    """A jobspec as it is kept, and the ids of the parts for which its marks stand (0: none)."""

    text: bytes | bytearray
    environment: int = 0
    files: int = 0

    def whole(self, part: Callable[[int], bytes]) -> bytes:
        """Return the jobspec's JSON; `part` has the texts by id."""
        text = _spelled_out(self.text)
        if self.environment:
            text = text.replace(ENVIRONMENT_MARK, part(self.environment))
        if self.files:
            text = text.replace(FILES_MARK, part(self.files))
        return text

    def bare(self) -> bytes:
        """Return the jobspec as if the parts were empty: enough where no task is started."""
        text = _spelled_out(self.text).replace(ENVIRONMENT_MARK + b"}", b"{}")
        return text.replace(ENVIRONMENT_MARK + b",", b"{").replace(FILES_MARK, b"null")


NO_JOBSPEC: Final = ("", 0, 0)
"""The values of a row without one."""


class Parts:
    """The parts that the store has or soon will have."""

    def __init__(self, add: AddPart, known: Iterable[tuple[int, bytes]] = (), last_id: int = 0) -> None:
        """`known`: ids and digests, the one that was added last at the end."""
        self._add = add
        self._ids: OrderedDict[bytes, int] = OrderedDict((digest, number) for number, digest in known)
        self._objects: dict[int, tuple[object, int]] = {}
        self._last_id = last_id

    def split(self, jobspec: dict[str, Any]) -> JobspecRow:
        """Return the row of a jobspec, after adding its parts. The jobspec must not change afterwards."""
        attributes = jobspec.get("attributes") or {}
        system = attributes.get("system") or {}
        environment, files = system.get("environment"), system.get("files")
        if not environment and not files:
            return JobspecRow(_abbreviated(_json(jobspec), JOBSPEC_PHRASES))
        system, numbers = dict(system), [0, 0]
        if environment:
            numbers[0], system["environment"] = self._environment(environment)
        if files:
            numbers[1] = self._object(files, _json)
            system["files"] = msgspec.Raw(FILES_MARK) if numbers[1] else files
        text = _json({**jobspec, "attributes": {**attributes, "system": system}})
        return JobspecRow(_abbreviated(text, JOBSPEC_PHRASES), *numbers)

    def forget(self, numbers: Iterable[int]) -> None:
        """Find these no more: their rows are about to be removed."""
        gone = frozenset(numbers)
        for digest in [digest for digest, number in self._ids.items() if number in gone]:
            del self._ids[digest]
        self._objects.clear()

    def _environment(self, environment: dict[str, Any]) -> tuple[int, object]:
        """Return the id of the shared part of an environment, and the replacement of the whole."""
        if PER_JOB not in environment:
            number = self._object(environment, _open)
            return number, msgspec.Raw(ENVIRONMENT_MARK + b"}") if number else environment
        shared = {name: value for name, value in environment.items() if name != PER_JOB}
        number = self._text(_open(shared))
        own = _json({PER_JOB: environment[PER_JOB]})
        return number, msgspec.Raw(ENVIRONMENT_MARK + b"," + own[1:]) if number else environment

    def _object(self, part: object, encode: Callable[[Any], bytes]) -> int:
        known = self._objects.get(id(part))
        if known is not None and known[0] is part:
            return known[1]
        number = self._text(encode(part))
        if len(self._objects) >= OBJECTS_KNOWN_MAX:
            self._objects.clear()
        self._objects[id(part)] = part, number
        return number

    def _text(self, text: bytes) -> int:
        """Return the id of a part with this text; 0 for one that is too small."""
        if len(text) < PART_BYTES_MIN:
            return 0
        digest = blake2b(text, digest_size=DIGEST_BYTES).digest()
        number = self._ids.get(digest)
        if number is None:
            self._last_id = number = self._last_id + 1
            self._add((number, digest, text))
            self._ids[digest] = number
            if len(self._ids) > PARTS_KNOWN_MAX:
                self._ids.popitem(last=False)
        else:
            self._ids.move_to_end(digest)
        return number


def _open(environment: dict[str, Any]) -> bytes:
    return _json(environment)[:-1]


# ---- texts that nearly all jobspecs and R have

JOBSPEC_PHRASES: Final = (
    (b"\2", b'{"version":1,"resources":[{"type":"slot","count":'),
    (b"\3", b'{"version":1,"resources":[{"type":"node","count":'),
    (b"\4", b',"with":[{"type":"slot","count":'),
    (b"\5", b',"with":[{"type":"core","count":'),
    (b"\6", b'}],"label":"task"}],"tasks":[{"command":["'),
    (b"\7", b'}],"label":"task"}]}],"tasks":[{"command":["'),
    (b"\b", b'"],"slot":"task","count":{"per_slot":1}}],"attributes":{"system":{"duration":'),
    (b"\t", b',"cwd":"'),
    (b"\n", b'","environment":'),
    (b"\v", b',"exec":{"test":{"run_duration":"'),
)
R_PHRASES: Final = (
    (b"\x0c", b'{"version":1,"execution":{"R_lite":[{"rank":"'),
    (b"\r", b'","children":{"core":"'),
    (b"\x0e", b'","gpu":"'),
    (b"\x0f", b'"}}],"starttime":'),
    (b"\x10", b',"expiration":'),
    (b"\x11", b',"nodelist":["'),
    (b"\x12", b'"],"nslots":'),
    (b"\x13", b'"},"rank":"'),
)
"""A byte and its text: files have the bytes, so none may get another text."""
_PHRASES: Final = dict((*JOBSPEC_PHRASES, *R_PHRASES))
_spell_out: Final = partial(re.compile(b"[\2-\x13]").sub, lambda found: _PHRASES[found[0]])


def pack_resources(resources: dict[str, Any]) -> bytearray:
    """Return R as it is kept."""
    return _abbreviated(_json(resources), R_PHRASES)


def _abbreviated(text: bytes, phrases: Iterable[tuple[bytes, bytes]]) -> bytearray:
    for mark, phrase in phrases:
        text = text.replace(phrase, mark)
    return bytearray(text)


def _spelled_out(text: bytes | bytearray) -> bytes:
    return _spell_out(bytes(text))


# ---- events of jobs

NAMES: Final = (
    "submit", "validate", "depend", "priority", "alloc", "start", "finish", "release", "free", "clean", "exception",
    "flux-restart", "memo", "urgency", "jobspec-update", "resource-update", "dependency-add", "dependency-remove",
)  # fmt: skip
"""Names that are kept as their index here: to be extended at the end only, since files have the numbers."""
_CODES: Final = {name: code for code, name in enumerate(NAMES)}
KEYS: Final = (
    "annotations", "sched", "resource_summary", "selection_type", "status", "usage", "wall_s", "user_s", "system_s",
    "max_rss_bytes", "max_rss_is_bound", "ranks", "final",
)  # fmt: skip
"""Keys that are kept as their index here, to be extended likewise, in the contexts of `_LONG` events."""
_KEY_CODES: Final = {key: code for code, key in enumerate(KEYS)}
_KEY_NAMES: Final = dict(enumerate(KEYS))
KEY_LEVELS: Final = 2
"""Dictionaries within a context, one within the other, in which keys are numbers; what is deeper stays as it is."""
_LONG: Final = frozenset(map(NAMES.index, ("alloc", "finish", "release")))
_VALUES_AN_EVENT: Final = 3
_KEYS_MIN: Final = 2
"""An event has a time, a name and mostly a context."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[Any]).decode


def pack_events(events: Sequence[Event], coded: Callable[[dict[Any, Any]], dict[Any, Any]] | None = None) -> bytearray:
    """Return one stretch of a log as a bytearray, which the interpreter passes to SQLite without a copy."""
    coded = coded or _coded
    flat: list[Any] = []
    before = None
    for event in events:
        try:
            time_s, code, size = event["timestamp"], _CODES[event["name"]], len(event)
            context = None if size == _KEYS_MIN else event["context"]
            is_usual = time_s is not None and size == (_KEYS_MIN if context is None else _KEYS_MIN + 1)
        except (KeyError, TypeError):
            is_usual = False
        if is_usual:
            if code in _LONG and type(context) is dict:
                context = coded(context)
            flat += (None if time_s == before else time_s, code, context)
            before = time_s
        else:
            flat += (None, event, None)
            before = None
    return bytearray(_pack(flat))


class EventPacker:
    """Packs stretches of events; jobs that are handled in one turn mostly share theirs, which are packed once. Events
    that are merely equal are not: 1 equals true.
    """

    def __init__(self) -> None:
        self._noted: dict[int, tuple[object, dict[Any, Any]]] = {}
        """By id annotations, which thus stay, and the coded context that has them."""
        self._last: dict[str, tuple[Sequence[Event], tuple[int, bytearray]]] = {}
        """By the name of its first event the last stretch, and what it is as a part of a row."""

    def pack(self, events: Sequence[Event]) -> tuple[int, bytearray]:
        """Return when the job ended (seconds, 0 if it has not), and the stretch as `pack_events` does; neither events
        nor bytes may be changed afterwards.
        """
        name = events[0]["name"]
        known = self._last.get(name)
        if known is None or known[0] is not events:
            last = events[-1]
            ended_s = max(1, int(last["timestamp"])) if last["name"] == "clean" else 0
            self._last[name] = known = events, (ended_s, pack_events(events, self._coded))
        return known[1]

    def _coded(self, context: dict[Any, Any]) -> dict[Any, Any]:
        """Return a context with the numbers of its keys; annotations, which jobs on the same cores share, have them
        once.
        """
        noted = context.get("annotations") if len(context) == 1 else None
        if noted is None:
            return _coded(context)
        known = self._noted.get(id(noted))
        if known is None or known[0] is not noted:
            if len(self._noted) >= NOTED_MAX:
                self._noted.clear()
            known = self._noted[id(noted)] = noted, _coded(context)
        return known[1]


def unpack_events(data: bytes) -> list[Event]:
    """Return the events encoded by `pack_events`.

    Raises ValueError (msgspec's among them) or LookupError for invalid data.
    """
    flat, events, before = _unpack(data), list[Event](), None
    for at in range(0, len(flat), _VALUES_AN_EVENT):
        time_s, name, context = flat[at : at + _VALUES_AN_EVENT]
        if type(name) is dict:
            events.append(name)
            before = None
            continue
        if type(name) is not int or name < 0:  # a negative one would be that of an event from the end
            raise ValueError(f"{name!r} is not the number of an event")
        before = before if time_s is None else time_s
        event: Event = {"timestamp": before, "name": NAMES[name]}
        if context is not None:
            event["context"] = _named(context) if name in _LONG and type(context) is dict else context
        events.append(event)
    return events


def _coded(context: dict[Any, Any], levels: int = KEY_LEVELS) -> dict[Any, Any]:
    codes = _KEY_CODES
    return {
        codes.get(key, key): _coded(value, levels - 1) if levels and type(value) is dict else value
        for key, value in context.items()
    }


def _named(context: dict[Any, Any], levels: int = KEY_LEVELS) -> dict[str, Any]:
    """Return a context with the names of its keys. Raises LookupError for a number that has none."""
    return {
        _KEY_NAMES[key] if type(key) is int else key: _named(value, levels - 1)
        if levels and type(value) is dict
        else value
        for key, value in context.items()
    }


# ---- compression of ended jobs

COMPRESSED_BYTES_MIN: Final = 512
"""A smaller part stays as it is: it would save less than its row takes."""
EXPANDED_BYTES_MAX: Final = 64 << 20
"""A larger part stays as it is; no damaged one takes more memory than this."""
LEVEL: Final = 1
"""The fastest, 35 us for an environment of 8 KiB; the usual one takes 50 us and makes it 2 to 5 % smaller."""
_FIRST_BYTE: Final = b"\x78"
"""First byte of a stream with zlib's own window size, which is used here."""


def compressed(text: bytes) -> bytes:
    """Return the form in which a part is kept: compressed if that is shorter."""
    if not COMPRESSED_BYTES_MIN <= len(text) <= EXPANDED_BYTES_MAX:
        return text
    found = zlib.compress(text, LEVEL)
    return found if len(found) < len(text) else text


def expanded(kept: bytes) -> bytes:
    """Return the text of a part. Raises Refused (EIO) for a damaged one."""
    if not kept.startswith(_FIRST_BYTE):
        return kept
    stream = zlib.decompressobj()
    try:
        text = stream.decompress(kept, EXPANDED_BYTES_MAX + 1)
    except zlib.error as fault:
        raise _damaged(str(fault)) from fault
    if len(text) > EXPANDED_BYTES_MAX:
        raise _damaged(f"it expands to more than {EXPANDED_BYTES_MAX} bytes")
    if not stream.eof:
        raise _damaged("its end is missing")
    return text


def _damaged(why: str) -> Refused:
    return Refused(
        f"an environment or file of a job cannot be read from the state: {why}: restore a backup (fluxsched restore)",
        errno.EIO,
    )
