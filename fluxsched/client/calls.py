"""The RPCs that are methods of both clients, each declared once, and what the two clients have in common.

A declaration is a method that makes the request. On `AsyncHandle` it returns an awaitable of the result, on `Handle`
the result itself; mypy knows both signatures. Any other topic is called by `rpc` and `stream`, with plain objects.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from logging import DEBUG
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

from msgspec import to_builtins

from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import InvalidValue
from fluxsched.protocol import framing
from fluxsched.protocol.framing import RESPONSE, Message, decode, unpack_bundle
from fluxsched.protocol.messages import instance, jobs, resource
from fluxsched.protocol.messages.common import Empty, Payload
from fluxsched.protocol.messages.instance import (
    IntervalsRequest,
    IntervalsResponse,
    MachineChange,
    PlanRequest,
    PlanResponse,
    ReasonsRequest,
    ReasonsResponse,
    ReportRequest,
    ReportResponse,
    RunningRequest,
    RunningResponse,
    SamplesRequest,
    SamplesResponse,
    TraceRequest,
    TraceResponse,
)
from fluxsched.protocol.sessions import Calls
from fluxsched.system.clock import matchtag_before
from fluxsched.system.log import logger, request_id

log = logger("client")

TIMEOUT_S = 60.0
"""Timeout of a plain request (seconds); an instance answers within milliseconds."""

P = ParamSpec("P")
A_co = TypeVar("A_co", covariant=True)
B_co = TypeVar("B_co", covariant=True)
R = TypeVar("R")
S = TypeVar("S")
Object = dict[str, Any]
MakeRequest = Callable[Concatenate[Any, P], Payload]
ReadResult = Callable[[Any], Any]


class Answers(Protocol):
    """The answers of one stream."""

    def __aiter__(self) -> AsyncIterator[Object]: ...

    def __anext__(self) -> Awaitable[Object]: ...

    def cancel(self) -> None:
        """Ask the instance to end the stream; responses already under way still arrive."""


class TypedCall(Generic[P, A_co, B_co]):
    """RPC as a method: A is the type that it returns on an `AsyncHandle`, B that on a `Handle`."""

    def __init__(
        self, topic: str, request: MakeRequest[P], response: Any, result: ReadResult | None, timeout_s: float | None
    ) -> None:
        self.topic = topic
        self.request = request
        self.response = response
        self.result = result
        """Type of the response that the caller receives; None for a stream."""
        self.timeout_s = timeout_s
        self.__doc__ = request.__doc__

    def read(self, payload: bytes | None) -> Any:
        """Return the result in a response."""
        assert self.result is not None, "a stream has many"
        return self.result(framing.unpack(payload, self.response))

    def timeout_of(self, arguments: Mapping[str, Any]) -> float | None:
        """Return the timeout of a call with these arguments (seconds); None: no limit."""
        timeout_s: float | None = arguments.get("timeout_s", self.timeout_s)
        return timeout_s

    @overload
    def __get__(self, handle: AsyncCalls, owner: object = None) -> Callable[P, A_co]: ...
    @overload
    def __get__(self, handle: BlockingCalls, owner: object = None) -> Callable[P, B_co]: ...
    def __get__(self, handle: Any, owner: object = None) -> Any:
        return partial(handle.perform, self)


def rpc(
    topic: str, response: type[S], result: Callable[[S], R], timeout_s: float | None = TIMEOUT_S
) -> Callable[[MakeRequest[P]], TypedCall[P, Coroutine[Any, Any, R], R]]:
    """Declare an RPC: the method makes the request, and `result` converts the response to the result for the caller."""
    return lambda request: TypedCall(topic, request, response, result, timeout_s)


def stream(
    topic: str, response: type[Payload]
) -> Callable[[MakeRequest[P]], TypedCall[P, Coroutine[Any, Any, Answers], Iterator[Object]]]:
    """Declare a streaming RPC: the caller gets the responses as plain objects."""
    return lambda request: TypedCall(topic, request, response, None, None)


def _discard_response(response: Empty) -> None:
    """Return None for a response without content."""


def _object(response: Payload) -> Object:
    found: Object = to_builtins(response)
    return found


def as_object(jobspec: Jobspec | Object) -> Object:
    """Return a jobspec as requests have it. Raises InvalidValue for what is none, such as the words of a command."""
    if isinstance(jobspec, Jobspec):
        return jobspec.to_json()
    if not isinstance(jobspec, Mapping):
        text = f"{jobspec!r:.80} is no jobspec: give Jobspec.from_command([...]), or a jobspec's JSON as a dict"
        raise InvalidValue(text)
    return jobspec


class InstanceCalls:
    """The table, and the calls that wait for their answers: their tokens are called with them."""

    def __init__(self) -> None:
        self.calls = Calls(last_tag=matchtag_before())
        self._logs = log.isEnabledFor(DEBUG)

    @rpc("job-manager.submit", jobs.SubmitResponse, lambda response: response.id)
    def submit(self, jobspec: Jobspec | Object, urgency: int = jobs.URGENCY_DEFAULT) -> Payload:
        """Submit one job; its id, once the job is on disk."""
        return jobs.SubmitRequest(as_object(jobspec), urgency)

    @rpc("job-manager.submit-array", jobs.SubmitArrayResponse, _object)
    def submit_array(
        self,
        jobspec: Jobspec | Object,
        paths: Sequence[Sequence[str | int]],
        texts: Sequence[Sequence[str]],
        array: int = 0,
        urgency: int = jobs.URGENCY_DEFAULT,
    ) -> Payload:
        """Submit jobs that differ in the texts at these paths of the jobspec (SubmitArrayResponse), as a new array or
        the next of one.
        """
        rows, places = [list(row) for row in texts], [list(path) for path in paths]
        return jobs.SubmitArrayRequest(as_object(jobspec), places, rows, array, urgency)

    @rpc("job-manager.wait", jobs.WaitResponse, _object, None)
    def wait(self, jobid: int, *, timeout_s: float | None = None, follow: bool = True) -> Payload:
        """Return the result of a job once it is inactive (WaitResponse); with `follow`, of its last attempt."""
        return jobs.WaitRequest(jobid, follow)

    @rpc("job-manager.raise", Empty, _discard_response)
    def cancel(self, jobid: int, note: str = "") -> Payload:
        """Cancel a job by raising a fatal exception of type `cancel`."""
        return jobs.RaiseRequest(jobid, "cancel", 0, note)

    @rpc("job-manager.raise", Empty, _discard_response)
    def requeue(self, jobid: int, note: str = "") -> Payload:
        """End a running job, which waits again as another attempt."""
        return jobs.RaiseRequest(jobid, "requeue", 0, note)

    @rpc("resource.drain", Empty, _discard_response)
    def drain(
        self, targets: str, reason: str | None = None, mode: str | None = None, cores: str = "", gpus: str = ""
    ) -> Payload:
        """Drain targets, given as idset or hostlist, or only these cores and GPUs of each; done once it is on disk."""
        return resource.DrainRequest(targets, reason, mode, cores, gpus)

    @rpc("resource.undrain", Empty, _discard_response)
    def undrain(
        self, targets: str, reason: str | None = None, mode: str | None = None, cores: str = "", gpus: str = "",
        only: str | None = None,
    ) -> Payload:  # fmt: skip
        """Return drained targets, or only these cores and GPUs of each, to service; or lift `only` this reason."""
        return resource.UndrainRequest(targets, reason, mode, cores, gpus, only)

    @rpc("resource.outage-add", resource.OutageAddResponse, lambda response: response.name)
    def add_outage(
        self,
        targets: str,
        from_s: float,
        until_s: float,
        *,
        every_s: float = 0.0,
        name: str | None = None,
        reason: str = "",
        end_jobs: bool = False,
        queue: str = "",
        reservation: bool = False,
        users: list[str] | None = None,
        nodes: int = 0,
    ) -> Payload:
        """Plan an outage of targets, from one time to another (seconds since the epoch); its name, once on disk.

        A reservation is for jobs (of these users, all if there are none) that name it; with `nodes`, so many targets.
        """
        return resource.OutageAddRequest(
            targets=targets, from_=from_s, until=until_s, every=every_s, name=name, reason=reason, end_jobs=end_jobs,
            queue=queue, reservation=reservation, users=tuple(users or ()), nodes=nodes,
        )  # fmt: skip

    @rpc("resource.outage-remove", Empty, _discard_response)
    def remove_outage(self, name: str) -> Payload:
        """Call a planned outage off."""
        return resource.OutageRemoveRequest(name)

    @rpc("resource.outage-list", resource.OutagesResponse, _object)
    def outages(self) -> Payload:
        """Return all planned outages (OutagesResponse)."""
        return Empty()

    @rpc("instance.notice-add", instance.NoticeAddResponse, lambda response: response.id)
    def add_notice(self, text: str, until_s: float | None = None) -> Payload:
        """Show all users a text until a time (seconds since the epoch), or until it is removed; its number."""
        return instance.NoticeAddRequest(text=text, until=until_s)

    @rpc("instance.notice-remove", Empty, _discard_response)
    def remove_notice(self, numbers: Sequence[int] | None = None) -> Payload:
        """Remove the notices with these numbers; None for all of them."""
        return instance.NoticeRemoveRequest(None if numbers is None else list(numbers))

    @rpc("instance.notice-list", instance.NoticesResponse, _object)
    def notices(self) -> Payload:
        """Return the notices that are shown now (NoticesResponse)."""
        return Empty()

    @stream("job-manager.watch", jobs.WatchResponse)
    def watch(self, names: list[str] | None = None) -> Payload:
        """Stream the events of all jobs from now on (WatchResponse), only those of the given names if there are any."""
        return jobs.WatchRequest(names=names or None)

    @stream("job-manager.changes", jobs.ChangesResponse)
    def changes(self, jobid: int) -> Payload:
        """Stream the targets of a job, then each growth and shrinkage, until the job has ended (ChangesResponse)."""
        return jobs.ChangesRequest(jobid)

    @stream("resource.watch", MachineChange)
    def watch_resources(self) -> Payload:
        """Stream the state of every target, then its changes (MachineChange)."""
        return Empty()

    @stream("instance.trace", TraceResponse)
    def trace(self, topics: Sequence[str] = ()) -> Payload:
        """Stream messages as they pass (TraceResponse); if prefixes are given, only those whose topics have one of
        them.
        """
        return TraceRequest(tuple(topics))

    @rpc("job-manager.running", RunningResponse, _object)
    def running(self, targets: str | None = None, max_entries: int | None = None) -> Payload:
        """Return the jobs that hold resources, the largest first (RunningResponse)."""
        return RunningRequest(targets, max_entries)

    @rpc("job-manager.reasons", ReasonsResponse, _object)
    def reasons(self, ids: Sequence[int]) -> Payload:
        """Why those of these jobs wait that do (ReasonsResponse)."""
        return ReasonsRequest(list(ids))

    @rpc("job-manager.when", jobs.WhenResponse, _object)
    def when(self, jobspecs: Sequence[Jobspec | Object], urgency: int = jobs.URGENCY_DEFAULT) -> Payload:
        """Return when each of these jobs would start if it alone were submitted now (WhenResponse); none is."""
        return jobs.WhenRequest([as_object(jobspec) for jobspec in jobspecs], urgency)

    @rpc("sched.plan", PlanResponse, _object)
    def plan(self, group: str = "default", max_entries: int | None = None) -> Payload:
        """Return the times and targets at which pending jobs are expected to start (PlanResponse)."""
        return PlanRequest(group, max_entries)

    @rpc("history.samples", SamplesResponse, _object)
    def samples(self, since_s: float | None = None, until_s: float | None = None, points_max: int = 0) -> Payload:
        """Utilisation, queues and jobs over time, as columns (SamplesResponse)."""
        return SamplesRequest(since_s, until_s, points_max)

    @rpc("history.intervals", IntervalsResponse, _object)
    def intervals(
        self, since_s: float | None = None, until_s: float | None = None, targets: str | None = None
    ) -> Payload:
        """Return the intervals in which targets could not be used, with the reasons (IntervalsResponse)."""
        return IntervalsRequest(since_s, until_s, targets)

    @rpc("history.report", ReportResponse, _object)
    def report(
        self,
        by: Literal["user", "bank", "queue", "group", "property"] = "user",
        since_s: float | None = None,
        until_s: float | None = None,
    ) -> Payload:
        """Return the resources used by jobs, summed by the given key (ReportResponse)."""
        return ReportRequest(by, since_s, until_s)

    def start(self, topic: str, payload: object, token: Callable[..., None], *, streaming: bool = False) -> Message:
        """Return the request of a new call."""
        message = self.calls.start(topic, None if payload is None else framing.pack(payload), streaming, token)
        if self._logs:
            log.debug("request %s: %s", request_id(message.matchtag), topic)
        return message

    def receive(self, frames: Sequence[bytes]) -> None:
        """Pass the answers in a message to the tokens of their calls."""
        for message in unpack_bundle(decode(frames)):
            if message.type == RESPONSE:
                answer = self.calls.receive(message)
                answer.token(answer)


class AsyncCalls(InstanceCalls):
    """Calls of `InstanceCalls` with awaitables of their results."""


class BlockingCalls(InstanceCalls):
    """Calls of `InstanceCalls` with the types of their results."""
