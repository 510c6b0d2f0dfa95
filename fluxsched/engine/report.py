"""First words of a keeper and its instance: what a host has, and where the instance listens (rfc/engines.md).

Law: a keeper writes one line on its standard output, a `HostReport`, and reads one line, the `Introduction`; neither is
ever an argument, in the environment or in a file that others may read. A report that is longer than what Slurm passes
on as one piece is written as several lines (`ReportPart`), since it mixes the pieces of different hosts. Other lines of
the standard output, such as those of a login shell, are no reports and are ignored. Who reads checks all of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from fluxsched.config.discovery import CORES_MAX, GPUS_MAX, MachineTopology
from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import Idset
from fluxsched.core.quantities import AMOUNT_MAX
from fluxsched.core.resources import ResourceSet
from fluxsched.core.rlite import Children, merge
from fluxsched.core.text import printable, some_of
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.executor.wire import VERSION
from fluxsched.transport.base import KeyPair, parse_key

REPORT_BYTES_MAX: Final = 1 << 17
"""A host of 4,096 cores with two processing units each needs 60 KB."""
INTRODUCTION_BYTES_MAX: Final = 2048
"""An introduction has some 400 bytes."""
LINE_BYTES_MAX: Final = 1000
"""Slurm passes on up to 1,024 bytes of a task's output as one piece."""
PART_BYTES: Final = 600
"""Bytes of a report in one part: they are written as base64, beside a host name of up to 64 characters."""
PARTS_MAX: Final = REPORT_BYTES_MAX // PART_BYTES + 1
REPORT_BEGIN: Final = b'{"type":"host-report'
"""Beginning of the lines of a report."""
TEXT_CHARS_MAX: Final = 128
"""Characters of a boot id, a GPU's address or a method, which have some forty."""


class HostReport(msgspec.Struct, frozen=True, tag_field="type", tag="host-report"):
    """Findings of a keeper on its host; see `MachineTopology` for the meaning of cores and GPUs."""

    host: str
    boot_id: str
    version: int
    """Version of the messages that the keeper understands (`executor.wire.VERSION`)."""
    cores: list[str]
    """Processing units (idset) of each core, at least one."""
    gpus: list[str]
    memory_bytes: int
    """0 if not known."""
    method: str

    @classmethod
    def of(cls, topology: MachineTopology, boot_id: str, host: str | None = None) -> HostReport:
        """Return the report of a machine, under another host name if one is given."""
        cores = [str(topology.cores[id]) for id in topology.core_ids]
        gpus, name = list(topology.gpus), topology.host if host is None else host
        return cls(name, boot_id, VERSION, cores, gpus, topology.memory_bytes, topology.method)

    def topology(self) -> MachineTopology:
        """Return the machine that the report describes."""
        cores = tuple([Idset.parse(each) for each in self.cores])
        return MachineTopology(self.host, cores, tuple(self.gpus), self.method, self.memory_bytes)


class ReportPart(msgspec.Struct, frozen=True, tag_field="type", tag="host-report-part"):
    """Piece `number` (0..`parts`-1) of the line of a host's report."""

    host: str
    number: int
    parts: int
    data: bytes


class Introduction(msgspec.Struct, frozen=True, tag_field="type", tag="introduction"):
    """Address and keys with which the keepers of an instance connect to it; keys have 64 hexadecimal digits."""

    endpoint: str
    """`tcp://ADDRESS:PORT`, without the server's key."""
    server_key: str
    public_key: str
    secret_key: str
    ping_s: float
    """Interval of a keeper's pings (seconds)."""
    orphan_timeout_s: float
    """Time after the last answered ping at which a keeper ends its tasks (seconds)."""

    def __repr__(self) -> str:
        return f"Introduction({self.endpoint!r}, ...)"

    def own_keys(self) -> KeyPair:
        """Return the keys that a keeper shows to the server."""
        return KeyPair(parse_key(self.public_key), parse_key(self.secret_key))


class _Incomplete(Exception):
    """Parts of the report have still to arrive."""


# ---- lines in which reports are sent


def report_lines(report: HostReport) -> bytes:
    """Return the line of a report, or its parts as lines. Raises LimitExceeded above REPORT_BYTES_MAX."""
    line = msgspec.json.encode(report)
    if len(line) > REPORT_BYTES_MAX:
        raise LimitExceeded(f"the report of {report.host} has {len(line)} bytes: the limit is {REPORT_BYTES_MAX}")
    if len(line) < LINE_BYTES_MAX:
        return line + b"\n"
    pieces = [line[at : at + PART_BYTES] for at in range(0, len(line), PART_BYTES)]
    parts = (ReportPart(report.host, number, len(pieces), piece) for number, piece in enumerate(pieces))
    return b"".join(msgspec.json.encode(part) + b"\n" for part in parts)


class ReportReader:
    """Reports in the lines that an engine's process writes, of one host or of several."""

    def __init__(self) -> None:
        self._parts: dict[str, dict[int, bytes]] = {}

    def read(self, line: bytes) -> HostReport | None:
        """Return the report that this line completes; None for a part before the last, and for any other line.

        Raises InvalidValue for a report that is wrong.
        """
        if not line.startswith(REPORT_BEGIN):
            return None
        if len(line) > REPORT_BYTES_MAX:
            raise LimitExceeded(f"a host's report has {len(line)} bytes: the limit is {REPORT_BYTES_MAX}")
        try:
            found = msgspec.json.decode(line, type=HostReport | ReportPart)
            if isinstance(found, ReportPart):
                found = msgspec.json.decode(self._joined(found), type=HostReport)
        except _Incomplete:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError) as fault:
            raise InvalidValue(f"a host's report cannot be read: {printable(str(fault))}: {_begin(line)}") from None
        _check_report(found)
        return found

    def _joined(self, part: ReportPart) -> bytes:
        if not 0 <= part.number < part.parts <= PARTS_MAX:
            what = f"part {part.number} of {part.parts}"
            raise LimitExceeded(f"report of {printable(part.host[:TEXT_CHARS_MAX])}: {what}: the limit is {PARTS_MAX}")
        found = self._parts.setdefault(part.host, {})
        found[part.number] = part.data
        if len(found) < part.parts:
            raise _Incomplete
        del self._parts[part.host]
        return b"".join(data for _, data in sorted(found.items()))


def introduction_line(introduction: Introduction) -> bytes:
    """Return an introduction as the line that a keeper reads."""
    return msgspec.json.encode(introduction) + b"\n"


def read_introduction(line: bytes) -> Introduction:
    """Return the introduction in a line. Raises InvalidValue, without repeating what may be a secret."""
    if len(line) > INTRODUCTION_BYTES_MAX:
        raise LimitExceeded(f"an introduction of {len(line)} bytes is above the limit of {INTRODUCTION_BYTES_MAX}")
    try:
        found = msgspec.json.decode(line, type=Introduction)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise InvalidValue("the introduction of the instance cannot be read: is it of another version?") from None
    for name, key in (("server", found.server_key), ("public", found.public_key), ("secret", found.secret_key)):
        try:
            parse_key(key)
        except InvalidValue as fault:
            raise InvalidValue(f"introduction: {name} key: {fault}") from None
    if not 0 < found.ping_s < found.orphan_timeout_s:
        text = f"pings each {found.ping_s:g} s and an orphan timeout of {found.orphan_timeout_s:g} s do not fit"
        raise InvalidValue(f"introduction: {text}: the timeout must be longer than the interval")
    return found


# ---- checks of reports, and the R made of them


def _check_report(report: HostReport) -> None:
    """Raise InvalidValue for a report that is not of a host."""
    host = f"report of {printable(report.host[:TEXT_CHARS_MAX])!r}"
    try:
        Hostlist.of([report.host])
        cores = [Idset.parse(each) for each in report.cores]
    except InvalidValue as fault:
        raise InvalidValue(f"{host}: {fault}") from None
    if not cores or not all(cores) or sum(map(len, cores)) != len(Idset.of(pu for pus in cores for pu in pus)):
        raise InvalidValue(f"{host}: cores must be at least one, each with processing units of its own")
    for what, number, limit in (("cores", len(cores), CORES_MAX), ("GPUs", len(report.gpus), GPUS_MAX)):
        if number > limit:
            raise LimitExceeded(f"{host}: {number} {what} are above the limit of {limit}")
    if not 0 <= report.memory_bytes <= AMOUNT_MAX:
        raise LimitExceeded(f"{host}: memory_bytes {report.memory_bytes} is not within 0-{AMOUNT_MAX}")
    if max(map(len, (report.boot_id, report.method, *report.gpus))) > TEXT_CHARS_MAX:
        raise LimitExceeded(f"{host}: a text is longer than the limit of {TEXT_CHARS_MAX} characters")


def _begin(line: bytes) -> str:
    return printable(line[:TEXT_CHARS_MAX].decode(errors="replace"))


def resources_of(reports: Sequence[HostReport]) -> ResourceSet:
    """Return R of these hosts: rank i is the i-th report's. Raises InvalidValue naming hosts that reported twice."""
    hosts = [report.host for report in reports]
    if twice := [host for host, number in Counter(hosts).items() if number > 1]:
        remedy = "start one keeper a host, and give each host a name of its own"
        raise InvalidValue(f"more than one report of {some_of(twice)}: {remedy}")
    if not reports:
        raise InvalidValue("no host has reported: there is nothing to make resources of")
    parts = [report.topology().resources().entries[0].children for report in reports]
    merged = merge(enumerate(parts))
    return ResourceSet(merged.entries, Hostlist.of(hosts))


def within_job(reported: ResourceSet, job: ResourceSet) -> ResourceSet:
    """Return R of the hosts of a job, where keepers have reported: these are bound to the job's cores and have found
    them, numbered anew; all else, such as GPUs and amounts, is what the job's R has there.
    """
    of_host = {job.host(rank): rank for rank in job.ranks}
    found: list[tuple[int, Children]] = []
    for rank in reported.ranks:
        theirs = job.children(of_host[reported.host(rank)])
        cores = reported.children(rank).cores
        found.append((rank, Children(cores, theirs.gpus, theirs.extra, theirs.amounts)))
    properties = {name: reported.ranks_on(job.restrict(ranks).nodelist)[0] for name, ranks in job.properties.items()}
    return replace(reported, entries=merge(found).entries, properties=properties, shared=job.shared)


def check_versions(reports: Iterable[HostReport]) -> None:
    """Raise InvalidValue naming the hosts on which another version of fluxsched is installed."""
    other = [f"{report.host} ({report.version})" for report in reports if report.version != VERSION]
    if other:
        remedy = "install the same fluxsched on all hosts"
        raise InvalidValue(f"keepers of {some_of(other)} do not understand version {VERSION} of our messages: {remedy}")
