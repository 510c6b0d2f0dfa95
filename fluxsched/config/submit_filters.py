"""Submit filters: a site's code that may refuse or edit each job that is submitted, in a process of its own.

    python -m fluxsched.config.submit_filters PARENT FD SPEC...

A filter is a class with a `name`, `OPTIONS` like those of a policy, and a method `filter(job)`. It returns None to let
the job pass as it is, or the jobspec to be submitted instead, and raises Refused to refuse the job with a reason.
Filters are named by a file or an entry point of group `fluxsched.submit_filters`; each is given what the one before it
has made. Law: a fault of a filter refuses the one job; only a process that ends or does not answer in time fails all
jobs of its batch. Both sides send frames over one socket: four bytes with the length, then MessagePack.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Final, NamedTuple, Protocol

import msgspec

from fluxsched.errors import FluxschedError, InvalidValue, Refused
from fluxsched.sched.loading import (
    Option,
    check_name,
    in_file,
    in_packages,
    is_file,
    offered,
    option_values,
    parse_spec,
    policy_line,
)
from fluxsched.system.clock import SystemClock
from fluxsched.system.files import private_file
from fluxsched.system.log import exception_text, left
from fluxsched.system.processes import die_with, reason_line, why_ended

ENTRY_POINT_GROUP: Final = "fluxsched.submit_filters"

NOUN: Final = "submit filter"

FRAME_BYTES_MAX = 1 << 28
"""Bytes of a batch: some hundred jobspecs, each of which has 16 MiB at most and mostly 10 KiB."""

LENGTH: Final = struct.Struct("!I")

LEAVING_S = 2.0
"""Maximum time until a process must be gone once it has closed its socket (seconds)."""


class SubmittedJob(NamedTuple):
    """A job that is being submitted: its jobspec (RFC 14) as it came, before defaults of queues are applied."""

    jobspec: dict[str, Any]
    userid: int
    urgency: int


class SubmitFilter(Protocol):
    """Interface of submit filters."""

    name: ClassVar[str]
    OPTIONS: ClassVar[Mapping[str, Option]]

    def filter(self, job: SubmittedJob) -> dict[str, Any] | None:
        """Return the jobspec to submit instead of the job's; None: the job passes as it is. Raises Refused."""
        ...


class FilterAnswer(NamedTuple):
    """The edited jobspec, or the reason of a refusal with its errno; a job that passes as it is has neither."""

    jobspec: dict[str, Any] | None = None
    refusal: str = ""
    errnum: int = 0


# ---- filters by name


def known_filters() -> list[str]:
    """Return the names that packages offer."""
    return sorted(point.name for point in offered(ENTRY_POINT_GROUP))


def check_filter(spec: str) -> None:
    """Raise InvalidValue for a filter that is not known; its code is not run."""
    name, _ = parse_spec(spec, NOUN)
    if not is_file(name) and name not in known_filters():
        there = ", ".join(known_filters()) or "none"
        raise InvalidValue(f"no {NOUN} {name!r}: there are {there}; a file is named with its '.py'")


def make_filter(spec: str) -> SubmitFilter:
    """Return a filter ready to use, from `NAME:key=value,...`. Raises InvalidValue naming filter and option."""
    check_filter(spec)
    name, options = parse_spec(spec, NOUN)
    cls = in_file(NOUN, name, _is_filter, "`name` and `filter`") if is_file(name) else in_packages(
        NOUN, ENTRY_POINT_GROUP, name
    )  # fmt: skip
    check_name(NOUN, cls, "site-defaults")
    if cls is None or not _is_filter(cls):
        raise InvalidValue(f"{NOUN} {name!r} has no method filter; it should have filter(self, job)")
    values = {key.replace("-", "_"): value for key, value in option_values(NOUN, cls, options).items()}
    made: SubmitFilter = cls(**values)
    return made


def _is_filter(cls: type[Any]) -> bool:
    return hasattr(cls, "name") and callable(getattr(cls, "filter", None))


# ---- frames


class FilterFault(FluxschedError):
    """The process of the filters cannot be used; the text says why."""

    errnum = errno.EAGAIN


def _send(sock: socket.socket, value: object) -> None:
    data = msgspec.msgpack.encode(value)
    sock.sendall(LENGTH.pack(len(data)) + data)


def _receive(sock: socket.socket, until_s: float | None = None) -> bytes | None:
    """Return the next frame; None when the other side has gone. Raises TimeoutError."""
    head = _read(sock, LENGTH.size, until_s)
    if head is None:
        return None
    (size,) = LENGTH.unpack(head)
    if size > FRAME_BYTES_MAX:
        raise FilterFault(f"a frame of {size} bytes is above the maximum of {FRAME_BYTES_MAX}")
    return _read(sock, size, until_s)


def _read(sock: socket.socket, size: int, until_s: float | None) -> bytes | None:
    found = bytearray()
    while len(found) < size:
        if until_s is not None:
            left_s = until_s - SystemClock.monotonic_s()
            if left_s <= 0:
                raise TimeoutError
            sock.settimeout(left_s)
        data = sock.recv(min(size - len(found), 1 << 20))
        if not data:
            return None
        found += data
    return bytes(found)


# ---- the instance's side


class FilterProcess:
    """The process of a site's filters, used by one thread; it ends with that thread."""

    def __init__(self, specs: Sequence[str], log: Path, timeout_s: float) -> None:
        """Start the process and wait until it has loaded the filters. Raises FilterFault."""
        self._timeout_s = timeout_s
        ours, theirs = socket.socketpair()
        self._socket = ours
        private_file(log)
        with theirs, log.open("ab") as output:
            self._log, self._log_begin = log, output.tell()
            words = [str(os.getpid()), str(theirs.fileno()), *specs]
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", __name__, *words], stdin=subprocess.DEVNULL, stdout=output,
                    stderr=output, pass_fds=(theirs.fileno(),), start_new_session=True,
                )  # fmt: skip
            except OSError as fault:
                ours.close()
                raise FilterFault(f"no process can be started: {fault.strerror}") from fault
        self._answer()

    def ask(self, jobs: Sequence[SubmittedJob]) -> list[FilterAnswer]:
        """Return the verdicts on jobs, in their order. Raises FilterFault, after which the process has ended."""
        try:
            self._socket.settimeout(self._timeout_s)
            _send(self._socket, jobs)
        except OSError as fault:
            raise self._fault(fault) from fault
        found = self._answer()
        if len(found) != len(jobs):
            raise self._fault(FilterFault(f"it answered {len(found)} of {len(jobs)} jobs"))
        return found

    def _answer(self) -> list[FilterAnswer]:
        try:
            data = _receive(self._socket, SystemClock.monotonic_s() + self._timeout_s)
            if data is None:
                raise ConnectionResetError
            return msgspec.msgpack.decode(data, type=list[FilterAnswer])
        except (OSError, FluxschedError, msgspec.MsgspecError) as fault:
            raise self._fault(fault) from fault

    def _fault(self, fault: Exception) -> FilterFault:
        """End the process; return the reason why it cannot be used."""
        if isinstance(fault, OSError) and not isinstance(fault, TimeoutError):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(LEAVING_S)
        status = self._process.poll()
        self.kill()
        self._socket.close()
        if isinstance(fault, TimeoutError):
            return FilterFault(f"it did not answer within {self._timeout_s:g} s")
        if not isinstance(fault, OSError):
            return FilterFault(str(fault))
        if status is None:
            return FilterFault("it closed its connection")
        return FilterFault(why_ended(status, self._log, self._log_begin))

    def kill(self) -> None:
        """End the process; another thread that waits for its answer gets a FilterFault."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the process, which nobody waits for."""
        self.kill()
        self._socket.close()


def no_filters() -> FilterProcess:
    """Raise FilterFault: there is no place where filters could run."""
    raise FilterFault("submit filters cannot run here")


def filter_fault(spec: str, timeout_s: float) -> str | None:
    """Return why a filter cannot be used, for which it is loaded in a process of its own; None if it can."""
    with TemporaryDirectory() as directory:
        try:
            FilterProcess([spec], Path(directory, "log"), timeout_s).close()
        except FilterFault as fault:
            return str(fault)
    return None


# ---- the process


def verdict(filters: Sequence[SubmitFilter], job: SubmittedJob) -> FilterAnswer:
    """Return what the filters make of a job, one after another."""
    edited = None
    for each in filters:
        try:
            found = each.filter(job)
            if found is None:
                continue
            if not isinstance(found, dict):
                raise TypeError(f"filter returned {type(found).__name__}, not a jobspec or None")
            msgspec.msgpack.encode(found)
        except Refused as refusal:
            return FilterAnswer(None, str(refusal), refusal.errnum)
        except SystemExit as fault:
            return FilterAnswer(None, f"{NOUN} {each.name!r} {left(fault, policy_line(fault))}", errno.EINVAL)
        except Exception as fault:  # foreign code: whatever it raises refuses this job
            text = exception_text(fault, policy_line(fault))
            return FilterAnswer(None, f"{NOUN} {each.name!r} raised {text}; tell the administrator", errno.EINVAL)
        edited = found
        job = job._replace(jobspec=found)
    return FilterAnswer(edited)


def load(specs: Sequence[str]) -> list[SubmitFilter]:
    """Return the filters, ready to use; exceptions of their code become an error of one line."""
    try:
        return [make_filter(spec) for spec in specs]
    except FluxschedError:
        raise
    except Exception as fault:  # foreign code: its author needs to see whatever it raises
        raise InvalidValue(f"a {NOUN} raised {exception_text(fault, policy_line(fault))}") from fault


def serve(sock: socket.socket, filters: Sequence[SubmitFilter]) -> None:
    """Answer batches of jobs until the instance closes the connection; an empty answer says that all is ready."""
    _send(sock, [])
    decoder = msgspec.msgpack.Decoder(list[SubmittedJob])
    while (data := _receive(sock)) is not None:
        _send(sock, [verdict(filters, job) for job in decoder.decode(data)])


def main(parent: int, fd: int, specs: Sequence[str]) -> int:
    """Load the filters and serve; the exit status is 0 (the instance has gone) or 2 (one cannot be loaded)."""
    die_with(parent)
    try:
        filters = load(specs)
    except FluxschedError as fault:
        sys.stderr.write(reason_line(str(fault)))
        return 2
    with socket.socket(fileno=fd) as sock:
        serve(sock, filters)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
