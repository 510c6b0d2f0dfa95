"""Submit filters at the door: each job that a user submits passes them before the job manager sees it.

    waiting -> asked, a batch at a time -> accepted, edited or refused

Law: the order of submits is kept. One batch is under way; what arrives meanwhile is the next one. While the process of
the filters is not there each submit is refused with a text that says so, or passes, as the site has configured; it is
started again by a timer, after a delay that doubles. Without filters a submit costs one comparison.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from fluxsched.config.submit_filters import FilterAnswer, FilterFault, FilterProcess, SubmittedJob
from fluxsched.config.values import IngestSettings
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import FluxschedError, Refused
from fluxsched.messaging.peers import RpcRequest
from fluxsched.services.module_processes import BACKOFF_MAX_S, BACKOFF_S
from fluxsched.store.store import Writer
from fluxsched.system.log import logger
from fluxsched.system.loop import Turns

log = logger("ingest")

BATCH_MAX = 256
"""Jobs of one batch: those that are lost to a filter that ends its process."""

WAITING_MAX = 100_000
"""Submits that wait for the filters; some kilobytes each."""

Accept = Callable[[Jobspec], object]
"""Takes a job in, as the filters have left it. Raises FluxschedError."""


class _Submit(NamedTuple):
    request: RpcRequest
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

    def admit(self, request: RpcRequest, jobspec: Jobspec, urgency: int, accept: Accept) -> None:
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
        delay_s = min(BACKOFF_S * 2**self._failures, BACKOFF_MAX_S)
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
