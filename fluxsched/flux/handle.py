"""Flux as the bridge sees it: its handle, the module's options, grants and history in its KVS, habits of its tools.

Laws: every call of a handle returns at once; answers come through the callback and requests through `Bridge.receive`,
both from the reactor and never from within the call. The interface is small, so that a recording can take Flux's place.
Options (`flux module load ... policy=easy queue-depth=8 placement=best-fit`) are checked at load, and an error has the
option, its value and what is allowed; an option that is not the module's is the policy's. Each R is in the KVS before
its grant is answered, and many share a transaction: at most IN_FLIGHT_MAX are in flight; what is granted
meanwhile goes with the next one, so a burst needs few transactions and a single grant is not delayed.

Compatibility with Flux's own tools and tests (debug bits of sched-simple, annotations as its others write) changes no
decision. Under the names of Flux's schedulers we decide as they do. A backfilled job's annotations name the job that it
overtook, an estimate that no longer holds is removed at once, and under the names of Flux's FIFO schedulers the first
waiting jobs get estimates. The history of accounts has fixed keys in the KVS, read when we are ready, written when the
session asks; a value of no use, or one that cannot be read, ends nothing: before another takes its place it is kept
under a second key, once.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import Any, ClassVar, NamedTuple, Protocol

from fluxsched.core.jobid import format_dothex, format_f58
from fluxsched.errors import InvalidValue, Refused
from fluxsched.protocol.messages.jobs import ReadyResponse, SaveRequest
from fluxsched.sched.engine.policy_queue import DENY, UNSATISFIABLE
from fluxsched.sched.hooks import Plugin
from fluxsched.sched.loading import PLUGIN_SIGN, parse_spec
from fluxsched.sched.policy import BACKFILLED, Decision, Option, Policy, Reservation, Reserve, View, needs_accounts
from fluxsched.sched.registry import find, join_queues, make, make_plugin, split_queues

LOG_CRIT, LOG_ERR, LOG_WARNING, LOG_NOTICE, LOG_INFO, LOG_DEBUG = range(2, 8)
"""The levels of syslog (RFC 5424), as Flux's log takes them."""

LEVELS: Mapping[str, int] = {
    "emerg": 0, "alert": 1, "crit": LOG_CRIT, "err": LOG_ERR, "warning": LOG_WARNING, "notice": LOG_NOTICE,
    "info": LOG_INFO, "debug": LOG_DEBUG,
}  # fmt: skip
"""Their names, as module options give them."""


class BrokerReply(NamedTuple):
    """One answer to a call: `errnum` is 0 for a success, else `text` says what was wrong (RFC 3)."""

    payload: bytes | None = None
    errnum: int = 0
    text: str = ""


class BrokerRequest(NamedTuple):
    """A request from Flux; `token` is the handle's own, for the answer."""

    topic: str
    payload: bytes | None
    token: object


OnReply = Callable[[BrokerReply], None]


class BrokerHandle(Protocol):
    """A module's side of the broker. Payloads are JSON."""

    @property
    def name(self) -> str:
        """The name under which the module was loaded."""
        ...

    @property
    def ascii(self) -> bool:
        """Return whether Flux's tools write job ids with an ASCII f here, for a locale without ƒ (RFC 19)."""
        ...

    def rpc(self, topic: str, payload: bytes | None, done: OnReply, *, streaming: bool = False) -> None:
        """Send a request; `done` gets each answer, for a stream until one has an errnum."""
        ...

    def respond(self, request: BrokerRequest, payload: bytes | None) -> None:
        """Answer a request with success; an alloc request takes several (RFC 27)."""
        ...

    def fail(self, request: BrokerRequest, errnum: int, text: str) -> None:
        """Answer a request with an error."""
        ...

    def commit(self, values: Mapping[str, bytes], done: OnReply) -> None:
        """Put keys with their JSON values into the KVS in one transaction (RFC 16)."""
        ...

    def lookup(self, key: str, done: OnReply) -> None:
        """Read one key of the KVS."""
        ...

    def after(self, delay_s: float) -> None:
        """Have `Bridge.turn` called once after this delay, in place of any call that is still due."""
        ...

    def log(self, level: int, text: str) -> None:
        """Write a line to Flux's log, at one of the levels above."""
        ...

    def debug(self, bit: int) -> bool:
        """Return whether a debug bit is set (`flux module debug --setbit`)."""
        ...

    def stop(self) -> None:
        """Leave the reactor without an error, which would take the broker down."""
        ...


# ---- options of the module

DEFAULT_POLICY = "easy"

POLICY_OF_NAME: Mapping[str, str] = {"sched-simple": "fifo", "sched-fifo": "fifo", "sched-backfill": "easy"}
"""Policies of Flux's own schedulers, for a module that is loaded under their names."""

FORECASTING = ("sched-simple", "sched-fifo")
"""Flux's schedulers that annotate waiting jobs with an estimated start, though they plan none of them."""

QUEUE_DEPTH_MAX = 0x7FFFFFFF
"""The job manager's counter (RFC 27, limited mode)."""

NO_PARTIAL = "test-hello-nopartial"
"""An option of Flux's sched-simple, for its tests: say hello without `partial-ok`."""

OWN = ("policy", "queue-depth", "mode", "log-level", "forecast", "unsatisfiable", "plugins")


@dataclass(frozen=True, slots=True)
class Options:
    """A module's options; `policies` are those of queues that have their own, as in `policy=easy;debug=fifo`.

    `queue_depth` is None for unlimited. `plugins=SPEC|SPEC` are plugins under the policy.

    `forecast`: the first waiting jobs get an estimated start, though the policy plans none of them.
    `unsatisfiable`: what becomes of jobs that the shrunk resources cannot hold any more; Flux's schedulers deny them.
    """

    policy: Policy
    policies: Mapping[str, Policy] = field(default_factory=dict)
    queue_depth: int | None = None
    log_level: int = LOG_INFO
    partial_ok: bool = True
    forecast: bool = False
    unsatisfiable: str = DENY
    plugins: tuple[Plugin, ...] = ()
    decides: str = ""
    """Policy and plugins with their options, as given."""


def parse_options(words: Iterable[str], module_name: str) -> Options:
    """Return the options in the words after the module's path.

    Raises InvalidValue naming the word and the allowed ones.
    """
    words = list(words)
    partial_ok = NO_PARTIAL not in words
    given = _pairs(word for word in words if word != NO_PARTIAL)
    spec = given.pop("policy", POLICY_OF_NAME.get(module_name, DEFAULT_POLICY))
    depth, mode = given.pop("queue-depth", None), given.pop("mode", None)
    if depth is not None and mode is not None:
        raise InvalidValue(f"queue-depth={depth} and mode={mode} are the same setting: give one of them")
    level = given.pop("log-level", "info").lower()
    if level not in LEVELS:
        raise InvalidValue(f"log-level={level!r} is not one of {', '.join(LEVELS)}")
    plugins = given.pop("plugins", "")
    forecast = given.pop("forecast", "yes" if module_name in FORECASTING else "no")
    if forecast not in ("yes", "no"):
        raise InvalidValue(f"forecast={forecast!r} is neither yes nor no")
    unsatisfiable = given.pop("unsatisfiable", DENY)
    if unsatisfiable not in UNSATISFIABLE:
        raise InvalidValue(f"unsatisfiable={unsatisfiable!r} is not one of {', '.join(UNSATISFIABLE)}")
    general, own = split_queues(spec)
    return Options(
        policy=_policy(general, given),
        policies={queue: make(*parse_spec(each)) for queue, each in own.items()},
        queue_depth=_mode(mode) if mode is not None else _depth(depth),
        log_level=LEVELS[level],
        partial_ok=partial_ok,
        forecast=forecast == "yes",
        unsatisfiable=unsatisfiable,
        plugins=tuple([make_plugin(each) for each in plugins.split(PLUGIN_SIGN) if each]),
        decides=_decides(general, given, own, plugins),
    )


def _decides(spec: str, given: Mapping[str, str], own: Mapping[str, str], plugins: str) -> str:
    options = ",".join([f"{key}={value}" for key, value in given.items()])
    general = f"{spec}{':,'[':' in spec] if options else ''}{options}"
    policy = f"policy={join_queues(general, own)}"
    return f"{policy} plugins={plugins}" if plugins else policy


def _pairs(words: Iterable[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise InvalidValue(f"{word!r} is not option=value; there are {', '.join(OWN)} and those of the policy")
        if key in given:
            raise InvalidValue(f"option {key!r} is given twice")
        given[key] = value
    return given


def _policy(spec: str, given: Mapping[str, str]) -> Policy:
    name, options = parse_spec(spec)
    if twice := sorted(options.keys() & given.keys()):
        raise InvalidValue(f"option {twice[0]!r} is given twice, in policy={spec} and on its own")
    found = find(name)
    known = getattr(found, "OPTIONS", {})
    if not hasattr(found, "INNER") and (unknown := [key for key in given if key not in known]):
        raise InvalidValue(
            f"unknown option {unknown[0]!r}: the module has {', '.join(OWN)}, "
            f"and policy {name!r} has {', '.join(sorted(known)) or 'none'}"
        )
    return make(name, {**options, **given})


def _depth(text: str | None, option: str = "queue-depth") -> int | None:
    if text is None or text == "unlimited":
        return None
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= QUEUE_DEPTH_MAX:
        raise InvalidValue(f"{option}={text!r} is neither 'unlimited' nor a number from 1 to {QUEUE_DEPTH_MAX}")
    return int(text)


def _mode(text: str) -> int | None:
    """`unlimited` or `limited=N`, as Flux's schedulers took it before `queue-depth`."""
    word, equals, depth = text.partition("=")
    if word == "unlimited" and not equals:
        return None
    if word == "limited" and depth and depth != "unlimited":
        return _depth(depth, "mode=limited")
    raise InvalidValue(f"mode={text!r} is neither 'unlimited' nor 'limited=N'")


# ---- grants being stored

IN_FLIGHT_MAX = 4
"""Transactions in flight at once: enough that the KVS never idles, few enough that a burst is grouped."""

GRANTS_MAX = 256
"""Grants in one transaction: some 100 kB of R, so that no broker message is held up long."""


class PendingGrant(NamedTuple):
    """One job's R, as JSON, and the answer that goes out once it is stored."""

    jobid: int
    R: bytes
    answer: bytes


def key_of(jobid: int, key: str = "R") -> str:
    """Return the key of a part of a job in the KVS (RFC 16, job schema)."""
    return f"job.{format_dothex(jobid)}.{key}"


class Commits:
    """Stores grants; calls `stored` for each once it is in the KVS, and `failed` when a transaction fails."""

    def __init__(
        self, handle: BrokerHandle, stored: Callable[[PendingGrant], None], failed: Callable[[BrokerReply], None]
    ) -> None:
        self.in_flight = 0
        self.done = 0
        self._handle = handle
        self._stored = stored
        self._failed = failed
        self._waiting: deque[PendingGrant] = deque()

    def __len__(self) -> int:
        """Return the grants that wait for a transaction."""
        return len(self._waiting)

    def stats(self) -> dict[str, int]:
        """Return the counters for `stats-get`."""
        return {"in_flight": self.in_flight, "waiting": len(self), "done": self.done}

    def add(self, grant: PendingGrant) -> None:
        """Have it stored with the next `flush`."""
        self._waiting.append(grant)

    def flush(self) -> None:
        """Send what waits, in as many transactions as may be in flight."""
        while self._waiting and self.in_flight < IN_FLIGHT_MAX:
            batch = [self._waiting.popleft() for _ in range(min(GRANTS_MAX, len(self._waiting)))]
            self.in_flight += 1
            values = {key_of(grant.jobid): grant.R for grant in batch}
            self._handle.commit(values, lambda reply, batch=batch: self._answered(batch, reply))  # type: ignore[misc]

    def _answered(self, batch: list[PendingGrant], reply: BrokerReply) -> None:
        self.in_flight -= 1
        self.done += 1
        if reply.errnum:
            self._failed(reply)
            return
        for grant in batch:
            self._stored(grant)
        self.flush()


# ---- compatibility with Flux's tools and tests

FAIL_ALLOC = 1
"""While set, every alloc request is denied."""
ANNOTATE_PENDING = 2
"""While set, the annotations of each waiting job say why it waits, and how many jobs are ahead of it."""
DENY_EXPIRATION = 4
"""While set, a running job's expiration cannot be changed."""

FORECAST_MAX = 8
"""Jobs that get a forecast where the policy itself plans none: it is made in every pass."""

ESTIMATE = "t_estimate"
"""The annotation with a job's estimated start (RFC 27, wall time)."""


class CompatPolicy:
    """A policy around the policy, which observes what it leaves in the queue. `planned` gives its reservations."""

    name: ClassVar[str] = "compat"
    OPTIONS: ClassVar[Mapping[str, Option]] = {}

    def __init__(
        self,
        handle: BrokerHandle,
        policy: Policy,
        forecast: bool,
        planned: Callable[[], Iterator[Reservation]],
        overtaken: Callable[[int], int | None],
    ) -> None:
        self.BACKFILLS = bool(getattr(policy, "BACKFILLS", False))
        self.ACCOUNTS = needs_accounts(policy)
        self.fair_overrides: Mapping[str, object] = getattr(policy, "fair_overrides", {})
        self._handle = handle
        self._policy = policy
        self._forecast = forecast
        self._planned = planned
        self._overtaken = overtaken
        self._keys: dict[int, set[str]] = {}
        self._estimated: set[int] = set()
        self._left: list[int] = []

    def schedule(self, view: View, now_s: float) -> Iterator[Decision]:
        """Yield the policy's own decisions, then the forecast for jobs without a reservation."""
        yield from self._policy.schedule(view, now_s)
        if self._forecast:
            planned = {kept.jobid for kept in self._planned()}
            for job in islice(view.queue, FORECAST_MAX):
                if job.jobid not in planned:
                    yield Reserve(view.plan.reserve(job), view.reason(job))
        if self._handle.debug(ANNOTATE_PENDING):
            self._left = [job.jobid for job in view.queue]

    def annotated(self, jobid: int, sched: Mapping[str, Any]) -> None:
        """Give a waiting job these annotations; null removes a key."""
        keys = self._keys.setdefault(jobid, set())
        for key, value in sched.items():
            (keys.discard if value is None else keys.add)(key)
        if ESTIMATE in sched:
            (self._estimated.discard if sched[ESTIMATE] is None else self._estimated.add)(jobid)

    def forget(self, jobid: int) -> None:
        """Record that a job no longer waits."""
        self._keys.pop(jobid, None)
        self._estimated.discard(jobid)

    def granted(self, jobid: int, annotations: Mapping[str, Any]) -> dict[str, Any]:
        """Return a grant's annotations as Flux's schedulers write them: those of a waiting job are removed.

        `backfill` names the job of its queue that was overtaken; that of another queue has not been.
        """
        sched = {**dict.fromkeys(sorted(self._keys.get(jobid, ()))), **annotations["sched"]}
        backfilled = sched.pop("selection_type") == BACKFILLED
        if backfilled and (head := self._overtaken(jobid)) is not None:
            sched["backfill"] = format_f58(head, ascii=self._handle.ascii)
        return {**annotations, "sched": sched}

    def more_annotations(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Further annotations of the jobs that the last pass left waiting; once."""
        left, self._left = self._left, []
        for ahead, jobid in enumerate(left):
            yield jobid, {"reason_pending": "insufficient resources", "jobs_ahead": ahead}
        planned = {kept.jobid: kept.start_s for kept in self._planned() if kept.start_s < inf}
        for jobid in sorted(self._estimated - planned.keys()):
            yield jobid, {ESTIMATE: None}
        for jobid in sorted(planned.keys() - self._estimated):
            yield jobid, {ESTIMATE: planned[jobid]}

    def check_alloc(self) -> None:
        """Raise InvalidValue when alloc requests are to be denied."""
        if self._handle.debug(FAIL_ALLOC):
            raise InvalidValue("DEBUG_FAIL_ALLOC")

    def check_expiration(self) -> None:
        """Raise Refused when changes of an expiration are to be denied."""
        if self._handle.debug(DENY_EXPIRATION):
            raise Refused("Rejecting expiration update for testing")


# ---- history of accounts in the KVS

KEY = "fluxsched.accounts"
"""Key of the state that was saved last: JSON, as `sched.fair.account_state` describes it."""

SET_ASIDE = "fluxsched.accounts-set-aside"
"""Key of a state that could not be restored."""


class KvsHistory:
    """Reads and writes the keys."""

    def __init__(self, handle: BrokerHandle) -> None:
        self._handle = handle
        self._found: bytes | None = None

    def add(self, ready: ReadyResponse, then: Callable[[ReadyResponse], None]) -> None:
        """Give `then` the answer to sched-ready with what was saved, as in an instance of our own."""

        def found(reply: BrokerReply) -> None:
            self._found = reply.payload if not reply.errnum else None
            if reply.errnum not in (0, errno.ENOENT):
                self._handle.log(LOG_ERR, f"the history of accounts begins anew: {KEY} cannot be read: {reply.text}")
            state = None if self._found is None else self._found.decode(errors="replace")
            then(ReadyResponse(ready.count, state))

        self._handle.lookup(KEY, found)

    def save(self, wanted: SaveRequest, done: Callable[[BrokerReply], None]) -> None:
        """Write it, in one transaction with what is set aside."""
        values = {KEY: str(wanted.state).encode()}
        if wanted.set_aside and self._found is not None:
            values[SET_ASIDE] = self._found
        self._handle.commit(values, done)
