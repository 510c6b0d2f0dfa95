"""`job-info` of the endpoint for Flux clients: a job's logs event by event, and parts of its record.

Law: an event is one line of text (RFC 18), in a log of the job itself or in one of `synthesized_logs.py`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import msgspec

from fluxsched.core.jobid import format_f58
from fluxsched.core.jsontext import with_path
from fluxsched.errors import FluxschedError, LimitExceeded, Refused
from fluxsched.jobs.effects import Event
from fluxsched.protocol.framing import signed
from fluxsched.protocol.messages import flux_jobs as msg
from fluxsched.protocol.messages.jobs import OutputResponse
from fluxsched.runtime.exec.base import spool_directory
from fluxsched.runtime.flux_compat.synthesized_logs import OutputLog, exec_events, own_events
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.messaging.peers import RpcRequest
from fluxsched.runtime.messaging.router import Router
from fluxsched.runtime.services.jobs.effects import JobEffects
from fluxsched.runtime.services.jobs.records import current_resources, stored_job, stored_result
from fluxsched.runtime.services.jobs.streams import JobStreams, OutputFollower
from fluxsched.runtime.services.jobs.task_output import Budget, TaskOutput

INITIAL_SENTINEL = 2
"""The flag that asks for an empty response where history ends."""
JSON_DECODE, CURRENT = 1, 2
"""Flags of a lookup."""
LOOKUP_OUTPUT_BYTES_MAX = 1 << 20
"""Output in one lookup; more is followed. It is read and made into events in one go."""
OUTPUT_BYTES = 8 * 1024
"""Output made into events at a time: if every line is short, more than a thousand."""
PIECE_EVENTS = 64
"""Events that count like one more piece of output: a turn has room for some 2,000 (20 ms)."""

_encode = msgspec.json.encode


def line(event: Event) -> str:
    """An event as it stands in a log."""
    return _encode(event).decode() + "\n"


def text_of(events: Iterable[Event]) -> str:
    """A log as it stands in a record."""
    return "".join(map(line, events))


class _EventSender:
    """Sends events one by one, and marks the end of history once if that is wanted."""

    def __init__(self, request: RpcRequest, flags: int) -> None:
        self._request = request
        self._sentinel = bool(flags & INITIAL_SENTINEL)

    def send(self, events: Iterable[Event]) -> int:
        """Send them; how many there were."""
        count = 0
        for event in events:
            self._request.respond(msg.EventlogWatchResponse(line(event)))
            count += 1
        return count

    def end_history(self) -> None:
        if self._sentinel:
            self._sentinel = False
            self._request.respond()


class _FluxFollower(OutputFollower):
    """Follows a job's output as RFC 24 writes it."""

    chunk_bytes = OUTPUT_BYTES

    def __init__(self, request: RpcRequest, jobid: int, log: OutputLog, flags: int) -> None:
        super().__init__(request, jobid, follow=True)
        self._log = log
        self._sender = _EventSender(request, flags)

    def begin(self) -> None:
        self._sender.send(self._log.begin())

    def send(self, piece: OutputResponse) -> int:
        return self._sender.send(self._log.data(piece)) // PIECE_EVENTS

    def caught_up(self) -> None:
        self._sender.end_history()

    def end(self) -> None:
        self._sender.send(self._log.end())
        self._sender.end_history()
        super().end()


class JobInfoService:
    """Serves `job-info`."""

    def __init__(self, effects: JobEffects, streams: JobStreams, store: Store, router: Router) -> None:
        self._effects = effects
        self._streams = streams
        self._store = store
        self._watches: dict[str, Callable[[RpcRequest, msg.EventlogWatchRequest], None]] = {
            "eventlog": self._watch_log,
            "guest.exec.eventlog": self._watch_exec,
            "guest.output": self._watch_output,
        }
        self._parts: dict[str, Callable[[int, Mapping[str, Any], int], object]] = {
            "eventlog": lambda jobid, record, flags: text_of(own_events(record["eventlog"])),
            "jobspec": _jobspec,
            "J": lambda jobid, record, flags: signed.wrap(_encode(record["jobspec"]), _userid(record)),
            "R": _resources,
            "guest.exec.eventlog": lambda jobid, record, flags: text_of(_executed(jobid, record)),
            "guest.output": self._output,
        }
        router.serve_local(
            {
                "job-info.lookup": self._lookup,
                "job-info.eventlog-watch": self._watch,
            }
        )

    # -- watching -----------------------------------------------------------------------------------------------

    def _watch(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.EventlogWatchRequest)
        watch = self._watches.get(wanted.path)
        if watch is None:
            raise Refused(f"a job has no log {wanted.path!r}; it has {', '.join(self._watches)}", errno.ENOENT)
        watch(request, wanted)

    def _watch_log(self, request: RpcRequest, wanted: msg.EventlogWatchRequest) -> None:
        self._follow(request, wanted, own_events)

    def _watch_exec(self, request: RpcRequest, wanted: msg.EventlogWatchRequest) -> None:
        def record() -> Mapping[str, Any]:
            return self._record(wanted.id)

        self._follow(request, wanted, lambda events: exec_events(wanted.id, events, record))

    def _follow(
        self,
        request: RpcRequest,
        wanted: msg.EventlogWatchRequest,
        translated: Callable[[list[Event]], Iterable[Event]],
    ) -> None:
        sender = _EventSender(request, wanted.flags)

        def send(events: list[Event]) -> None:
            sender.send(translated(events))
            sender.end_history()

        self._streams.follow_log(request, wanted.id, True, send)

    def _watch_output(self, request: RpcRequest, wanted: msg.EventlogWatchRequest) -> None:
        def begin(record: Mapping[str, Any]) -> None:
            log = OutputLog(wanted.id, record, lambda: self._time_s(wanted.id))
            self._streams.follow_output(_FluxFollower(request, wanted.id, log, wanted.flags))

        self._with_record(request, wanted.id, begin)

    def _time_s(self, jobid: int) -> float:
        """When what is read now was written at the latest: a job that has ended may be on disk only by now."""
        manager = self._effects.manager
        job = manager.jobs.active.get(jobid) or manager.jobs.inactive.get(jobid)
        if job is not None:
            return job.t_cleanup or self._effects.now_s
        ended = stored_result(self._store, jobid)
        return self._effects.now_s if ended is None else ended.t_inactive

    # -- looking up ---------------------------------------------------------------------------------------------

    def _lookup(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.InfoLookupRequest)
        unknown = [key for key in wanted.keys if key not in self._parts]
        if unknown:
            raise Refused(f"{', '.join(unknown)}: key not found; a job has {', '.join(self._parts)}", errno.ENOENT)

        def answer(record: Mapping[str, Any]) -> None:
            parts = {key: self._parts[key](wanted.id, record, wanted.flags) for key in wanted.keys}
            request.respond({"id": wanted.id, **parts})

        self._with_record(request, wanted.id, answer)

    def _with_record(self, request: RpcRequest, jobid: int, use: Callable[[Mapping[str, Any]], None]) -> None:
        """Use the job's record once what was decided about it is on disk; what is refused is the request's error."""

        def ready() -> None:
            try:
                use(self._record(jobid))
            except FluxschedError as error:
                request.error(error.errnum, str(error))

        self._effects.after_commit(ready)

    def _record(self, jobid: int) -> Mapping[str, Any]:
        record = stored_job(self._store, jobid)
        if record is None:
            raise Refused(f"invalid job id: {format_f58(jobid)} is unknown", errno.ENOENT)
        return record

    def _output(self, jobid: int, record: Mapping[str, Any], flags: int) -> str:
        """All output so far as one text. Raises Refused or LimitExceeded."""
        if not any(event["name"] == "start" for event in record["eventlog"]):
            raise Refused(f"guest.output: key not found: job {format_f58(jobid)} has not started", errno.ENOENT)
        last_s = record["eventlog"][-1]["timestamp"]
        log = OutputLog(jobid, record, lambda: float(last_s))
        ended = record["eventlog"][-1]["name"] == "clean"
        data = (log.data(piece) for piece in self._pieces(jobid))
        return text_of(chain(log.begin(), chain.from_iterable(data), log.end() if ended else ()))

    def _pieces(self, jobid: int) -> Iterator[OutputResponse]:
        output = TaskOutput(spool_directory(self._effects.spool, jobid))
        size = 0
        while not output.is_complete:
            for piece in output.bite(Budget(), ended=True):
                size += len(piece.data)
                if size > LOOKUP_OUTPUT_BYTES_MAX:
                    raise LimitExceeded(
                        f"guest.output: more than {LOOKUP_OUTPUT_BYTES_MAX} bytes: follow it (flux job attach)"
                    )
                yield piece


def _userid(record: Mapping[str, Any]) -> int:
    return int(record["eventlog"][0]["context"]["userid"])


def _executed(jobid: int, record: Mapping[str, Any]) -> Iterator[Event]:
    return exec_events(jobid, record["eventlog"], lambda: record)


def _jobspec(jobid: int, record: Mapping[str, Any], flags: int) -> object:
    """The jobspec without its environment, as Flux keeps it (what it was submitted with is in J)."""
    tree: dict[str, Any] = record["jobspec"]
    system = tree.get("attributes", {}).get("system", {})
    if "environment" in system:
        bare = {key: value for key, value in system.items() if key != "environment"}
        tree = with_path(tree, "attributes.system", bare)
    return _object(_updated(tree, record) if flags & CURRENT else tree, flags)


def _resources(jobid: int, record: Mapping[str, Any], flags: int) -> object:
    if record["R"] is None:
        raise Refused(f"R: key not found: job {format_f58(jobid)} has no resources yet", errno.ENOENT)
    tree = current_resources(jobid, record) if flags & CURRENT else record["R"]
    assert tree is not None, "a job that has its R has one after all changes"
    return _object(tree, flags)


def _updated(tree: dict[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """A jobspec after all updates of it in the job's log."""
    for event in record["eventlog"]:
        if event["name"] == "jobspec-update":
            for path, value in event["context"].items():
                tree = with_path(tree, path, value)
    return tree


def _object(tree: dict[str, Any], flags: int) -> object:
    return tree if flags & JSON_DECODE else _encode(tree).decode()
