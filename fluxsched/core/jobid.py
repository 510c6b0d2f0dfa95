"""Job ids (RFC 19 FLUIDs): 64-bit ints, their texts, their generator, and the tags of paths that they fill in.

A tag stands in double braces, such as `out-{{id}}-{{taskid}}`, and is filled in when the job starts.

Law: the text alone tells its encoding, in the order RFC 19 gives; a generator takes the time as an argument and never
repeats itself or goes back, even when its clock does. Of the encodings, `words` and emoji are not built: they get an
error that says so.

Words for a job that others read: its attributes in listings, its wait status.

Law: each attribute is declared once, with its JSON key, which listing has it and how it is shown: listings, the
messages of protocol and the columns of the command line agree on this table. What a job has under these names is
`jobs.query`'s business.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from fluxsched.core.text import kind_of, printable
from fluxsched.errors import InvalidValue, LimitExceeded

JOBID_MAX = (1 << 64) - 1
"""Job ids have 64 bits (RFC 19)."""
TIMESTAMP_BITS, GENERATOR_BITS, SEQUENCE_BITS = 40, 14, 10
TIMESTAMP_MAX = (1 << TIMESTAMP_BITS) - 1
GENERATOR_MAX = (1 << GENERATOR_BITS) - 1
SEQUENCE_MAX = (1 << SEQUENCE_BITS) - 1

TEXT_CHARS_MAX = 64
"""The longest text looked at: the longest FLUID text, in words, is shorter."""

_ALPHABET: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_VALUES = {digit: value for value, digit in enumerate(_ALPHABET)}
_DOTHEX: Final = re.compile(r"[0-9a-fA-F]{1,4}(?:\.[0-9a-fA-F]{1,4}){3}", re.ASCII)
_HEX: Final = re.compile(r"0x[0-9a-fA-F]+", re.ASCII)
_DECIMAL: Final = re.compile(r"[0-9]+", re.ASCII)


def parse_jobid(text: object) -> int:
    """Return the job id that a text in F58 (`ƒ` or `f`), dothex, hex (`0x`) or decimal names; outer spaces are ignored.

    Raises InvalidValue for any other text, LimitExceeded above 64 bits (RFC 19, decoding rules).
    """
    if not isinstance(text, str):
        raise InvalidValue(f"job id must be a string such as 'ƒ2JL', not {kind_of(text)}")
    body = text.strip()
    if not 0 < len(body) <= TEXT_CHARS_MAX:
        raise InvalidValue(f"job id of {len(body)} characters: give 1 to {TEXT_CHARS_MAX}, such as 'ƒ2JL'")
    id = _decode(body)
    if id is None:
        raise InvalidValue(f"job id {body!r} is not F58 (such as 'ƒ2JL' or 'f2JL'), dothex, 0x hex or decimal")
    if id > JOBID_MAX:
        raise LimitExceeded(f"job id {body!r} is above the limit of 64 bits")
    return id


def parse_jobids(text: str) -> tuple[int, int]:
    """Return the first and the last job id of a range `ID..ID`; of a single id both are that.

    Raises InvalidValue, LimitExceeded as `parse_jobid` does.
    """
    first, dots, last = text.partition("..")
    low = parse_jobid(first)
    high = parse_jobid(last) if dots else low
    if high < low:
        raise InvalidValue(f"{text[:TEXT_CHARS_MAX]!r} ends before it begins: write the lower id first")
    return low, high


def _decode(body: str) -> int | None:
    if "." in body:
        parts = body.split(".")
        return int("".join(part.zfill(4) for part in parts), 16) if _DOTHEX.fullmatch(body) else None
    if "-" in body:
        return None  # the mnemonic words encoding
    if body[0] in "ƒf":
        return _decode_base58(body[1:])
    if body.startswith("0x"):
        return int(body, 16) if _HEX.fullmatch(body) else None
    return int(body) if _DECIMAL.fullmatch(body) else None


def _decode_base58(digits: str) -> int | None:
    if not digits or not _VALUES.keys() >= set(digits):
        return None
    id = 0
    for digit in digits:
        id = id * 58 + _VALUES[digit]
    return id


def _checked(id: int) -> int:
    if not 0 <= id <= JOBID_MAX:
        raise InvalidValue(f"job id {id} is not in 0..2**64-1")
    return id


def format_f58(id: int, *, ascii: bool = False) -> str:
    """RFC 19 F58, the usual form: `ƒ2JL`, or `f2JL` for terminals that know no ƒ."""
    rest = _checked(id)
    digits: list[str] = []
    while rest or not digits:
        rest, value = divmod(rest, 58)
        digits.append(_ALPHABET[value])
    return ("f" if ascii else "ƒ") + "".join(reversed(digits))


def format_dothex(id: int) -> str:
    """Format an id as RFC 19 dothex: `0000.0000.0000.04d2`."""
    digits = f"{_checked(id):016x}"
    return ".".join([digits[at : at + 4] for at in range(0, 16, 4)])


def format_hex(id: int) -> str:
    """Format an id as RFC 19 hex: `0x4d2`."""
    return f"{_checked(id):#x}"


class FluidGenerator:
    """Makes ids of 40 bits of milliseconds since `epoch_ms`, 14 of `generator_id` and 10 of sequence.

    Of two ids the later is always the greater. When a millisecond's 1,024 are used up the next one's are borrowed, and
    a clock that goes back is waited for; so `last_id`, the highest one made before a restart, goes in to stay above it.
    """

    __slots__ = ("_epoch_ms", "_generator_id", "_sequence", "_timestamp_ms")

    def __init__(self, generator_id: int, epoch_ms: int, last_id: int | None = None) -> None:
        if not 0 <= generator_id <= GENERATOR_MAX:
            raise InvalidValue(f"generator id {generator_id} is not in 0..{GENERATOR_MAX}")
        self._generator_id = generator_id
        self._epoch_ms = epoch_ms
        self._timestamp_ms, self._sequence = -1, SEQUENCE_MAX
        if last_id is not None:
            self._timestamp_ms = _checked(last_id) >> (GENERATOR_BITS + SEQUENCE_BITS)

    def at(self, now_s: float) -> int:
        """Return the next id at this time, in seconds since the epoch."""
        return self.next(int(now_s * 1000))

    def next(self, now_ms: int) -> int:
        """Return the next id at this time. Raises LimitExceeded 34 years after the epoch."""
        timestamp_ms, sequence = max(now_ms - self._epoch_ms, 0), 0
        if timestamp_ms <= self._timestamp_ms:
            borrowed = self._sequence == SEQUENCE_MAX
            timestamp_ms = self._timestamp_ms + borrowed
            sequence = 0 if borrowed else self._sequence + 1
        if timestamp_ms > TIMESTAMP_MAX:
            raise LimitExceeded(f"{timestamp_ms} ms after the epoch is above {TIMESTAMP_MAX}: set a new epoch")
        self._timestamp_ms, self._sequence = timestamp_ms, sequence
        return (timestamp_ms << GENERATOR_BITS | self._generator_id) << SEQUENCE_BITS | sequence


# ---- tags in paths

ID_FORMS: Final[dict[str, Callable[[int], str]]] = {
    "": format_f58,
    "f58": format_f58,
    "f58plain": lambda jobid: format_f58(jobid, ascii=True),
    "dec": str,
    "hex": format_hex,
    "dothex": format_dothex,
}
"""Formats of `{{id.FORM}}` and `{{jobid.FORM}}`, by FORM."""
JOB_TAGS: Final = ("id", "jobid", "name", "nnodes", "size", "ntasks")
NODE_TAGS: Final = ("node.id", "node.name", "node.broker_rank", "node.cores", "node.gpus", "node.ncores")
HOSTFILE: Final = "hostfile"
"""Tag, and name in the job's directory, of the file for programs that start processes on all its hosts themselves."""
OWN_TAGS: Final = ("tmpdir", HOSTFILE)
"""Tags of variables alone: the job's directory and a file in it."""
TASK_TAGS: Final = ("taskid", "task.id", "task.rank", "task.index", "task.localid")

TAGS_NAMED_MAX = 8
"""Unknown tags that one error names."""

_TAG: Final = re.compile(r"\{\{ *(.*?) *\}\}", re.DOTALL)
_IDS = {f"{tag}.{form}".rstrip(".") for tag in ("id", "jobid") for form in ID_FORMS}
_SHARED = {*JOB_TAGS, *_IDS}
_KNOWN: Final = _SHARED.union(NODE_TAGS, TASK_TAGS)


def check_template(template: str, what: str) -> None:
    """Raise InvalidValue naming the tags of `template` that are unknown, and those that are known."""
    unknown = [tag for tag in dict.fromkeys(_TAG.findall(template)) if tag not in _KNOWN]
    if unknown:
        named = ", ".join(f"{{{{{printable(tag[:40])}}}}}" for tag in unknown[:TAGS_NAMED_MAX])
        known = ", ".join((*JOB_TAGS, *TASK_TAGS, *NODE_TAGS))
        forms = ", ".join(f"id.{form}" for form in ID_FORMS if form)
        raise InvalidValue(f"{what}: unknown tag {named}: known are {known}, and {forms}")


def check_outputs(output: str | None, error: str | None) -> None:
    """Check the names of a job's files for stdout and stderr, where it has them."""
    for template, what in ((output, "output"), (error, "error")):
        if template is not None and "{{" in template:
            check_template(template, f"{what} {template[:80]!r}")


def tags_of(template: str) -> list[str]:
    """Return what stands in tags, known or not."""
    return _TAG.findall(template)


def has_tags(template: str) -> bool:
    """Return whether the template has a tag that a variable may have."""
    return "{{" in template and any(tag in _KNOWN or tag in OWN_TAGS for tag in _TAG.findall(template))


def is_shared(template: str) -> bool:
    """Return whether all tasks of a job get the same path: the template has no tag of a node or a task."""
    return all(tag in _SHARED or tag not in _KNOWN for tag in _TAG.findall(template))


def fill(template: str, value: Callable[[str], str | None]) -> str:
    """`template` with `value(tag)` in the place of each tag; one without a value stays."""

    def one(found: re.Match[str]) -> str:
        text = value(found[1])
        return found[0] if text is None else text

    return _TAG.sub(one, template)


def id_tag(tag: str, jobid: int) -> str | None:
    """Return the value of `id`, `jobid` and their forms, None for other tags."""
    name, _, form = tag.partition(".")
    return ID_FORMS[form](jobid) if name in ("id", "jobid") and form in ID_FORMS else None


# ---- attributes of jobs as texts


class JobAttribute(NamedTuple):
    """`listed`: job-manager.list has it.

    `flux`: Flux's job-list has it (RFC 43). `heading`: that of its column in `fluxsched jobs`, empty if it is not shown
    under its own name.
    """

    name: str
    type: str
    """Of its value in job-manager.list: a type of JSON Schema."""
    heading: str = ""
    listed: bool = True
    flux: bool = True


_ALL: Final = (
    JobAttribute("id", "integer", flux=False),  # Flux's job-list always gives it, it is not asked for
    JobAttribute("state", "string", "STATE"),
    JobAttribute("name", "string", "NAME"),
    JobAttribute("userid", "integer", "UID"),
    JobAttribute("urgency", "integer", "URG"),
    JobAttribute("priority", "integer", "PRI"),
    JobAttribute("t_submit", "number", "SUBMIT"),
    JobAttribute("ntasks", "integer", "NTASKS"),
    JobAttribute("duration", "number", "DURATION"),
    JobAttribute("annotations", "object"),
    JobAttribute("dependencies", "array"),
    JobAttribute("command", "array", flux=False),
    JobAttribute("queue", "string", "QUEUE"),
    JobAttribute("array", "integer", flux=False),
    JobAttribute("t_depend", "number", listed=False),
    JobAttribute("t_priority", "number", listed=False),
    JobAttribute("t_sched", "number", listed=False),
    JobAttribute("t_run", "number", "RUN"),
    JobAttribute("t_cleanup", "number", "CLEANUP"),
    JobAttribute("t_inactive", "number", "INACTIVE"),
    JobAttribute("status", "integer", flux=False),
    JobAttribute("waitstatus", "integer", listed=False),
    JobAttribute("exception", "object", flux=False),
    JobAttribute("exception_occurred", "boolean", listed=False),
    JobAttribute("exception_type", "string", listed=False),
    JobAttribute("exception_severity", "integer", listed=False),
    JobAttribute("exception_note", "string", listed=False),
    JobAttribute("returncode", "integer", "RETURNCODE", flux=False),
    JobAttribute("ended", "string", "ENDED", flux=False),
    JobAttribute("usage", "object", flux=False),
    JobAttribute("asked", "string", "ASKED", flux=False),
    JobAttribute("nodes_asked", "integer", flux=False),
    JobAttribute("cores_asked", "integer", flux=False),
    JobAttribute("nnodes", "integer", "NNODES"),
    JobAttribute("ncores", "integer", "NCORES"),
    JobAttribute("ranks", "string", "RANKS"),
    JobAttribute("nodelist", "string", "NODELIST"),
    JobAttribute("sizes", "array", flux=False),
    JobAttribute("parts", "object", flux=False),
    JobAttribute("switch", "string", "SWITCH", flux=False),
    JobAttribute("expiration", "number", "EXPIRATION"),
    JobAttribute("success", "boolean", "SUCCESS"),
    JobAttribute("result", "string", "RESULT"),
    JobAttribute("cwd", "string", listed=False),
    JobAttribute("project", "string", listed=False),
    JobAttribute("bank", "string", "BANK"),
    JobAttribute("job_set", "string", "SET", flux=False),
    JobAttribute("preemptible_after", "number", "PREEMPTIBLE", flux=False),
    JobAttribute("requeue", "integer", "REQUEUE", flux=False),
    JobAttribute("attempt", "integer", "ATTEMPT", flux=False),
    JobAttribute("requeue_of", "integer", flux=False),
    JobAttribute("requeued_as", "integer", flux=False),
)

JOB_ATTRIBUTES: Final[Mapping[str, JobAttribute]] = MappingProxyType({one.name: one for one in _ALL})


# ---- wait statuses, as wait(2) gives them


def return_code(status: int) -> int:
    """Return the exit code of a wait status, or minus the signal that ended it (as Python and Flux have it)."""
    signum = status & 0x7F
    return -signum if signum else status >> 8 & 0xFF


def ended_text(status: int) -> str:
    """Return `exited 3`, `killed by SIGSEGV`."""
    code = return_code(status)
    return f"exited {code}" if code >= 0 else f"killed by {signal_name(-code)}"


def exit_code(fault: SystemExit) -> int:
    """Return the status with which Python leaves for what `sys.exit` was given."""
    return fault.code if isinstance(fault.code, int) else 0 if fault.code is None else 1


def signal_name(signum: int) -> str:
    """`SIGSEGV`; `signal 40` for one without a name of its own."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"
