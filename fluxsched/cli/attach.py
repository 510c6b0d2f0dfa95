"""Following one job to its end: output, forwarded input, its terminal, its exit status as in a shell; and `fluxsched
rsh`, which does so with a command on another host of a job, for programs that start their helpers by rsh or ssh.

Law: the terminal is left as it was found, however this ends.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from math import inf
from typing import Any, BinaryIO

import click

from fluxsched.cli.base import COMMAND_LAST, Command, EndedBySignal, EndingSignals, say, warn
from fluxsched.cli.options import JOBID, InstanceHandle, come_back, connected
from fluxsched.cli.output import jobid_text
from fluxsched.errors import Disconnected, RPCError
from fluxsched.system.clock import SystemClock

PIECE_BYTES = 64 * 1024
"""Input in one request: what a pipe holds."""
OWN = "-"
"""The usual name for standard input."""


def own_input(*, terminal: bool) -> int | None:
    """Return the descriptor of this command's input; None if it has none, or has a terminal and that does not count."""
    try:
        fd = sys.stdin.fileno()
    except (AttributeError, OSError):  # closed, or replaced by something that is no file
        return None
    return fd if terminal or not os.isatty(fd) else None


class Forwarder:
    """Reads a descriptor to its end for a job; give it to `InstanceHandle.stream` as `beside`.

    It reads on while less than a piece is unanswered: a task that does not read slows its sender down.
    """

    def __init__(self, handle: InstanceHandle, jobid: int, source: int) -> None:
        self._handle = handle
        self._jobid = jobid
        self._source = source
        self._any = self.ended = False
        self._unsure_bytes = 0
        """Bytes that were sent and are not answered."""

    @property
    def fd(self) -> int | None:
        """The descriptor, if it is to be read now."""
        return None if self.ended or self.is_full else self._source

    @property
    def is_full(self) -> bool:
        """Return whether so much is unanswered that nothing more is to be sent now."""
        return self._unsure_bytes >= PIECE_BYTES

    def look(self) -> None:
        """Send what can be read now, or its end."""
        try:
            data = _read(self._source)
        except OSError as exc:
            self._say(f"cannot read the input, ending it for the job: {os.strerror(exc.errno or 0)}")
            data = b""
        if data is not None:
            self.send(data)

    def send(self, data: bytes) -> None:
        """Send a piece; an empty one is the end."""
        self._any |= bool(data)
        self.ended = not data
        self._unsure_bytes += len(data)
        request = {"id": self._jobid, **({"data": data} if data else {"eof": True})}
        self._handle.post("job-manager.input", request, lambda answer: self._answered(answer, data))

    def _answered(self, answer: Any, data: bytes) -> None:
        """Input for a job that has ended is dropped; other refusals are reported once, if there was any input."""
        error = answer.error
        self._unsure_bytes -= len(data)
        if error is None:
            return
        if self._any and error.errnum != errno.ESRCH:
            self._say(f"input is not forwarded: {error}")
            self._any = False
        self.ended = True

    def say_what_is_unsure(self) -> None:
        """Say that it is not known whether the last pieces have reached the job; none is sent twice."""
        if self._unsure_bytes:
            self._say(f"the last {self._unsure_bytes} bytes of input may be lost")

    def _say(self, text: str) -> None:
        warn(f"{jobid_text(self._jobid)}: {text}")


def _read(fd: int) -> bytes | None:
    """Return a piece of what can be read now, empty at the end; None if nothing can. Raises OSError."""
    if not select.select([fd], [], [], 0)[0]:
        return None
    try:
        return os.read(fd, PIECE_BYTES)
    except BlockingIOError:
        return None


# ---- the terminal

DETACH_KEY = b"\x1c"
"""Ctrl-\\, as for Flux's terminals, dtach and abduco."""


class Detached(Exception):
    """The user has typed the key to detach."""


def is_own_terminal(fd: int) -> bool:
    """Return whether a descriptor is a terminal of which this process has the foreground, so that it may change it."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:  # no terminal, or another session's
        return False


def window_of(fd: int) -> tuple[int, int] | None:
    """Rows and columns of a terminal; None if it does not know them, or is none."""
    try:
        columns, rows = os.get_terminal_size(fd)
    except OSError:
        return None
    return (rows, columns) if rows and columns else None


class TerminalForwarder:
    """Reads a terminal for a job within `raw`; give it to `InstanceHandle.stream` as `beside`.

    DETACH_KEY is noticed though the job takes no input and the instance does not answer, until a piece is unanswered.
    """

    def __init__(self, handle: InstanceHandle, jobid: int, source: int) -> None:
        self._handle = handle
        self._jobid = jobid
        self._source = source
        self._keys = Forwarder(handle, jobid, source)
        self._both = select.epoll()
        self._woken, self._wake = os.pipe()
        for fd in (self._woken, self._wake):
            os.set_blocking(fd, False)
        self._both.register(self._woken, select.EPOLLIN)
        self._is_read = False

    @property
    def fd(self) -> int | None:
        """A descriptor for both: what is typed, if it is to be read now, and changes of the window."""
        if self._is_read == self._keys.is_full:
            self._is_read = not self._is_read
            if self._is_read:
                self._both.register(self._source, select.EPOLLIN)  # by default also while it can be written to
            else:
                self._both.unregister(self._source)
        return self._both.fileno()

    def look(self) -> None:
        """Send what has been typed, and the size of a window that has changed.

        Raises Detached at the key for it, EndedBySignal if the terminal is gone.
        """
        if select.select([self._woken], [], [], 0)[0]:
            os.read(self._woken, 4096)
            window = window_of(self._source)
            if window is not None:
                request = {"id": self._jobid, "window": list(window)}
                self._handle.post("job-manager.input", request, _answered)
        if self._keys.is_full:
            return
        try:
            typed = _read(self._source)
        except OSError:
            typed = b""
        if typed is None:
            return
        keys, *detach = typed.split(DETACH_KEY, 1)
        if keys and not self._keys.ended:
            self._keys.send(keys)
        if detach:
            raise Detached
        if not keys:  # a raw terminal has no other end
            raise EndedBySignal(signal.SIGHUP)

    @contextmanager
    def raw(self) -> Iterator[None]:
        """Have the terminal pass on every key, and print what comes as it is, until the end, also by a signal."""
        import termios
        import tty

        def changed(signum: int, frame: object) -> None:
            os.write(self._wake, b"w")

        with EndingSignals():
            before = termios.tcgetattr(self._source)
            usual = signal.signal(signal.SIGWINCH, changed)
            try:
                tty.setraw(self._source, termios.TCSANOW)
                changed(0, None)  # it may have changed before
                yield
            finally:
                with suppress(termios.error):  # it is gone
                    termios.tcsetattr(self._source, termios.TCSANOW, before)  # though it takes no output
                signal.signal(signal.SIGWINCH, usual)

    def close(self) -> None:
        """Close the descriptors of the forwarder."""
        self._both.close()
        os.close(self._woken)
        os.close(self._wake)


def _answered(answer: Any) -> None:
    """Ignore the answer: a job that has ended needs no window."""


# ---- following a job

PENDING_HINT_S = 2.0
"""Delay before the user is shown why the job is still waiting (seconds); most jobs have started by then."""
HINT_EVERY_S = 30.0
"""Interval at which it is checked whether the reason has changed (seconds)."""

OUTAGE_LOOKS_MAX = 5
"""Times that a submit looks whether the job waits for an outage; mostly its scheduler has decided by the second."""
OUTAGE_LOOK_S = 0.1
"""Time between these looks (seconds)."""

STARTED = frozenset(("start", "finish", "clean"))
"""Events after which a job does not wait to run."""


class OutputWriter:
    """Writes what tasks write, at once and byte for byte; labelled, it waits for whole lines and puts `prefix` and the
    task's number before each. What comes again after `begin_again` is passed over.
    """

    def __init__(self, labelled: bool = False, prefix: bytes = b"") -> None:
        self.labelled = labelled
        self._prefix = prefix
        self._rest: dict[tuple[str, int], bytes] = {}
        self._taken: dict[tuple[str, int], int] = {}
        """Bytes of each stream of a task that have been written."""
        self._again: dict[tuple[str, int], int] = {}
        """Bytes of them that are to come again."""

    def begin_again(self) -> None:
        """All that was written comes once more, from its beginning."""
        self._again = dict(self._taken)

    def write(self, piece: Mapping[str, Any]) -> None:
        """Write one answer of job-manager.output."""
        data = piece["data"]
        data = data.encode() if isinstance(data, str) else data
        stream, task = key = piece["stream"], piece.get("task") or 0
        again = min(self._again.get(key, 0), len(data))
        if again:
            self._again[key] -= again
            data = data[again:]
        self._taken[key] = self._taken.get(key, 0) + len(data)
        if self.labelled:
            lines = (self._rest.pop((stream, task), b"") + data).split(b"\n")
            self._rest[stream, task] = lines.pop()
            data = b"".join(b"%s%d: %s\n" % (self._prefix, task, line) for line in lines)
        _write(_stream(stream), data)

    def finish(self) -> None:
        """Write what came without a newline at its end."""
        for (stream, task), rest in self._rest.items():
            if rest:
                _write(_stream(stream), b"%s%d: %s\n" % (self._prefix, task, rest))
        self._rest.clear()


def follow_output(handle: InstanceHandle, jobid: int, writer: OutputWriter, *, follow: bool, **aside: Any) -> None:
    """Copy a job's output here; with `follow` until the job has finished. `aside` is what `stream` takes."""
    for piece in handle.stream("job-manager.output", {"id": jobid, "follow": follow}, **aside):
        writer.write(piece)
    writer.finish()


def attach(handle: InstanceHandle, jobid: int, *, labelled: bool, source: int | None, terminal: bool = False) -> int:
    """Follow a job to its end, from attempt to attempt, and return its exit status.

    On a terminal, show why it has not started.

    What can be read from the descriptor `source`, if there is one, is passed on to the job's tasks; if it is a
    `terminal`, it becomes that of the task once the job has started, until the user detaches: the status is 0 then.
    """
    writer = OutputWriter(labelled)
    while True:
        hints = pending_hints(handle, jobid) if sys.stderr.isatty() else ()
        forwarder = None if source is None or terminal else Forwarder(handle, jobid, source)
        try:
            if terminal and source is not None:
                _until_started(handle, jobid, hints)
                with closing(TerminalForwarder(handle, jobid, source)) as keys, keys.raw():
                    follow_output(handle, jobid, writer, follow=True, beside=keys)
            else:
                follow_output(handle, jobid, writer, follow=True, meanwhile=hints, beside=forwarder)
            result = handle.wait(jobid, follow=False)
        except Detached:
            name = jobid_text(jobid)
            say(f"\ndetached: {name} continues: fluxsched job attach {name}")
            return 0
        except Disconnected as fault:  # after a restart or a crash of the instance the job goes on
            name = jobid_text(jobid)
            come_back(handle, fault, f"{name} may go on: fluxsched job attach {name}")
            writer.begin_again()
            if forwarder is not None:
                forwarder.say_what_is_unsure()
            continue
        if not result.get("requeued_as"):
            return report_end(result)
        again = jobid_text(result["requeued_as"])
        warn(f"{jobid_text(jobid)}: {end_text(result)}; submitted again as {again}")
        jobid, writer = result["requeued_as"], OutputWriter(labelled)


def _until_started(handle: InstanceHandle, jobid: int, hints: Iterable[float]) -> None:
    """Wait until the job has started, or has ended without that; `hints` are asked when to go on (seconds)."""
    came: set[str] = set()

    def take(answer: Mapping[str, Any] | RPCError | None) -> None:
        came.update(event["name"] for event in answer["events"]) if isinstance(answer, Mapping) else came.add("clean")

    end = handle.subscribe("job-manager.eventlog", {"id": jobid, "follow": True}, take)
    delays = iter(hints)
    while not came & STARTED:
        delay_s = next(delays, inf)
        until_s = SystemClock.monotonic_s() + delay_s
        while not came & STARTED and (left_s := until_s - SystemClock.monotonic_s()) > 0:
            handle.listen(None if left_s == inf else left_s)
    if "clean" not in came:
        end()


def pending_hints(handle: InstanceHandle, jobid: int) -> Iterator[float]:
    """Say on stderr why a job waits, and again when it waits for another reason. Yields when to go on (seconds)."""
    yield PENDING_HINT_S
    from fluxsched.views.jobs import PENDING

    said = None
    while (why := _why(handle, jobid))["state"] in PENDING:
        if why["reason"] != said:
            said = why["reason"]
            warn(f"{jobid_text(jobid)}: waiting: {said}")
        yield HINT_EVERY_S


def outage_hint(handle: InstanceHandle, jobid: int) -> None:
    """Say on stderr that a job waits since it would cross an outage, as `job why` does; nothing if none is planned."""
    from fluxsched.views.jobs import PENDING

    with suppress(RPCError):
        names = [(each.get("reservation"), each["name"]) for each in handle.rpc("resource.outage-list")["outages"]]
        begins = tuple(f"{'reservation' if is_one else 'outage'} {name} keeps " for is_one, name in names)
        for look in range(OUTAGE_LOOKS_MAX if names else 0):
            if look:
                SystemClock.sleep(OUTAGE_LOOK_S)
            why = _why(handle, jobid)
            if why["state"] not in PENDING:
                break
            if why["reason"].startswith(begins):
                warn(f"{jobid_text(jobid)}: waiting: {why['reason']}")
                break


def show_notices(handle: InstanceHandle) -> None:
    """Print the notices of admins on stderr, if that is a terminal: nobody else is asked for them."""
    if sys.stderr.isatty():
        with suppress(RPCError):
            for each in handle.rpc("instance.notice-list")["notices"]:
                warn(f"notice: {each['text']}")


def _why(handle: InstanceHandle, jobid: int) -> Mapping[str, Any]:
    """If the hint cannot be obtained, show none."""
    try:
        return handle.rpc("job-manager.why", {"id": jobid})
    except RPCError:
        return {"state": None}


def report_end(result: Mapping[str, Any]) -> int:
    """Say on stderr why a job has failed, if it has; the exit status that it gives this command."""
    if not result["success"]:
        warn(f"{job_text(result)}: {end_text(result)}")
    return exit_status(result)


def job_text(result: Mapping[str, Any]) -> str:
    """Return the job that a result is of, and its last attempt where that is another one."""
    last = result.get("last")
    return jobid_text(result["id"]) + (f" (submitted again as {jobid_text(last)})" if last else "")


def end_text(result: Mapping[str, Any]) -> str:
    """Return the end of a job, in words."""
    if result.get("exception_type"):
        note = result.get("exception_note")
        return f"exception {result['exception_type']}{f': {note}' if note else ''}"
    return result.get("errstr") or ("completed" if result["success"] else f"exit status {exit_status(result)}")


def exit_status(result: Mapping[str, Any]) -> int:
    """Return the exit status as in a shell: 0..255, 128+n for signal n, 1 where the job failed without a status of its
    own.
    """
    status = result["status"]
    try:
        code = os.waitstatus_to_exitcode(status) if status >= 0 else 1
    except (ValueError, OverflowError):
        code = 1
    code = 128 - code if code < 0 else code
    return code or (0 if result["success"] else 1)


def _stream(name: str) -> BinaryIO:
    return (sys.stderr if name == "stderr" else sys.stdout).buffer


def _write(stream: BinaryIO, data: bytes) -> None:
    stream.write(data)
    stream.flush()


# ---- `rsh`


class CommandInput(Forwarder):
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
    forwarder = CommandInput(handle, 0, os.open(os.devnull, os.O_RDONLY) if source is None else source)
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
