"""Streams about jobs: `watch` (all events), `eventlog` (one job), `output` (stdout and stderr), input for tasks, and
commands beside them (`job-manager.exec`).

Laws: events are published once they are on disk, so a watcher never sees what a crash could undo. A request of
`job-manager.input` is answered when there is room for more, so the slowest task holds back a client that waits for
answers. What comes before the job has started waits with its request, and is gone if its sender goes away; what a task
has not read when the job ends is dropped. Nothing of it is on disk. A command lives as long as its request: it is ended
when its client goes away, and with its job. What it writes goes the way of what tasks write, and is removed with the
stream.

Output is read in small pieces from the files in a job's spool directory (`TaskOutput`): a piece is bounded, however
many tasks there are and however much they write, and every task gets its turn. A job of one task has one file a stream;
else each task has its own, made in the order of their numbers: so only the next number has to be looked for, and no
directory is ever listed. Long output is cut at the end of a line where possible, and so is all that several tasks write
as long as they run: their lines do not run into each other.
"""

from __future__ import annotations

import errno
import os
import signal
from collections import defaultdict, deque
from collections.abc import Callable, Container, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fluxsched.core.compiling import mypyc_attr
from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58
from fluxsched.errors import FluxschedError, LimitExceeded, Refused
from fluxsched.executor.base import InputPlace, Window, spool_directory, spool_name
from fluxsched.executor.hosts import NO_COMMANDS, CommandExecutor, HostCommand
from fluxsched.executor.io import HELD_BYTES_MAX
from fluxsched.executor.layout import remove
from fluxsched.jobs.query import EVERY_JOB, SizeChanges, find
from fluxsched.jobs.states import INACTIVE, read_next
from fluxsched.jobs.table import JobResult, as_asked, result
from fluxsched.messaging.peers import Peer, RpcRequest
from fluxsched.messaging.router import Router, forget
from fluxsched.protocol.messages import jobs as msg
from fluxsched.protocol.messages.jobs import InputRequest, OutputResponse
from fluxsched.services.job_effects import JobEffects, JobEvents
from fluxsched.services.jobs import (
    ENDED_WELL,
    LIST_ENTRIES_MAX,
    clean_context,
    clean_result,
    stored_log,
    stored_resources,
    wait_response,
)
from fluxsched.store.store import Store

StreamName = Literal["stdout", "stderr"]
STREAM_NAMES: tuple[StreamName, ...] = ("stdout", "stderr")

CHUNK_BYTES = 64 * 1024
"""Bytes of output in one response."""
TASK_CHUNKS = 16
"""Responses in a row from one stream of a task, so that one that floods its output does not starve the others."""
TURN_CHUNKS = 32
"""Responses in one turn, of all jobs that are followed (2 MiB)."""
TURN_LOOKS = 512
"""Files looked at in one turn, for all jobs that are followed (2 ms): 16 turns go once round a job of 4096 tasks."""


@dataclass(slots=True)
class Budget:
    """Work that may still be done in this turn."""

    looks: int = TURN_LOOKS
    chunks: int = TURN_CHUNKS

    @property
    def is_spent(self) -> bool:
        """Return whether the rest has to wait for the next turn."""
        return self.looks <= 0 or self.chunks <= 0


class _Task:
    """Positions up to which one task's files have been read; `number` is None for the only task of a job."""

    __slots__ = ("exists", "number", "offsets")

    def __init__(self, number: int | None) -> None:
        self.number = number
        self.offsets: dict[StreamName, int] = dict.fromkeys(STREAM_NAMES, 0)
        self.exists = False


class TaskOutput:
    """Reads what a job's tasks write, from where the last piece ended, `chunk_bytes` at a time."""

    def __init__(self, directory: Path, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._directory = str(directory)
        self._chunk_bytes = chunk_bytes
        self._tasks = deque((_Task(None), _Task(0)))

    @property
    def is_complete(self) -> bool:
        """Return whether everything has been read of a job that had ended."""
        return not self._tasks

    def bite(self, budget: Budget, *, ended: bool) -> Iterator[OutputResponse]:
        """Yield new output, of each task at most once and within the budget.

        Raises Refused for a file that cannot be read.

        `ended`: nothing is written any more, so that a task that has been read to its end needs no further look.
        """
        left = len(self._tasks)
        while left > 0 and not budget.is_spent:
            left -= 1
            task = self._tasks.popleft()
            was_known = task.exists
            at_end = yield from self._both(task, budget, ended)
            if task.exists and not was_known and task.number is not None:
                self._tasks.appendleft(_Task(task.number + 1))
                left += 1
            if not (ended and at_end):
                self._tasks.append(task)

    def _both(self, task: _Task, budget: Budget, ended: bool) -> Generator[OutputResponse, None, bool]:
        at_end = True
        for stream in STREAM_NAMES:
            at_end &= yield from self._stream(task, stream, budget, ended)
        return at_end

    def _stream(
        self, task: _Task, stream: StreamName, budget: Budget, ended: bool
    ) -> Generator[OutputResponse, None, bool]:
        path = f"{self._directory}/{spool_name(stream, task.number)}"
        for _ in range(TASK_CHUNKS):
            if budget.chunks <= 0:
                break  # one response may count as several
            budget.looks -= 1
            data = _read(path, task.offsets[stream], self._chunk_bytes)
            if not data:
                task.exists |= data is not None
                return True
            task.exists = True
            is_last = len(data) < self._chunk_bytes
            if not is_last or (task.number is not None and not ended):
                data = data[: data.rfind(b"\n") + 1] or data
            task.offsets[stream] += len(data)
            budget.chunks -= 1
            yield OutputResponse(stream=stream, data=data, task=task.number or 0)
            if is_last:
                return True
        return False


def _read(path: str, offset: int, size: int) -> bytes | None:
    """Return the content of the file from the offset on, `size` bytes at most; None if there is no file."""
    try:
        if os.stat(path).st_size <= offset:
            return b""
        with open(path, "rb", buffering=0) as file:
            file.seek(offset)
            return file.read(size)
    except FileNotFoundError:
        return None
    except OSError as exc:
        name = os.path.basename(path)
        raise Refused(f"cannot read {name} of the job: {os.strerror(exc.errno or 0)}", exc.errno) from exc


# ---- events and output of jobs

WATCH_EVENTS_MAX = 1024
"""Events in one watch response."""
OUTPUT_POLL_S = 0.02
"""Interval of reading followed files (seconds)."""

Send = Callable[[list[dict[str, Any]]], None]
"""Takes some more events of one job."""


class Waiter(NamedTuple):
    """Something that waits for the end of the job `asked`: or of its last attempt, if it is to `follow`."""

    asked: int
    follow: bool
    call: Callable[[JobResult], None]


@mypyc_attr(allow_interpreted_subclasses=True)
class OutputFollower:
    """One stream of what a job's tasks write; another dialect of it is another class."""

    def __init__(self, request: RpcRequest, jobid: int, follow: bool, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.request = request
        self.jobid = jobid
        self.follow = follow
        self.chunk_bytes = chunk_bytes

    def has_ended(self, active: Container[int]) -> bool:
        """Return whether nothing is written any more that is to be followed, given the jobs that have not ended."""
        return not self.follow or self.jobid not in active

    def begin_stream(self) -> None:
        """Begin to follow, once the stream is open."""

    def send(self, piece: msg.OutputResponse) -> int:
        """Send a piece; return the number of further pieces it counts as, if it took several responses."""
        self.request.respond(piece)
        return 0

    def caught_up(self) -> None:
        """Note that all output written so far was sent."""

    def end_stream(self) -> None:
        """End the stream: all output that will ever be written was sent."""
        self.request.finish()


class JobStreams:
    """Serves the streams of `job-manager`."""

    def __init__(self, effects: JobEffects, router: Router, store: Store) -> None:
        self._effects = effects
        self._manager = effects.manager
        self._router = router
        self._store = store
        self._turns = effects.turns
        self._watchers: dict[RpcRequest, tuple[frozenset[int] | None, frozenset[str] | None]] = {}
        self._logs: defaultdict[int, dict[RpcRequest, Send]] = defaultdict(dict)
        self._waits: defaultdict[int, dict[RpcRequest | None, Waiter]] = defaultdict(dict)
        """Waiters by the last attempt of the job for which they wait."""
        self._followers: dict[RpcRequest, tuple[OutputFollower, TaskOutput]] = {}
        self._polling = False
        self._wanted: set[str] | None = set()
        self._unpublished_events: list[tuple[int, float, str, dict[str, Any]]] = []
        router.serve(
            {
                "job-manager.watch": self._watch,
                "job-manager.eventlog": self._eventlog,
                "job-manager.changes": self._changes,
                "job-manager.output": self._output,
                "job-manager.wait": self._wait,
            }
        )
        router.on_lost(lambda peer: self._forget(peer))
        effects.publish.append(self._publish)
        effects.published.append(self._flush)

    # -- watch --------------------------------------------------------------------------------------------------

    def _watch(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.WatchRequest)
        request.open_stream(lambda: self._unwatch(request))
        ids = None if wanted.ids is None else frozenset(wanted.ids)
        names = None if wanted.names is None else frozenset(wanted.names)

        def begin() -> None:
            if request.is_open:
                self._watchers[request] = (ids, names)
                self._count_names()
                if wanted.history:
                    self._send_history(request, ids)

        if wanted.history:
            self._store.when_idle(begin, request.failed)  # or an event would be history and news
        else:
            begin()

    def _unwatch(self, request: RpcRequest) -> None:
        forget(self._watchers, request)
        self._count_names()

    def _count_names(self) -> None:
        """Compute the names of the events that watchers want: most clients wait for `clean` alone, and four rows a job
        have ten events.
        """
        self._wanted = set()
        for _, names in self._watchers.values():
            if names is None:
                self._wanted = None
                return
            self._wanted |= names

    def _send_history(self, request: RpcRequest, ids: frozenset[int] | None) -> None:
        """Send the events so far of the jobs that are in memory, job by job."""
        query = EVERY_JOB._replace(ids=None if ids is None else tuple(sorted(ids)))
        news = []
        for job in islice(chain.from_iterable(find(self._manager.jobs, query)), LIST_ENTRIES_MAX):
            news += [self._event(job.id, event) for event in stored_log(self._store, job.id) or ()]
        self._send(request, news)

    def _publish(self, stored: Sequence[JobEvents]) -> None:
        """Publish the events that one transaction has put on disk: most of them are not watched, so the loop is
        short.
        """
        wanted, logs, waits, news = self._wanted, self._logs, self._waits, self._unpublished_events
        for jobid, events in stored:
            for event in events:
                if wanted is None or event["name"] in wanted:
                    news.append(self._event(jobid, event))
            ended = events[-1]["name"] == "clean"
            if jobid in logs:
                if ended:
                    self._feed_all(jobid)  # a reader of both has the output before the end
                for send in tuple(logs[jobid].values()):
                    send(events)
            if ended and (jobid in logs or jobid in waits):
                self._inactive(jobid, read_next(events[-1]))

    def _event(self, jobid: int, event: dict[str, Any]) -> tuple[int, float, str, dict[str, Any]]:
        context = event.get("context") or {}
        if event["name"] == "clean":
            job = self._manager.jobs.find(jobid)
            ended_well = job is not None and job.success and not job.next_id
            context = ENDED_WELL if ended_well else clean_context(self._result(jobid))
        return (jobid, event["timestamp"], event["name"], context)

    def _flush(self) -> None:
        """Send each watcher the events of a transaction in as few responses as possible."""
        news, self._unpublished_events = self._unpublished_events, []
        if news:
            for request in list(self._watchers):
                self._send(request, news)

    def _send(self, request: RpcRequest, news: list[tuple[int, float, str, dict[str, Any]]]) -> None:
        ids, names = self._watchers[request]
        if ids is not None or names is not None:
            news = [one for one in news if (ids is None or one[0] in ids) and (names is None or one[2] in names)]
        for start in range(0, len(news), WATCH_EVENTS_MAX):
            request.respond(msg.WatchResponse(news[start : start + WATCH_EVENTS_MAX]))

    # -- one job's log ------------------------------------------------------------------------------------------

    def _eventlog(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.EventlogRequest)
        self.follow_log(request, wanted.id, wanted.follow, lambda events: request.respond(msg.EventlogResponse(events)))

    def _changes(self, request: RpcRequest) -> None:
        jobid = request.payload(msg.ChangesRequest).id
        changes = SizeChanges(lambda: stored_resources(self._store, jobid))

        def send(events: list[dict[str, Any]]) -> None:
            for one in changes.take(events):
                left, note = one.left.to_json(), one.note or None
                request.respond(msg.ChangesResponse(jobid, one.event, one.time_s, str(one.ranks), left, note))

        self.follow_log(request, jobid, True, send)

    def follow_log(self, request: RpcRequest, jobid: int, follow: bool, send: Send) -> None:
        """Open a stream of a job's events: first all that are on disk, and with `follow` on to the last.

        It ends then, with ENOENT if there is no such job.
        """
        request.open_stream(lambda: self.unsubscribe(jobid, request))

        def begin() -> None:
            if not request.is_open:
                return
            found = stored_log(self._store, jobid)
            if found is None:
                request.error(errno.ENOENT, f"job {format_f58(jobid)} is unknown")
                return
            send(found)
            if not follow or found[-1]["name"] == "clean":
                request.finish()
                return
            self._logs[jobid][request] = send

        self._store.when_idle(begin, request.failed)  # or an event would be on disk and news

    def subscribe(self, jobid: int, request: RpcRequest, send: Send) -> None:
        """Send the later events of an active job, once they are on disk, until its end or `unsubscribe`."""
        self._logs[jobid][request] = send

    def unsubscribe(self, jobid: int, request: RpcRequest) -> None:
        """Remove a request that `subscribe` added."""
        if jobid in self._logs:
            forget(self._logs[jobid], request)
            if not self._logs[jobid]:
                del self._logs[jobid]

    def _inactive(self, jobid: int, next_id: int) -> None:
        for request in self._logs.pop(jobid, ()):
            request.finish()
        for asker, waiter in self._waits.pop(jobid, {}).items():
            if next_id and waiter.follow:
                self._waits[next_id][asker] = waiter
            else:
                waiter.call(as_asked(waiter.asked, self._result(jobid)))

    def _result(self, jobid: int) -> JobResult:
        """Return the result of a job once that is on disk: a job that is no longer in memory is read from there."""
        return clean_result(self._manager, self._store, jobid)

    # -- wait ---------------------------------------------------------------------------------------------------

    def _wait(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.WaitRequest)

        def answer(ended: JobResult) -> None:
            request.respond(wait_response(ended))

        self.when_inactive(wanted.id, request, answer, follow=wanted.follow)

    def when_inactive(
        self, jobid: int, request: RpcRequest | None, call: Callable[[JobResult], None], *, follow: bool = True
    ) -> None:
        """Call once it is on disk how the job ended, or to `follow` it how its last attempt did; not if the request's
        peer is lost before. Raises Refused.
        """
        jobs = self._manager.jobs
        last = jobs.last(jobid) if follow else jobs.get(jobid)
        ended = result(last)
        if ended is None:
            self._waits[last.id][request] = Waiter(jobid, follow, call)
        else:
            found = as_asked(jobid, ended)
            self._effects.after_commit(lambda: call(found))

    def _forget(self, peer: Peer) -> None:
        """Remove a lost peer: its streams have ended by themselves, its waits for one response have not."""
        for table in (self._waits, self._logs):
            for jobid in list(table):
                asked = table[jobid]
                for request in [request for request in asked if request is not None and request.peer is peer]:
                    del asked[request]
                if not asked:
                    del table[jobid]

    # -- output -------------------------------------------------------------------------------------------------

    def _output(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.OutputRequest)
        self.follow_output(OutputFollower(request, wanted.id, wanted.follow))

    def follow_output(self, follower: OutputFollower) -> None:
        """Open a stream of the output that a job's tasks have written, and with `follow` of later output.

        Raises Refused (ENOENT).
        """
        self._manager.jobs.get(follower.jobid)
        self.follow_files(follower, lambda: None)

    def follow_files(self, follower: OutputFollower, lost: Callable[[], None]) -> None:
        """Open a stream of what is written into a spool directory; `lost` is called if the peer ends it before."""
        request, jobid = follower.request, follower.jobid

        def ended() -> None:
            forget(self._followers, request)
            lost()

        request.open_stream(ended)
        output = TaskOutput(spool_directory(self._effects.settings.spool, jobid), follower.chunk_bytes)
        self._followers[request] = follower, output
        follower.begin_stream()
        self._feed(request, Budget())
        self._poll_later(OUTPUT_POLL_S)

    def _poll_later(self, delay_s: float) -> None:
        if self._followers and not self._polling:
            self._polling = True
            self._turns.after(delay_s, self._poll)

    def _poll(self) -> None:
        """Send output to the followers until the budget is spent; those that were served are then last in order."""
        self._polling = False
        budget = Budget()
        for request in list(self._followers):
            if budget.is_spent:
                break
            self._followers[request] = self._followers.pop(request)
            self._feed(request, budget)
        self._poll_later(OUTPUT_POLL_S if budget.chunks > 0 else 0.0)

    def _feed_all(self, jobid: int) -> None:
        for request in [request for request, (follower, _) in self._followers.items() if follower.jobid == jobid]:
            self._feed(request, Budget())

    def _feed(self, request: RpcRequest, budget: Budget) -> None:
        follower, output = self._followers[request]
        ended = follower.has_ended(self._manager.jobs.active)
        if self._router.unsent_bytes(request.peer):
            return
        try:
            for piece in output.bite(budget, ended=ended):
                budget.chunks -= follower.send(piece)
            if output.is_complete:
                follower.end_stream()
            elif not budget.is_spent:
                follower.caught_up()
        except FluxschedError as error:  # a file cannot be read, or the job of a very slow reader is forgotten
            request.error(error.errnum, str(error))
        if not request.is_open:
            forget(self._followers, request)


# ---- input of jobs

ENDED = errno.ESRCH
"""The errno for input of a job that has ended: rarely a fault, since jobs end when they have read enough."""


class _Early(NamedTuple):
    """Input that came before the job has started."""

    request: RpcRequest
    data: bytes
    tasks: Idset | None
    eof: bool
    window: Window | None


class JobInputs:
    """Passes input on to the executor that runs the job."""

    def __init__(self, effects: JobEffects, streams: JobStreams, router: Router, commands: Container[int]) -> None:
        """`commands` are the numbers of the commands that run beside jobs."""
        self._effects = effects
        self._streams = streams
        self._commands = commands
        self._early: dict[int, list[_Early]] = {}
        router.serve({"job-manager.input": self._input})
        router.on_lost(self._lost)

    def _input(self, request: RpcRequest) -> None:
        wanted = request.payload(InputRequest)
        tasks = None if wanted.tasks is None else Idset.parse(wanted.tasks)
        self.send(request, wanted.id, wanted.data, tasks, eof=wanted.eof, window=wanted.window)

    def send(
        self, request: RpcRequest, jobid: int, data: bytes, tasks: Idset | None, *, eof: bool,
        window: Window | None = None,
    ) -> None:  # fmt: skip
        """Send the input of `request`, and answer it in time.

        Raises Refused: ENOENT for an unknown job, ESRCH for one that has ended, ENOSYS for one that is sent no input,
        EPIPE behind an end; LimitExceeded if too much waits, which ends a job that runs.
        """
        is_command = jobid in self._commands
        if not is_command:
            self._check(jobid)
        one = _Early(request, data, tasks, eof, window)
        place = self._effects.input_of(jobid)
        if place is None and is_command:
            raise Refused("the command does not run yet", errno.EAGAIN)
        if place is None:
            self._keep(jobid, one)
        else:
            self._pass(place, jobid, one)

    def opened(self, jobid: int) -> None:
        """Send the input received so far to the tasks of a job, which run now."""
        for one in self._early.pop(jobid, ()):
            try:
                place = self._effects.input_of(jobid)
                assert place is not None, "the tasks of the job run"
                self._pass(place, jobid, one)
            except FluxschedError as error:
                one.request.error(error.errnum, str(error))

    def _check(self, jobid: int) -> None:
        job = self._effects.manager.jobs.get(jobid)
        if job.state is INACTIVE:
            raise Refused(f"job {format_f58(jobid)} has ended: its input is no longer read", ENDED)
        assert job.jobspec is not None, "an active job has its jobspec"
        if job.jobspec.test_run_duration_s is not None:
            raise Refused("nothing runs for a job of the test executor: it reads no input", errno.ENOSYS)
        if job.jobspec.input is not None:
            raise Refused(f"the tasks of job {format_f58(jobid)} read {job.jobspec.input}", errno.ENOSYS)

    def _pass(self, place: InputPlace, jobid: int, one: _Early) -> None:
        def answered(error: FluxschedError | None) -> None:
            if error is None:
                one.request.respond()
                return
            if isinstance(error, LimitExceeded):
                self._effects.raise_jobs([jobid], str(error))
            one.request.error(error.errnum, str(error))

        try:
            place.send(one.data, one.tasks, eof=one.eof, answered=answered, window=one.window)
        except FluxschedError as error:
            answered(error)

    def _keep(self, jobid: int, one: _Early) -> None:
        held_bytes = sum(len(each.data) for each in self._early.get(jobid, ()))
        if held_bytes + len(one.data) > HELD_BYTES_MAX:
            limit = f"{HELD_BYTES_MAX >> 20} MiB of input wait for the job to start"
            raise LimitExceeded(f"more than {limit}: wait for answers, or for the job")
        self._early.setdefault(jobid, []).append(one)
        self._streams.when_inactive(jobid, one.request, lambda result: self._ended(jobid, one.request))

    def _ended(self, jobid: int, request: RpcRequest) -> None:
        self._early.pop(jobid, None)
        request.error(ENDED, f"job {format_f58(jobid)} has ended: its input is no longer read")

    def _lost(self, peer: Peer) -> None:
        for jobid, found in list(self._early.items()):
            left = [one for one in found if one.request.peer is not peer]
            if left:
                self._early[jobid] = left
            else:
                del self._early[jobid]


# ---- commands beside the tasks of jobs


class CommandFollower(OutputFollower):
    """The stream of one command."""

    status: int | None = None
    """Wait status of the command; None while it runs."""

    def __init__(self, request: RpcRequest, number: int, directory: str) -> None:
        """`directory` has what the command writes, and is removed when that is not needed any more."""
        super().__init__(request, number, follow=True)
        self._directory = directory

    def discard(self) -> None:
        """Remove what the command has written, if it has ended."""
        if self.status is not None:
            remove(self._directory)

    def has_ended(self, active: Container[int]) -> bool:
        return self.status is not None

    def send(self, piece: msg.OutputResponse) -> int:
        self.request.respond(msg.ExecResponse(stream=piece.stream, data=piece.data))
        return 0

    def end_stream(self) -> None:
        self.request.respond(msg.ExecResponse(status=self.status))
        self.request.finish()
        self.discard()


class JobCommands:
    """Serves `job-manager.exec`."""

    def __init__(
        self, effects: JobEffects, streams: JobStreams, router: Router, new_id: Callable[[float], int]
    ) -> None:
        self.running: set[int] = set()
        """The numbers of the commands that run."""
        self._effects = effects
        self._streams = streams
        self._new_id = new_id
        router.serve({"job-manager.exec": self._exec})

    def _exec(self, request: RpcRequest) -> None:
        wanted, executor = request.payload(msg.ExecRequest), self._effects.executors["local"]
        kill = executor.kill
        launch = self._effects.running_launch(wanted.id)
        if not isinstance(executor, CommandExecutor):
            raise Refused(NO_COMMANDS, errno.ENOSYS)
        if launch.jobspec.request.elastic:
            raise Refused(f"job {format_f58(wanted.id)} is elastic: its hosts may change", errno.EINVAL)
        number = self._new_id(self._effects.turns.wall_s)
        directory = str(spool_directory(self._effects.settings.spool, number))
        follower = CommandFollower(request, number, directory)
        command = HostCommand(
            wanted.id, wanted.host, lambda: request.respond(msg.ExecResponse(number=number)),
            partial(self._ended, follower),
        )  # fmt: skip

        def lost() -> None:
            follower.discard()
            kill(number, signal.SIGTERM)

        self._streams.follow_files(follower, lost)
        try:
            executor.run_command(number, launch, wanted.host, wanted.command, command)
        except FluxschedError as fault:
            request.error(fault.errnum, str(fault))
        else:
            self.running.add(number)

    def _ended(self, follower: CommandFollower, status: int, note: str) -> None:
        self.running.discard(follower.jobid)
        follower.status = status
        if note:
            follower.request.error(errno.EHOSTUNREACH, note)
        if not follower.request.is_open:
            follower.discard()
