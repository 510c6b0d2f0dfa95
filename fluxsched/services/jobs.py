"""The `job-manager` service as users see it: submit, raise, urgency, update, list, lookup, why, queues, running, wait.

Law: of `job-manager.wait-all` each job is reported once, after its end is on disk, and the stream ends with the last;
of a job that is submitted again after it was preempted the end of its last attempt counts. A stream waits for a table
of ids, so that a hundred thousand are dropped at once with their peer.

Submit filters at the door: each job that a user submits passes them before the job manager sees it.

    waiting -> asked, a batch at a time -> accepted, edited or refused

Jobs that come together in one request are told apart here, so that filters judge each of them.

Law: the order of submits is kept. One batch is under way; what arrives meanwhile is the next one. While the process of
the filters is not there each submit is refused with a text that says so, or passes, as the site has configured; it is
started again by a timer, after a delay that doubles. Without filters a submit costs one comparison.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from fluxsched.config.submit_filters import FilterAnswer, FilterFault, FilterProcess, SubmittedJob
from fluxsched.config.values import IngestSettings
from fluxsched.core.idset import Idset
from fluxsched.core.jobfields import WHEN_MAX
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import ARRAY_JOBS_MAX, Jobspec, JobspecTemplate
from fluxsched.core.quantities import doubled_s
from fluxsched.core.reasons import WaitKind, Why
from fluxsched.errors import FluxschedError, InvalidValue, LimitExceeded, Refused, RemoteProtocolError
from fluxsched.jobs.job import SENT, Job, priority_of
from fluxsched.jobs.manager import JobManager, replayed
from fluxsched.jobs.query import (
    EVERY_STATE,
    PIECE_JOBS,
    RUNNING_JOBS_MAX,
    JobQuery,
    Largest,
    Listing,
    RunningQuery,
    Tally,
    find,
    first_waiting,
    history,
    info,
    largest,
    list_jobs,
    parse_query,
    running_first,
    sorted_by,
    state_counts,
    tally_jobs,
    total_tally,
    why,
)
from fluxsched.jobs.states import CANCEL, PENDING, REQUEUE, VIRTUAL_STATES, State, read_next
from fluxsched.jobs.table import COMPLETED, JobResult, as_asked, listed_sizes, result
from fluxsched.messaging.memo import JobspecMemo
from fluxsched.messaging.peers import Peer, RpcRequest
from fluxsched.messaging.router import Answered, Router, forget, in_steps
from fluxsched.protocol import framing
from fluxsched.protocol.framing import Message
from fluxsched.protocol.messages import jobs as msg
from fluxsched.protocol.messages.instance import (
    ReasonEntry,
    ReasonsRequest,
    ReasonsResponse,
    RunningEntry,
    RunningRequest,
    SchedReasonsRequest,
)
from fluxsched.protocol.messages.jobs import ListRequest, SubmitArrayRequest, SubmitArrayResponse, WaitResponse
from fluxsched.services.job_effects import JobEffects, JobEvents
from fluxsched.services.module_processes import BACKOFF_MAX_S, BACKOFF_S
from fluxsched.services.scheduling import SchedulingService
from fluxsched.store.jobs import read_events, read_job
from fluxsched.store.store import Store, Writer
from fluxsched.system.log import logger
from fluxsched.system.loop import Turns, Work, error_answer, pieces

log = logger("ingest")

BATCH_MAX = 256
"""Jobs of one batch: those that are lost to a filter that ends its process."""

WAITING_MAX = 100_000
"""Submits that wait for the filters; some kilobytes each."""

Accept = Callable[[Jobspec], object]
"""Takes a job in, as the filters have left it. Raises FluxschedError."""


class Submitter(Protocol):
    """The request that a job came with, or one of several jobs that came together."""

    @property
    def userid(self) -> int:
        """Return the user that the job is to belong to."""

    @property
    def topic(self) -> str:
        """Return the topic of the request."""

    def failed(self, exc: Exception) -> None:
        """Answer that the job is not accepted."""


class _Submit(NamedTuple):
    request: Submitter
    jobspec: Jobspec
    urgency: int
    accept: Accept


class SubmitFilters:
    """The filters of an instance; `run` is the thread in which their process is waited for."""

    def __init__(
        self,
        settings: IngestSettings,
        turns: Turns,
        run: Writer,
        start: Callable[[], FilterProcess],
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self._settings = settings
        self._turns = turns
        self._worker = run
        self._start = start
        self._waiting_max = waiting_max
        self._waiting: deque[_Submit] = deque()
        self._process: FilterProcess | None = None
        self._absent: str | None = None
        """Why the process is not there, until it has been started again."""
        self._failures = 0
        self._is_busy = False
        self._is_closed = False

    def open(self) -> None:
        """Start the process, if there are filters: the first submit should not wait for its imports."""
        if self._settings.filters:
            self._ask([])

    def close(self) -> None:
        """End the process; what waits for it is not answered."""
        self._is_closed = True
        process = self._process
        if process is not None and self._is_busy:
            process.kill()  # its thread has the socket
        elif process is not None:
            process.close()

    def admit(self, request: Submitter, jobspec: Jobspec, urgency: int, accept: Accept) -> None:
        """Accept a job if the filters do, now or later. Raises what `accept` raises, and Refused."""
        if not self._settings.filters:
            accept(jobspec)
        elif self._absent is not None:
            self._without(jobspec, accept, self._absent)
        elif len(self._waiting) >= self._waiting_max:
            text = f"{self._waiting_max} submits wait for the submit filters, the limit: submit when some are through"
            raise Refused(text, errno.EAGAIN)
        else:
            self._waiting.append(_Submit(request, jobspec, urgency, accept))
            self._next()

    def _without(self, jobspec: Jobspec, accept: Accept, why: str) -> None:
        if not self._settings.passes_without:
            text = "the submit filters of this instance are not running, so it accepts no jobs now"
            raise Refused(f"{text}: {why}; submit again later, or tell the administrator", errno.EAGAIN)
        accept(jobspec)

    def _next(self) -> None:
        if self._waiting and not self._is_busy:
            count = min(len(self._waiting), BATCH_MAX)
            self._ask([self._waiting.popleft() for _ in range(count)])

    def _ask(self, batch: list[_Submit]) -> None:
        jobs = [SubmittedJob(one.jobspec.raw, one.request.userid, one.urgency) for one in batch]
        found: list[FilterAnswer] = []
        faults: list[str] = []

        def ask() -> None:
            try:
                if self._process is None:
                    self._process = self._start()
                if jobs:
                    found.extend(self._process.ask(jobs))
            except FilterFault as fault:
                self._process = None
                faults.append(str(fault))

        def asked() -> None:
            self._is_busy = False
            if self._is_closed:
                return
            if faults:
                self._failed(faults[0], batch)
            else:
                self._absent, self._failures = None, 0
                for one, verdict in zip(batch, found, strict=True):
                    self._finish(one, partial(_decide, one, verdict))
            self._next()

        self._is_busy = True
        self._worker.run(ask, asked)

    def _failed(self, why: str, batch: list[_Submit]) -> None:
        """Treat all that wait as submits without filters, and start the process again later."""
        self._absent = why
        delay_s = doubled_s(BACKOFF_S, self._failures, BACKOFF_MAX_S)
        self._failures += 1
        what = "pass unfiltered" if self._settings.passes_without else "are refused"
        log.error("the submit filters ended: %s; started again in %g s, until then submits %s", why, delay_s, what)
        self._turns.after(delay_s, self.open)
        waiting = [*batch, *self._waiting]
        self._waiting.clear()
        for one in waiting:
            self._finish(one, partial(self._without, one.jobspec, one.accept, why))

    def _finish(self, one: _Submit, call: Callable[[], None]) -> None:
        """Call what answers a submit; its error is the submitter's."""

        def finish() -> None:
            try:
                call()
            except FluxschedError as fault:
                one.request.failed(fault)

        self._turns.run_isolated(finish, one.request.topic, one.request.failed)


def _decide(one: _Submit, verdict: FilterAnswer) -> None:
    """Act on the verdict on a job. Raises Refused with the filter's reason, or what the job manager has against it."""
    if verdict.errnum:
        raise Refused(verdict.refusal, verdict.errnum)
    if verdict.jobspec is None:
        one.accept(one.jobspec)
        return
    try:
        edited = Jobspec.parse(verdict.jobspec)
    except FluxschedError as fault:
        text = f"a submit filter has made this jobspec invalid: {fault}; tell the administrator"
        raise Refused(text, errno.EINVAL) from fault
    one.accept(edited)


# ---- jobs that come together


class ArrayJob(NamedTuple):
    """One of the jobs of a request; `failed` answers for it alone."""

    userid: int
    topic: str
    failed: Callable[[Exception], None]


class ArraySubmit:
    """The jobs of one request on their way to the job manager, in order. Law: the first job of an array goes before all
    others, which have its id; if it is refused, they are.
    """

    def __init__(
        self,
        request: RpcRequest,
        wanted: SubmitArrayRequest,
        filters: SubmitFilters,
        enter: Callable[[Jobspec], int],
        answer: Callable[[SubmitArrayResponse], None],
    ) -> None:
        """`enter` accepts a job and returns its id; `answer` is called when each is accepted or refused.

        Raises InvalidValue, LimitExceeded.
        """
        count = len(wanted.texts)
        if not 0 < count <= ARRAY_JOBS_MAX:
            what = f"{count} jobs in one request, which has 1 to {ARRAY_JOBS_MAX}"
            raise LimitExceeded(f"{what}: submit the others with `array` in a further one", errno.EINVAL)
        self._request = request
        self._template = JobspecTemplate(wanted.jobspec, wanted.paths)
        self._texts = wanted.texts
        self._urgency = wanted.urgency
        self._array = wanted.array
        self._filters = filters
        self._enter = enter
        self._answer = answer
        self._ids = [0] * count
        self._refused: list[tuple[int, int, str]] = []
        self._left = count

    def begin(self) -> None:
        """Submit the first of the jobs, which the others follow."""
        self._submit(0)

    def _submit(self, at: int) -> None:
        job = ArrayJob(self._request.userid, self._request.topic, partial(self._failed, at))
        try:
            jobspec = self._template.job(self._texts[at], self._array)
            self._filters.admit(job, jobspec, self._urgency, partial(self._accept, at))
        except FluxschedError as fault:
            self._failed(at, fault)

    def _accept(self, at: int, jobspec: Jobspec) -> None:
        jobid = self._enter(jobspec)
        self._ids[at] = jobid
        self._array = self._array or jobid
        self._settled(at)

    def _failed(self, at: int, exc: Exception) -> None:
        errnum, text = error_answer(self._request.topic, exc)
        if not self._array:
            self._request.error(errnum, text)
            return
        self._refused.append((at, errnum, text))
        self._settled(at)

    def _settled(self, at: int) -> None:
        self._left -= 1
        if not self._left:
            self._answer(SubmitArrayResponse(self._ids, self._refused))
        elif at == 0:
            for other in range(1, len(self._ids)):
                self._submit(other)


# ---- when jobs would start

WHY_S = 2.0
"""Maximum time for a scheduler to explain why a job waits (seconds); after it the job manager's knowledge must do."""

QUESTIONS_MAX = 64
"""Questions that wait for one scheduler: more than it can answer within WHY_S."""


class InTurn:
    """Asks each scheduler one question at a time: over an answer it takes its time, and starts nothing meanwhile."""

    def __init__(self, router: Router, topic: str) -> None:
        self._router = router
        self._topic = topic
        self._waiting: dict[Peer, deque[tuple[RpcRequest, bytes, Answered]]] = {}

    def ask(self, peer: Peer, request: RpcRequest, payload: bytes, answered: Answered) -> bool:
        """Ask for a request, now or later, unless that is answered by then; False if too many wait."""
        waiting = self._waiting.get(peer)
        if waiting is None:
            self._waiting[peer] = deque()
            self._call(peer, payload, answered)
        elif len(waiting) >= QUESTIONS_MAX:
            return False
        else:
            waiting.append((request, payload, answered))
        return True

    def _call(self, peer: Peer, payload: bytes, answered: Answered) -> None:
        def ended(message: Message | None) -> None:
            answered(message)  # if it raises, the peer is lost, and this is called once more
            self._next(peer)

        self._router.call(peer, self._topic, payload, ended)

    def _next(self, peer: Peer) -> None:
        waiting = self._waiting[peer]
        while waiting:
            request, payload, answered = waiting.popleft()
            if request.is_open:
                self._call(peer, payload, answered)
                return
        del self._waiting[peer]


class StartQuestion:
    """When jobs would start that are not submitted: they pass the filters, and each scheduler is asked about its own.

    Law: the request is answered once, at the latest after WHY_S, with what is known by then.
    """

    def __init__(
        self,
        request: RpcRequest,
        wanted: msg.WhenRequest,
        manager: JobManager,
        scheduling: SchedulingService,
        turns: Turns,
        in_turn: InTurn,
    ) -> None:
        self._request = request
        self._wanted = wanted
        self._manager = manager
        self._scheduling = scheduling
        self._turns = turns
        self._in_turn = in_turn
        self._found: dict[int, msg.WhenEntry] = {}
        self._limits_s: dict[int, float] = {}
        self._asked: dict[Peer, list[tuple[int, Jobspec]]] = {}
        self._unfiltered = len(wanted.jobspecs)
        self._late = turns.after(WHY_S, self._answer)

    def begin(self, filters: SubmitFilters) -> None:
        """Have each job pass the filters."""
        for at, jobspec in enumerate(self._wanted.jobspecs):
            job = ArrayJob(self._request.userid, self._request.topic, partial(self._refuse, at))
            try:
                filters.admit(job, Jobspec.parse(jobspec), self._wanted.urgency, partial(self._accept, at))
            except FluxschedError as fault:
                self._refuse(at, fault)

    def _accept(self, at: int, jobspec: Jobspec) -> None:
        queue, admitted, dependencies = self._manager.requests.admitted(
            jobspec, self._request.userid, self._wanted.urgency, self._turns.wall_s
        )
        self._limits_s[at] = admitted.duration_s
        peer, (_, reason) = self._scheduling.scheduler_of(queue.group), self._manager.queue_control.held_back(queue)
        if dependencies:
            self._found[at] = msg.WhenEntry("not known: it waits for its dependencies first")
        elif not queue.started or peer is None:
            stopped = "" if queue.started else f"{queue.title} is stopped: "
            self._found[at] = msg.WhenEntry(f"not known: {stopped}{reason}")
        else:
            self._asked.setdefault(peer, []).append((at, admitted))
        self._filtered()

    def _refuse(self, at: int, fault: Exception) -> None:
        self._found[at] = msg.WhenEntry(error_answer(self._request.topic, fault)[1], refused=True)
        self._filtered()

    def _filtered(self) -> None:
        self._unfiltered -= 1
        if self._unfiltered or not self._request.is_open:
            return
        for peer, jobs in self._asked.items():
            places, priority = [at for at, _ in jobs], priority_of(self._wanted.urgency)
            question = msg.SchedWhenRequest([jobspec.bare for _, jobspec in jobs], self._request.userid, priority)
            if not self._in_turn.ask(peer, self._request, framing.pack(question), partial(self._answered, places)):
                self._set(places, f"not known: {QUESTIONS_MAX} others ask its scheduler: ask again in a moment")
        self._answer_if_all()

    def _answered(self, places: Sequence[int], message: Message | None) -> None:
        if message is not None and not message.errnum:
            said = framing.unpack(message.payload, msg.WhenResponse).estimates
            if len(said) != len(places):
                raise RemoteProtocolError(f"{len(said)} estimates for {len(places)} jobs")
            self._found.update(zip(places, said, strict=True))
        elif message is not None:
            self._set(places, f"not known: {(message.payload or b'').decode(errors='replace')}")
        self._answer_if_all()

    def _set(self, places: Sequence[int], when: str) -> None:
        self._found.update(dict.fromkeys(places, msg.WhenEntry(when)))

    def _answer_if_all(self) -> None:
        if len(self._found) == len(self._wanted.jobspecs):
            self._answer()

    def _answer(self) -> None:
        self._late.cancel()
        silent = msg.WhenEntry(f"not known: its scheduler did not answer within {WHY_S:g} s")
        answers = [self._found.get(at, silent) for at in range(len(self._wanted.jobspecs))]
        limits_s = self._limits_s
        answers = [msgspec.structs.replace(each, limit=limits_s.get(at) or None) for at, each in enumerate(answers)]
        self._request.respond(msg.WhenResponse(answers))


# ---- jobs

SUBMIT = framing.reader(framing.with_raw(msg.SubmitRequest, "jobspec"))


class JobService:
    """Serves `job-manager.*` except what schedulers and streams ask."""

    def __init__(
        self,
        effects: JobEffects,
        scheduling: SchedulingService,
        router: Router,
        store: Store,
        new_id: Callable[[float], int],
        targets: Callable[[str], Idset],
        policy_of: Callable[[str | None, str], str | None],
        filters: SubmitFilters,
        check: Callable[[Jobspec, int], None],
    ) -> None:
        """`targets` returns the targets that a text names; `policy_of` the policy that a scheduler has for a queue and
        group.
        """
        self._effects = effects
        self._manager = effects.manager
        self._scheduling = scheduling
        self._router = router
        self._store = store
        self._turns = effects.turns
        self._new_id = new_id
        self._targets = targets
        self._specs = JobspecMemo()
        self._policy_of = policy_of
        self._filters = filters
        self._check = check
        """Refuses jobs that ask for what this instance cannot do."""
        self._in_turn = InTurn(router, "sched.when")
        self._is_accepting = True
        router.serve(self._handlers())

    def _handlers(self) -> dict[str, Callable[[RpcRequest], None]]:
        return {
            "job-manager.submit": self._submit,
            "job-manager.submit-array": self._submit_array,
            "job-manager.raise": self._raise,
            "job-manager.cancel": self._cancel,
            "job-manager.kill": self._kill,
            "job-manager.memo": self._memo,
            "job-manager.released": self._released,
            "job-manager.urgency": self._urgency,
            "job-manager.update": self._update,
            "job-manager.list": self._list,
            "job-manager.select": self._select,
            "job-manager.lookup": self._lookup,
            "job-manager.why": self._why,
            "job-manager.usage": self._usage,
            "job-manager.when": self._when,
            "job-manager.reasons": self._reasons,
            "job-manager.queue-list": self._queue_list,
            "job-manager.queue-status": self._queue_status,
            "job-manager.queue-enable": self._queue_enable,
            "job-manager.queue-start": self._queue_start,
        }

    def _submit(self, request: RpcRequest) -> None:
        wanted = SUBMIT(request.message.payload)
        jobspec, urgency, flags = self._specs.read(wanted.jobspec), wanted.urgency, wanted.flags
        self._filters.admit(request, jobspec, urgency, partial(self.accept, request, urgency=urgency, flags=flags))

    def submit(
        self, request: RpcRequest, jobspec: Jobspec, urgency: int, flags: int, accepted: Callable[[int], None]
    ) -> None:
        """Accept the job of the request's user if the submit filters do, and answer with its id once it is stored;
        `accepted` is called with it at once.
        """

        def accept(jobspec: Jobspec) -> None:
            accepted(self.accept(request, jobspec, urgency, flags))

        self._filters.admit(request, jobspec, urgency, accept)

    def accept(
        self,
        request: RpcRequest,
        jobspec: Jobspec,
        urgency: int,
        flags: int,
        response: Callable[[int], object] = msg.SubmitResponse,
    ) -> int:
        """Accept the job of the request's user unfiltered, and answer with its id once it is stored."""
        jobid = self._enter(request, jobspec, urgency, flags)
        self.answer(request, response(jobid))
        return jobid

    def _submit_array(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.SubmitArrayRequest)
        request.peer.rates.count_requests(len(wanted.texts) - 1.0, self._turns.clock.monotonic_s)

        def enter(jobspec: Jobspec) -> int:
            return self._enter(request, jobspec, wanted.urgency, wanted.flags)

        ArraySubmit(request, wanted, self._filters, enter, partial(self.answer, request)).begin()

    def _enter(self, request: RpcRequest, jobspec: Jobspec, urgency: int, flags: int) -> int:
        if not self._is_accepting:
            raise Refused("the instance is shutting down and accepts no jobs", errno.ESHUTDOWN)
        self._router.permissions.check_urgency(request, urgency)
        now_s, userid = self._turns.wall_s, request.userid
        self._check(jobspec, userid)
        jobid = self._new_id(now_s)
        submit = self._manager.requests.submit
        self._effects.perform(submit(jobid, jobspec, userid=userid, urgency=urgency, flags=flags, now_s=now_s))
        return jobid

    def refuse_jobs(self) -> None:
        """Accept no more jobs: the instance ends."""
        self._is_accepting = False

    def _last(self, jobid: int) -> int:
        """Return the job's last attempt, to which its user's requests apply. Raises Refused (ENOENT)."""
        return self._manager.jobs.last(jobid).id

    def _raise(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.RaiseRequest)
        # others than users mean the very job: it may have been submitted again while their message was under way
        jobid = self._last(wanted.id) if wanted.type in (CANCEL, REQUEUE) else wanted.id
        ranks = None if wanted.ranks is None else Idset.parse(wanted.ranks)
        self._raise_exception(request, jobid, wanted.type, wanted.severity, wanted.note, ranks)
        self.answer(request)

    def _cancel(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.JobCancelRequest)
        last = self._last(wanted.id)
        self._raise_exception(request, last, CANCEL, 0, wanted.note)
        self.answer(request, msg.JobCancelResponse(last) if last != wanted.id else None)

    def _raise_exception(
        self, request: RpcRequest, jobid: int, kind: str, severity: int, note: str, ranks: Idset | None = None
    ) -> None:
        now_s, user = self._turns.wall_s, request.userid
        effects = self._manager.requests.raise_exception(jobid, kind, severity, note, user, now_s, ranks=ranks)
        self._effects.perform(effects)

    def _kill(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.KillRequest)
        self._effects.perform(self._manager.requests.kill(self._last(wanted.id), wanted.signum, self._turns.wall_s))
        self._store.when_idle(request.respond)  # nothing of it is stored, and on a full disk it makes room

    def _memo(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.MemoRequest)
        self._effects.perform(
            self._manager.requests.memo(wanted.id, wanted.memo, self._turns.wall_s, volatile=wanted.volatile)
        )
        self.answer(request)

    def _released(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.ReleasedRequest)
        self._effects.executors["local"].give_back(wanted.id, Idset.parse(wanted.ranks))
        self.answer(request)

    def _urgency(self, request: RpcRequest) -> None:
        self.answer(request, msg.UrgencyResponse(self.set_urgency(request)))

    def set_urgency(self, request: RpcRequest) -> int:
        """Perform an UrgencyRequest; return the previous urgency of the job."""
        wanted = request.payload(msg.UrgencyRequest)
        self._router.permissions.check_urgency(request, wanted.urgency)
        job = self._manager.jobs.last(wanted.id)
        old = job.urgency
        self._effects.perform(
            self._manager.requests.set_urgency(job.id, wanted.urgency, request.userid, self._turns.wall_s)
        )
        return old

    def _update(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.UpdateRequest)
        jobid = self._last(wanted.id)
        may_prolong = self._router.permissions.may_prolong(request)
        effects = self._manager.requests.update(jobid, wanted.updates, self._turns.wall_s, may_prolong=may_prolong)
        self._effects.updates.setdefault(jobid, []).append(request)
        self._effects.perform(effects)

    def _list(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.ListRequest)
        query = list_query(wanted, self._router.permissions.sees_only(request), self._targets)
        if wanted.order in ("newest", "active") and wanted.descending:
            raise InvalidValue(f"descending: the order {wanted.order} has one direction, only attributes have two")
        if wanted.order == "newest":
            if wanted.start:
                raise InvalidValue("start: a list from a job on has an `order` of its jobs: active, or an attribute")
            work = self._send_list(request, query)
        else:
            work = self._send_page(request, self._in_order(wanted, query), wanted.start)
        self._turns.spread(work, request.failed)

    def _in_order(self, wanted: msg.ListRequest, query: JobQuery) -> Iterator[Listing | None]:
        """Look for the first jobs up to the last that is wanted."""
        jobs, shown = self._manager.jobs, query.max_entries
        if wanted.order == "active":
            return running_first(jobs, query._replace(max_entries=wanted.start + shown))
        query = query._replace(max_entries=wanted.start + min(shown, msg.LIST_SORTED_MAX))
        return sorted_by(jobs, query, wanted.order, self._turns.wall_s, descending=wanted.descending)

    def _send_page(self, request: RpcRequest, looking: Iterator[Listing | None], start: int) -> Work:
        """Answer with the jobs that are found from `start` on, packed in pieces, and the count of all."""
        while (listing := next(looking)) is None:
            yield
        found: list[msgspec.Raw] = []
        for first in range(start, len(listing.jobs), PIECE_JOBS):
            some = [info(job) for job in listing.jobs[first : first + PIECE_JOBS]]
            self._effects.leases.extend_listed(some)
            found += [msgspec.Raw(framing.pack(one)) for one in some]
            yield
        request.respond({"jobs": found, "count": listing.total})

    def _send_list(self, request: RpcRequest, query: JobQuery) -> Work:
        """Answer with the jobs that are meant, found and packed in pieces."""
        found: list[msgspec.Raw] = []
        for some in list_jobs(self._manager.jobs, query):
            self._effects.leases.extend_listed(some)
            found += [msgspec.Raw(framing.pack(one)) for one in some]
            yield
        request.respond({"jobs": found})

    def _select(self, request: RpcRequest) -> None:
        only = ("userid", self._router.permissions.sees_only(request))
        query = parse_query(request.payload(msg.SelectRequest).constraint, only, targets=self._targets)
        request.open_stream(lambda: None)
        self._turns.spread(self._send_ids(request, query), request.failed)

    def _send_ids(self, request: RpcRequest, query: JobQuery) -> Work:
        """Send the ids, the latest first, so that cancelling in this order frees no resources for jobs that are later
        in it.
        """
        for some in find(self._manager.jobs, query):
            if not request.is_open:
                return
            if some:
                request.respond(msg.SelectResponse([job.id for job in some]))
            yield
        request.finish()

    def stats(self, request: RpcRequest) -> None:
        """Answer with how many jobs are in which state."""

        def counted(queues: dict[str | None, Tally]) -> None:
            request.respond({"jobs": state_counts(total_tally(queues))})

        in_steps(self._turns, request, tally_jobs(self._manager.jobs, self._manager.queues), counted)

    def _lookup(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.LookupRequest)
        unknown = [key for key in wanted.keys if key not in ("jobspec", "R", "eventlog")]
        if unknown:
            raise InvalidValue(f"unknown keys {', '.join(unknown)}; a job has jobspec, R and eventlog")

        def answer() -> None:
            found = stored_job(self._store, wanted.id)
            if found is None:
                request.error(errno.ENOENT, f"job {format_f58(wanted.id)} is unknown")
                return
            if "R" in wanted.keys:
                found["R"] = current_resources(wanted.id, found)
            request.respond(msg.LookupResponse(id=wanted.id, **{key: found[key] for key in wanted.keys}))

        self._store.when_idle(answer, request.failed)

    def _usage(self, request: RpcRequest) -> None:
        """Answer with what a running job has used so far, once its hosts have measured it."""
        jobid = self._manager.jobs.get(request.payload(msg.UsageRequest).id).id
        self._effects.measure(jobid, lambda usage: request.respond(msg.UsageResponse(usage)))

    def _why(self, request: RpcRequest) -> None:
        jobid = request.payload(msg.WhyRequest).id
        job = self._manager.jobs.get(jobid)
        explain = self._effects.leases.explain
        known = explain(job, why(self._manager.links, job))
        answer = msg.WhyResponse(
            id=jobid,
            state=job.state.name,
            reason=known.reason,
            queue=job.queue.name,
            earliest=known.earliest_s,
            annotations=job.annotations or {},
            rule=known.rule or None,
            when=known.when or None,
            kind=known.kind.value if job.state & PENDING else None,
            attempt=history(self._manager.jobs, job),
        )
        peer = self._scheduling.scheduler_of(job.queue.group)
        if job.request != SENT or peer is None:
            request.respond(answer)
            return

        def answered(message: Message | None) -> None:
            """Add the scheduler's reason, if it has sent one in time."""
            if late.call is None:
                return
            if message is None or message.errnum:
                request.respond(answer)
            else:
                found = framing.unpack(message.payload, msg.SchedWhyResponse)
                reason = explain(job, Why(found.reason)).reason
                said = {"reason": reason, "earliest": found.earliest, "rule": found.rule, "when": found.when,
                        "kind": found.kind}  # fmt: skip
                request.respond(msgspec.structs.replace(answer, **said))
            late.cancel()

        silent = f"{answer.reason} (its scheduler did not answer within {WHY_S:g} s: see fluxsched module list)"
        late = self._turns.after(WHY_S, lambda: request.respond(msgspec.structs.replace(answer, reason=silent)))
        self._router.call(peer, "sched.why", framing.pack(msg.SchedWhyRequest(id=jobid)), answered)

    def _reasons(self, request: RpcRequest) -> None:
        """Respond with the reasons known to the job manager, and those that each scheduler sends for its jobs in
        time.
        """
        asked: dict[Peer, list[int]] = {}
        found, kinds = list[ReasonEntry](), list[str]()
        for job in self._manager.jobs.known(request.payload(ReasonsRequest).ids):
            peer = self._scheduling.scheduler_of(job.queue.group)
            if job.request == SENT and peer is not None:
                asked.setdefault(peer, []).append(job.id)
            elif job.state & PENDING:
                known = self._effects.leases.explain(job, why(self._manager.links, job))
                found.append((job.id, known.reason, known.earliest_s, False))
                kinds.append(known.kind.value)
        waiting = len(asked)

        def answered(message: Message | None) -> None:
            nonlocal waiting
            waiting -= 1
            if message is not None and not message.errnum:
                said = framing.unpack(message.payload, ReasonsResponse)
                found.extend([(one[0], self._explained(one[0], one[1]), one[2], one[3]) for one in said.jobs])
                is_older = len(said.kinds) != len(said.jobs)
                kinds.extend([WaitKind.OTHER.value] * len(said.jobs) if is_older else said.kinds)
            if not waiting and late.call is not None:
                late.cancel()
                request.respond(ReasonsResponse(found, tuple(kinds)))

        late = self._turns.after(WHY_S if asked else 0.0, lambda: request.respond(ReasonsResponse(found, tuple(kinds))))
        for peer, ids in asked.items():
            self._router.call(peer, "sched.reasons", framing.pack(SchedReasonsRequest(ids)), answered)

    def _when(self, request: RpcRequest) -> None:
        """Respond with when jobs would start, each as the submit filters leave it, and as its scheduler plans it."""
        wanted = request.payload(msg.WhenRequest)
        self._router.permissions.check_urgency(request, wanted.urgency)
        if not wanted.jobspecs:
            raise InvalidValue(f"no jobspecs: ask about at least one job, and {WHEN_MAX} at most")
        request.peer.rates.count_requests(len(wanted.jobspecs) - 1.0, self._turns.clock.monotonic_s)
        StartQuestion(request, wanted, self._manager, self._scheduling, self._turns, self._in_turn).begin(self._filters)

    def _explained(self, jobid: int, reason: str) -> str:
        job = self._manager.jobs.active.get(jobid)
        return reason if job is None else self._effects.leases.explain(job, Why(reason)).reason

    # -- queues -------------------------------------------------------------------------------------------------

    def _queue_list(self, request: RpcRequest) -> None:
        request.respond(msg.QueueListResponse(queues=self._manager.queues.names()))

    def _queue_status(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.QueueStatusRequest)
        status = self.queue_status(wanted.name)
        if wanted.waiting:
            userid = self._router.permissions.sees_only(request)
            queue = self._manager.queues.select(wanted.name, wanted.name is None, "show")[0]
            waiting = first_waiting(self._manager.jobs, queue, wanted.waiting, userid)
            status = msgspec.structs.replace(status, waiting=waiting)
        request.respond(status)

    def queue_status(self, name: str | None) -> msg.QueueStatus:
        """Return the status of one queue. Raises Refused (ENOENT)."""
        queue = self._manager.queues.select(name, name is None, "show")[0]
        blocked, start_reason = self._manager.queue_control.held_back(queue)
        config = queue.config
        return msg.QueueStatus(
            name=queue.name,
            enable=queue.enabled,
            enable_reason=queue.enable_reason or None,
            start=queue.started and blocked is None,
            start_reason=start_reason or None,
            blocked=blocked,
            group=config.group,
            groups=list(config.groups) if config.others else None,
            policy=self._policy_of(queue.name, config.group),
            constraints=config.requires.to_json() if config.requires is not None else None,
            duration_default=config.default_duration_s or None,
            duration_max=config.duration_limit_s or None,
            nnodes_min=config.nodes_min,
            nnodes_max=config.nodes_max,
            ncores_max=config.cores_max,
            ngpus_max=config.gpus_max,
        )

    def _queue_enable(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.QueueEnableRequest)
        self._effects.perform(
            self._manager.queue_control.enable(wanted.name, wanted.enable, wanted.reason, all_queues=wanted.all)
        )
        self.answer(request)

    def _queue_start(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.QueueStartRequest)
        effects = self._manager.queue_control.start(
            wanted.name, wanted.start, wanted.reason, all_queues=wanted.all, now_s=self._turns.wall_s
        )
        self._effects.perform(effects)
        self.answer(request)

    def answer(self, request: RpcRequest, payload: object = None) -> None:
        """Respond once the decisions so far are on disk."""
        self._effects.after_commit(partial(request.respond, payload))


# ---- records of ended jobs

STATES: dict[str, int] = {**State.__members__, **VIRTUAL_STATES, "ALL": EVERY_STATE}
"""State names, RFC 21's virtual ones among them, as `job-manager.list` accepts them."""
LIST_ENTRIES_MAX = 100_000
"""Jobs in one list answer; more are asked for in pieces by `since`."""


def list_query(
    wanted: ListRequest, only_userid: int | None = None, targets: Callable[[str], Idset] | None = None
) -> JobQuery:
    """Return the query of a list request, restricted to one user's jobs if the sender may see no others; see
    `parse_query`.
    """
    states = 0
    for name in wanted.states or ("ALL",):
        if name.upper() not in STATES:
            raise InvalidValue(f"job state {name!r} is unknown; known: {', '.join(STATES)}")
        states |= STATES[name.upper()]
    terms = (("queue", wanted.queue), ("name", wanted.name), ("userid", wanted.user), ("userid", only_userid))
    query = parse_query(wanted.constraint, *terms, targets=targets)
    return query._replace(
        ids=None if wanted.ids is None else tuple(wanted.ids),
        states=states & query.states,
        max_entries=min(wanted.max_entries or LIST_ENTRIES_MAX, LIST_ENTRIES_MAX),
        since_s=wanted.since or 0.0,
    )


def wait_response(result: JobResult) -> WaitResponse:
    """Return the response of `job-manager.wait`."""
    return WaitResponse(
        id=result.jobid,
        success=result.success,
        status=_wait_status(result),
        errstr=result.errstr,
        exception_type=result.exception_type,
        exception_note=result.exception_note,
        last=result.last_id or None,
        requeued_as=result.next_id or None,
    )


def clean_context(result: JobResult) -> dict[str, Any]:
    """Return the result of a job as the context of the `clean` event for watchers."""
    found = {
        "status": _wait_status(result),
        "success": result.success,
        "result": result.result,
        "errstr": result.errstr,
    }
    return found | {"requeued_as": result.next_id} if result.next_id else found


def _wait_status(result: JobResult) -> int:
    """Return the wait status of a job; for a job that never ran that of `exit 1`."""
    return result.status if result.status >= 0 else 1 << 8


ENDED_WELL: Final[Mapping[str, Any]] = clean_context(JobResult(0, True, 0, COMPLETED, "", None, None, 0.0))
"""Context of the `clean` event, for watchers, of jobs that ended well: of most, which need no result of their own."""


def stored_job(store: Store, jobid: int) -> dict[str, Any] | None:
    """Return a job's log, jobspec and R as on disk; None if the store does not have it."""
    return read_job(store.read, jobid)


def stored_log(store: Store, jobid: int) -> list[dict[str, Any]] | None:
    """Return the eventlog of a job as stored; None if it is not stored."""
    return read_events(store.read, jobid)


def stored_resources(store: Store, jobid: int) -> dict[str, Any] | None:
    """Return the R that the job was started with; None if it was not, or is not there."""
    found = read_job(store.read, jobid)
    return None if found is None else found["R"]


def current_resources(jobid: int, record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the R of a stored job after all its changes; None if it has none."""
    return replayed(jobid, record["eventlog"], record["R"]).R


def clean_result(manager: JobManager, store: Store, jobid: int) -> JobResult:
    """Return the result of a job whose `clean` event is on disk, though it may no longer be in memory."""
    job = manager.jobs.find(jobid)
    found = result(job) if job is not None else stored_result(store, jobid)
    assert found is not None, "a clean job has a result"
    return found


def stored_result(store: Store, jobid: int) -> JobResult | None:
    """Return the result of a job by its log on disk; None if it has not ended, or is not stored."""
    job = read_ended_job(store, jobid)
    return None if job is None else result(job)


def read_ended_job(store: Store, jobid: int) -> Job | None:
    """Return a job that has ended, by its log on disk alone; None if it is not there."""
    found = stored_log(store, jobid)
    return None if found is None else replayed(jobid, found, None)


# ---- running jobs


class RunningService:
    """Serves `job-manager.running`; `targets` reads an idset or a hostlist."""

    def __init__(self, effects: JobEffects, router: Router, targets: Callable[[str], Idset]) -> None:
        self._manager = effects.manager
        self._router = router
        self._turns = effects.turns
        self._targets = targets
        router.serve({"job-manager.running": self._running})

    def _running(self, request: RpcRequest) -> None:
        wanted = request.payload(RunningRequest)
        query = RunningQuery(
            None if wanted.targets is None else self._targets(wanted.targets),
            self._router.permissions.sees_only(request),
            min(wanted.max_entries or RUNNING_JOBS_MAX, RUNNING_JOBS_MAX),
        )

        def found(jobs: Largest) -> None:
            self._turns.spread(_answer(request, jobs), request.failed)

        in_steps(self._turns, request, largest(self._manager.jobs, self._manager.grants.jobids(), query), found)


def _answer(request: RpcRequest, found: Largest) -> Work:
    """Word the jobs in pieces; one that has ended since is left out."""
    jobs = [job for job in found.jobs if job.held]
    worded: list[msgspec.Raw] = []
    for start in range(0, len(jobs), PIECE_JOBS):
        worded += [msgspec.Raw(framing.pack(_entry(job))) for job in jobs[start : start + PIECE_JOBS]]
        yield
    request.respond({"jobs": worded, "left_out": found.left_out})


def _entry(job: Job) -> RunningEntry:
    queue, sizes = job.queue.name or "", listed_sizes(job)
    return job.id, str(job.held), job.t_run, job.expiration_s, job.ncores, job.userid, queue, job.name, sizes


# ---- waiting for ends of jobs

NAMED_MAX = 20
"""Unknown jobs that an error names; it says how many more there are."""


class JobWaits:
    """Service of `job-manager.wait-all`."""

    def __init__(self, effects: JobEffects, router: Router, store: Store) -> None:
        self._effects = effects
        self._manager = effects.manager
        self._store = store
        self._turns = effects.turns
        self._left: dict[RpcRequest, dict[int, tuple[int, ...]]] = {}
        """Jobs of each stream that have not ended, and for each of these the jobs that were requested: earlier
        attempts, or itself.
        """
        router.serve({"job-manager.wait-all": self._wait_all})
        effects.publish.append(self._publish)

    def _wait_all(self, request: RpcRequest) -> None:
        ids = request.payload(msg.WaitAllRequest).ids
        jobs = self._manager.jobs
        unknown = [jobid for jobid in ids if jobid not in jobs]
        if unknown:
            more = f" and {len(unknown) - NAMED_MAX} more" if len(unknown) > NAMED_MAX else ""
            raise Refused(f"no such job: {', '.join(map(format_f58, unknown[:NAMED_MAX]))}{more}", errno.ENOENT)
        request.open_stream(lambda: forget(self._left, request))
        left: dict[int, tuple[int, ...]] = {}
        for jobid in dict.fromkeys(ids):
            last_id = jobs.last(jobid).id
            left[last_id] = (*left.get(last_id, ()), jobid)
        self._left[request] = left
        ended = [jobid for jobid in left if jobid in jobs.inactive]
        self._effects.after_commit(lambda: self._turns.spread(self._send_ended(request, ended), request.failed))

    def _send_ended(self, request: RpcRequest, ended: Sequence[int]) -> Work:
        """Send the jobs that had ended before the request; one that was just being stored has been reported already."""
        for some in pieces(ended):
            for jobid in some:
                self._send(request, jobid)
            yield
        if request in self._left and not self._left[request]:
            self._finish(request)

    def _publish(self, stored: Sequence[JobEvents]) -> None:
        if not self._left:
            return
        for jobid, events in stored:
            if events[-1]["name"] == "clean":
                next_id = read_next(events[-1])
                for request in list(self._left):
                    if next_id:
                        self._wait_on(request, jobid, next_id)
                    else:
                        self._send(request, jobid)

    def _wait_on(self, request: RpcRequest, jobid: int, next_id: int) -> None:
        """Wait for the next attempt of a job that was preempted."""
        left = self._left[request]
        asked = left.pop(jobid, ())
        if asked:
            left[next_id] = (*left.get(next_id, ()), *asked)

    def _send(self, request: RpcRequest, jobid: int) -> None:
        left = self._left.get(request)
        if left is None or jobid not in left:
            return
        ended = clean_result(self._manager, self._store, jobid)
        for asked in left.pop(jobid):
            request.respond(wait_response(as_asked(asked, ended)))
        if not left:
            self._finish(request)

    def _finish(self, request: RpcRequest) -> None:
        forget(self._left, request)
        request.finish()
