r"""Feeds of single topics: figures, machine and target, jobs, job, groups, shares, history and messages.

Each class asks an instance for its topic while it is subscribed to: streams are passed on as they come (machine,
messages), questions are asked again when figures or events show that the answer may differ (jobs, job), or at times
(groups, shares, history). The timeline has a file of its own.

Law: events of every job are not followed; figures say whether any came or went, and rare events are listened for.
Output is text: control characters that a terminal would obey are shown as `\x1b` and the like, and only its end is
kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from fluxsched.core.idset import EMPTY, ID_MAX, Idset
from fluxsched.core.jobid import format_f58, parse_jobid, parse_jobids
from fluxsched.core.text import UNPRINTABLE, not_among, printable
from fluxsched.errors import InvalidValue, RPCError
from fluxsched.protocol.messages.instance import ReportBy
from fluxsched.system.clock import SystemClock
from fluxsched.views.feed import (
    KEPT_MAX,
    OUTPUT_CHARS_MAX,
    SHARE,
    SHOWN_CHARS,
    WAIT_S,
    Asking,
    Body,
    FeedListener,
    Params,
    Period,
    SlowQuestion,
    after,
    differences,
    streaming,
    together,
)
from fluxsched.views.jobs import (
    ANY_USER,
    JOB_STATES,
    RESULTS,
    JobRow,
    Jobs,
    list_request,
    on_targets,
    queue_reason,
    terms_of,
    user_id,
)
from fluxsched.views.machine import LiveMachine
from fluxsched.views.words import user_name

FIGURES_EVERY_S = 1.0
_FRESH_S = 0.5


class Figures:
    """Cache of the last answer, for all feeds that need it at about the same time."""

    def __init__(self) -> None:
        self._asked_s = -1.0
        self._handle: Asking | None = None
        self._answer: asyncio.Future[dict[str, Any]] | None = None

    async def ask(self, handle: Asking) -> dict[str, Any]:
        """Return the figures, at most half a second old. Raises RPCError."""
        now_s = asyncio.get_running_loop().time()
        if self._answer is None or self._handle is not handle or now_s >= self._asked_s + _FRESH_S:
            self._handle, self._asked_s = handle, now_s
            self._answer = asyncio.ensure_future(handle.rpc("instance.metrics"))
        return await asyncio.shield(self._answer)

    async def happened(self, handle: Asking) -> object:
        """Return a value that differs once jobs were submitted, started or ended; None where figures are refused."""
        try:
            jobs = (await self.ask(handle))["jobs"]
        except RPCError:
            if handle.is_gone:
                raise
            return None
        return jobs["submitted"], jobs["started"], jobs["ended"]


# ---- feed `machine`

class MachineFeed:
    """Keeps the picture for viewers that come later."""

    def __init__(self) -> None:
        self.machine: LiveMachine | None = None
        self._snapshot: dict[str, Any] | None = None

    def current(self) -> Body | None:
        """See `Feed`; made again only after a delta."""
        if self._snapshot is None and self.machine is not None:
            self._snapshot = self.machine.snapshot()
        return self._snapshot

    async def run(self, handle: Asking, listener: FeedListener) -> None:
        machine = LiveMachine()
        with streaming(handle, "resource.watch") as answers:
            async for answer in answers:
                delta = machine.apply(answer)
                self.machine, self._snapshot = machine, None
                if delta is None:
                    listener.snapshot(self.current() or {})
                elif delta:
                    listener.delta(delta)


EVENTS_MAX = 20
"""Events of one target, the last ones."""


class TargetFeed:
    """The events of the journal that name one target, by its rank."""

    def __init__(self, params: Params) -> None:
        self._rank = params.count("rank", 0, ID_MAX, least=0)
        self._events: deque[Mapping[str, Any]] = deque(maxlen=EVENTS_MAX)
        self._is_live = False

    def current(self) -> Body | None:
        return {"rank": self._rank, "events": [*self._events]} if self._is_live else None

    async def run(self, handle: Asking, listener: FeedListener) -> None:
        """See `Feed`; the history comes first and ends with an answer without events."""
        self._events.clear()
        self._is_live = False
        with streaming(handle, "resource.journal") as answers:
            async for answer in answers:
                events = [event for event in answer["events"] if self._names(event.get("context") or {})]
                self._events += events
                if self._is_live and events:
                    listener.delta({"events": events})
                elif not self._is_live and not answer["events"]:
                    self._is_live = True
                    listener.snapshot(self.current() or {})

    def _names(self, context: Mapping[str, Any]) -> bool:
        of_properties = context.get("properties") or {}
        return any(self._rank in Idset.parse(text) for text in (context.get("idset") or "", *of_properties.values()))


# ---- feed `jobs`

ASKED_EVERY_S, REFRESHED_EVERY_S = 1.0, 5.0
"""Minimum interval between requests for a list, and the interval while nothing happens: reasons change all the same."""
REASONS_EVERY_S, REASONS_REFUSED_S = 2.0, 60.0
"""Minimum interval between requests for the reasons why jobs wait, and the one after a scheduler has refused them
(seconds).
"""
ROWS_MAX = 200
"""Maximum number of jobs of one page."""
RARE_EVENTS = (
    "urgency", "exception", "memo", "dependency-add", "dependency-remove", "jobspec-update", "grow", "shrink",
)  # fmt: skip
"""Events that change rows and are not in the figures."""
FILTERS = ("states", "user", "queue", "name", "text", "targets", "ids", "array", "since", "constraint", "max_entries")
_IDS = ("array", "requeue_of", "requeued_as")


def job_request(params: Params) -> dict[str, Any]:
    """Return the job-manager.list request of a page: the filters of `fluxsched jobs`, as words. Raises InvalidValue."""
    jobs = _named(params.words("ids"))
    words = tuple(word.lower() for word in params.words("states"))
    if unknown := [word for word in words if word not in JOB_STATES and word not in RESULTS]:
        raise InvalidValue(not_among(unknown, [*JOB_STATES, *RESULTS]))
    names = params.words("name")
    if text := params.text("text"):
        names = (*names, f"*{text}*")
    terms = terms_of(
        jobs,
        user=user_id(params.text("user") or ANY_USER),
        names=names,
        queues=params.words("queue"),
        words=words or None,
        array=_named(params.words("array")).ids,
        sets=None,
        targets=on_targets(params.text("targets")) if "targets" in params else None,
    )
    constraint, ids = params.get("constraint"), jobs.ids if not jobs.ranges else ()
    if constraint is not None and not isinstance(constraint, Mapping):
        raise InvalidValue("view jobs: constraint is not an object")
    more = [dict(constraint)] if constraint is not None else []
    wants_all = bool(words or jobs.ids or more)
    since_s = params.number("since")
    if since_s is not None and since_s < 0:
        since_s += SystemClock.wall_s()
    return list_request(
        [*terms.values(), *more], ids, wants_all, since_s, params.count("max_entries", ROWS_MAX, ROWS_MAX)
    )


def _named(words: tuple[str, ...]) -> Jobs:
    pairs = [(parse_jobids(word), ".." in word) for word in words]
    ranges = tuple([f"{low}..{high}" for (low, high), is_range in pairs if is_range])
    return Jobs(tuple([low for (low, _), is_range in pairs if not is_range]), ranges)


def job_body(info: Mapping[str, Any], now_s: float, blocked: str = "") -> dict[str, Any]:
    """Return a job's row: what the instance says, with ids as texts (scripts have no exact numbers of that size)."""
    row = JobRow(info, now_s, blocked)
    texts = {name: format_f58(info[name]) for name in _IDS if info.get(name)}
    return {
        **{key: value for key, value in info.items() if key not in ("id", "sizes")},
        **texts,
        "jobid": format_f58(info["id"]),
        "user": user_name(info["userid"]),
        "status": row.status(),
        "word": row.word(),
        "reason": row.reason(),
        "estimate": row.estimate_s(),
    }


def row_differences(before: Body, now: Body) -> dict[str, Any]:
    """Return the delta from one list to another: rows new or different, ids that are gone, the order if it differs."""
    known = {row["jobid"]: row for row in before["jobs"]}
    delta = differences(before, {key: value for key, value in now.items() if key != "jobs"})
    if rows := [row for row in now["jobs"] if known.get(row["jobid"]) != row]:
        delta["jobs"] = rows
    if gone := [jobid for jobid in before["order"] if jobid not in set(now["order"])]:
        delta["gone"] = gone
    return delta


class JobsFeed:
    """Feed of the jobs that pass one filter."""

    def __init__(self, params: Params, figures: Figures) -> None:
        self._params = params
        job_request(params)  # refused now rather than in the feed
        self._figures = figures
        self._snapshot: dict[str, Any] | None = None
        self._is_due = asyncio.Event()

    def current(self) -> Body | None:
        return self._snapshot

    async def run(self, handle: Asking, listener: FeedListener) -> None:
        self._snapshot = None
        reasons = JobReasons(self._is_due.set)
        try:
            await together(self._list(handle, listener, reasons), self._listen(handle))
        finally:
            await reasons.close()

    async def _listen(self, handle: Asking) -> None:
        with streaming(handle, "job-manager.watch", {"names": list(RARE_EVENTS)}) as answers:
            async for _ in answers:
                self._is_due.set()

    async def _list(self, handle: Asking, listener: FeedListener, reasons: JobReasons) -> None:
        loop = asyncio.get_running_loop()
        while True:
            happened, begun_s = await self._figures.happened(handle), loop.time()
            self._is_due.clear()
            snapshot = await asked_jobs(handle, job_request(self._params), reasons)
            took_s, before, self._snapshot = loop.time() - begun_s, self._snapshot, snapshot
            if before is None and not snapshot["jobs"]:
                await self._check_targets(handle)
            if before is None:
                listener.snapshot(snapshot)
            elif delta := row_differences(before, snapshot):
                listener.delta(delta)
            await asyncio.sleep(max(ASKED_EVERY_S, took_s / SHARE))
            await self._until_due(handle, happened, loop.time() + REFRESHED_EVERY_S - ASKED_EVERY_S)

    async def _check_targets(self, handle: Asking) -> None:
        """Check that the targets of the filter exist; ended jobs may have been on others. Raises RPCError."""
        if targets := self._params.text("targets"):
            await handle.rpc("job-manager.running", {"targets": targets, "max_entries": 1})

    async def _until_due(self, handle: Asking, happened: object, end_s: float) -> None:
        """Until something has happened, or it is time anyway."""
        loop = asyncio.get_running_loop()
        while not self._is_due.is_set() and loop.time() < end_s:
            if await self._figures.happened(handle) != happened:
                return
            try:
                await asyncio.wait_for(self._is_due.wait(), ASKED_EVERY_S)
            except TimeoutError:
                continue


class JobReasons:
    """Why jobs wait of which the list says nothing: the scheduler tells a reason only to the first ones of a queue.

    `late`: see `SlowQuestion`.
    """

    def __init__(self, late: Callable[[], None]) -> None:
        self._question = SlowQuestion(late)
        self._known: dict[int, tuple[str, float | None, bool]] = {}
        self._next_s = 0.0

    async def lookup(self, handle: Asking, ids: Sequence[int]) -> dict[int, tuple[str, float | None, bool]]:
        """Reason, estimated start (wall time) and whether that is promised, of those that wait; asked now and then."""
        is_due = ids and asyncio.get_running_loop().time() >= self._next_s
        await self._question.ask((lambda: self._ask(handle, list(ids))) if is_due else None)
        return self._known

    async def _ask(self, handle: Asking, ids: list[int]) -> None:
        loop = asyncio.get_running_loop()
        begun_s, pause_s = loop.time(), REASONS_EVERY_S
        try:
            found = (await handle.rpc("job-manager.reasons", {"ids": ids}))["jobs"]
            before = {jobid: self._known[jobid] for jobid in ids if jobid in self._known}
            self._known = before | {jobid: (why, start_s, promised) for jobid, why, start_s, promised in found}
        except RPCError:
            if handle.is_gone:
                raise
            self._known, pause_s = {}, REASONS_REFUSED_S  # an older instance, or not for us
        self._next_s = begun_s + max(pause_s, (loop.time() - begun_s) / SHARE)

    async def close(self) -> None:
        """Stop asking the scheduler for reasons."""
        await self._question.close()


async def asked_jobs(handle: Asking, request: dict[str, Any], reasons: JobReasons) -> dict[str, Any]:
    """Return a list with the reasons of jobs that have none of their own: their queue's, or their scheduler's.

    `left_out` is 1 if there are more.
    """
    count = request["max_entries"]
    found = (await handle.rpc("job-manager.list", {**request, "max_entries": count + 1}))["jobs"]
    now_s = SystemClock.wall_s()
    rows = {info["id"]: job_body(info, now_s) for info in found[:count]}
    silent = [
        info
        for info in found[:count]
        if info["state"] in ("PRIORITY", "SCHED") and not (rows[info["id"]]["reason"] and rows[info["id"]]["estimate"])
    ]
    asked = [info["id"] for info in silent if info["urgency"] and info.get("priority") != 0]
    known = await reasons.lookup(handle, asked)
    queues = list({info.get("queue") for info in silent if not rows[info["id"]]["reason"]})
    blocked = dict(zip(queues, await asyncio.gather(*[_blocked(handle, name) for name in queues]), strict=True))
    for info in silent:
        row, (reason, start_s, is_promised) = rows[info["id"]], known.get(info["id"], ("", None, False))
        row["reason"] = row["reason"] or blocked[info.get("queue")] or reason
        if row["estimate"] is None and start_s is not None:
            row["estimate"], row["promised"] = float(round(start_s)), is_promised  # no new row for a moment's change
    return {
        "jobs": [*rows.values()],
        "order": [row["jobid"] for row in rows.values()],
        "left_out": max(0, len(found) - count),
    }


async def _blocked(handle: Asking, queue: str | None) -> str:
    try:
        return queue_reason(await handle.rpc("job-manager.queue-status", {"name": queue} if queue else {}))
    except RPCError:
        if handle.is_gone:
            raise
        return ""


# ---- feed `job`

JOB_ASKED_EVERY_S, JOB_REFRESHED_EVERY_S = 0.25, 5.0
"""Minimum interval between requests for the record, and the interval while nothing happens."""


class JobFeed:
    """Feed of the job with one id."""

    def __init__(self, params: Params) -> None:
        self._id = parse_jobid(params.text("id"))
        self._snapshot: dict[str, Any] | None = None
        self._changed = asyncio.Event()
        self._written = 0
        self._is_told = False
        self._printed = asyncio.Event()
        """Set when there is no more output to come."""

    def current(self) -> Body | None:
        return self._snapshot if self._is_told else None

    async def run(self, handle: Asking, listener: FeedListener) -> None:
        record, logged = await asyncio.gather(
            self._asked(handle), handle.rpc("job-manager.lookup", {"id": self._id, "keys": ["eventlog"]})
        )
        events, self._written = logged["eventlog"], 0
        self._snapshot = {**record, "events": events[-KEPT_MAX:], "output": [], "output_left_out": 0}
        self._is_told = False
        self._printed.clear()
        await together(
            self._tell_first(listener),
            self._follow_events(handle, listener, len(events)),
            self._follow_output(handle, listener),
            self._ask_again(handle, listener),
        )

    async def _tell_first(self, listener: FeedListener) -> None:
        """With what it has printed so far: a page without script shows nothing else."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._printed.wait(), WAIT_S)
        self._is_told = True
        listener.snapshot(self._snapshot or {})

    def _tell(self, listener: FeedListener, delta: dict[str, Any]) -> None:
        self._snapshot = after(self._snapshot or {}, delta)
        if self._is_told:
            listener.delta(delta)

    async def _asked(self, handle: Asking) -> dict[str, Any]:
        """Return the record, and why; a job of another user may be seen, and the reason not."""
        found = (await handle.rpc("job-manager.list", {"ids": [self._id]}))["jobs"]
        if not found:
            raise RPCError(f"no such job: {format_f58(self._id)}", errno.ENOENT)
        try:
            why = await handle.rpc("job-manager.why", {"id": self._id})
        except RPCError:
            if handle.is_gone:
                raise
            why = None
        return {"job": job_body(found[0], SystemClock.wall_s()), "why": why and {**why, "id": format_f58(self._id)}}

    async def _follow_events(self, handle: Asking, listener: FeedListener, known: int) -> None:
        """Send the listener the events after the `known` ones of the record."""
        with streaming(handle, "job-manager.eventlog", {"id": self._id, "follow": True}) as answers:
            async for answer in answers:
                events = answer["events"][known:]
                known = max(0, known - len(answer["events"]))
                if events:
                    self._tell(listener, {"events": events})
                    self._changed.set()

    async def _follow_output(self, handle: Asking, listener: FeedListener) -> None:
        decoders: dict[str, Any] = {}
        with streaming(handle, "job-manager.output", {"id": self._id, "follow": True}) as answers:
            async for answer in answers:
                stream = answer["stream"]
                if stream not in decoders:
                    decoders[stream] = getincrementaldecoder("utf-8")("replace")
                if text := harmless(decoders[stream].decode(answer["data"])):
                    self._written += len(text)
                    left_out = max(0, self._written - OUTPUT_CHARS_MAX)
                    delta = {"output": [[stream, text[-OUTPUT_CHARS_MAX:]]], "output_left_out": left_out}
                    self._tell(listener, delta)
        self._printed.set()

    async def _ask_again(self, handle: Asking, listener: FeedListener) -> None:
        while self._is_active():
            try:
                await asyncio.wait_for(self._changed.wait(), JOB_REFRESHED_EVERY_S)
                await asyncio.sleep(JOB_ASKED_EVERY_S)
            except TimeoutError:
                pass
            self._changed.clear()
            before: Mapping[str, Any] = self._snapshot or {}
            record = await self._asked(handle)
            if delta := {key: value for key, value in record.items() if before.get(key) != value}:
                self._tell(listener, delta)
        await asyncio.Event().wait()  # nothing more comes of it: its viewers keep what they have

    def _is_active(self) -> bool:
        return bool(self._snapshot and self._snapshot["job"]["state"] != "INACTIVE")


def harmless(text: str) -> str:
    """Output as text of several lines: tabs and ends of lines stay, what else controls a terminal is spelled out."""
    plain = text.replace("\r\n", "\n")
    return UNPRINTABLE.sub(lambda found: found[0] if found[0] in "\n\t" else printable(found[0]), plain)


# ---- feed `groups`

GROUPS_EVERY_S = 1.0
HOLDERS_MAX = 20
"""Jobs that are named of those that keep targets from leaving."""


class GroupsQuestion:
    """Requests for the topic of groups."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    async def ask(self, handle: Asking) -> dict[str, Any]:
        """Return groups as `resource.groups` has them, queues with their jobs, and jobs on targets that leave, by
        group.
        """
        answer, names = await asyncio.gather(handle.rpc("resource.groups"), handle.rpc("job-manager.queue-list"))
        wanted = [{"name": name} for name in names["queues"]] or [{}]
        statuses = await asyncio.gather(*[handle.rpc("job-manager.queue-status", one) for one in wanted])
        counts = await self._counts(handle)
        queues = [queue_body(status, counts.get(status.get("name") or "")) for status in statuses]
        return {"groups": answer["groups"], "queues": queues, "holders": await holders(handle, answer["groups"])}

    async def _counts(self, handle: Asking) -> Mapping[str, Mapping[str, Any]]:
        try:
            return {queue["name"]: queue for queue in (await self._figures.ask(handle))["queues"]}
        except RPCError:
            if handle.is_gone:
                raise
            return {}


def queue_body(status: Mapping[str, Any], counts: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a queue as viewers get it; numbers of jobs are null where figures are refused."""
    return {
        **status,
        "name": status.get("name") or "",
        "group": status.get("group") or "default",
        "enabled": status["enable"],
        "started": status["start"],
        "waiting": counts["pending"] if counts else None,
        "running": counts["running"] if counts else None,
    }


async def holders(handle: Asking, groups: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Jobs on targets that are leaving: `[jobid, targets, end (0: none), user, name]`, by the group that they leave."""
    leaving = {group["name"]: Idset.parse(group["leaving"]) for group in groups if group["leaving"]}
    wanted = EMPTY
    for ranks in leaving.values():
        wanted |= ranks
    if not wanted:
        return {}
    answer = await handle.rpc("job-manager.running", {"targets": str(wanted), "max_entries": HOLDERS_MAX})
    return {
        name: [
            [format_f58(jobid), str(here), end_s, user_name(userid), title]
            for jobid, text, _, end_s, _, userid, _, title, _ in answer["jobs"]
            if (here := Idset.parse(text) & ranks)
        ]
        for name, ranks in leaving.items()
    }


# ---- feed `shares`

SHARES_EVERY_S = 2.0


class SharesQuestion:
    """The accounts of one group, or of all groups that a scheduler with accounts serves."""

    def __init__(self, params: Params) -> None:
        self._group = params.text("group")

    async def ask(self, handle: Asking) -> dict[str, Any]:
        """`accounts` and the settings of one group, and the names of all `groups` that have some; `accounts` is null
        where none has, and `why` says so.
        """
        names = [group["name"] for group in (await handle.rpc("resource.groups"))["groups"] if group["acquired"]]
        found, why = dict[str, dict[str, Any]](), "no scheduler has acquired a group"
        for name in names:
            try:
                found[name] = await accounts_of(handle, name)
            except RPCError as fault:
                if handle.is_gone:
                    raise
                why = str(fault)
        group = self._group or next(iter(found), "")
        if group not in found:
            return {"accounts": None, "why": why, "group": group, "groups": list(found)}
        return {**found[group], "group": group, "groups": list(found)}


async def accounts_of(handle: Asking, group: str) -> dict[str, Any]:
    """All parts of the answer as one."""
    found: dict[str, Any] = {}
    start: int | None = 0
    while start is not None:
        part = await handle.rpc("sched.accounts", {"group": group, "start": start})
        start = part.pop("next")
        found = part | {"accounts": [*found.get("accounts", ()), *part["accounts"]]}
    return found


# ---- feed `history`

HISTORY_EVERY_S = 10.0
POINTS_DEFAULT, POINTS_MAX = 600, 4000
"""Steps of a figure: about as many as a screen has columns."""
DAY_S = 86400.0
REPORT_BY: tuple[str, ...] = get_args(ReportBy)
"""Attributes by which a report may sum."""


class HistoryQuestion:
    """One period; the report is by user, bank, queue, group or property."""

    def __init__(self, params: Params) -> None:
        self._period = Period(params, -DAY_S, 0.0)
        self._points = params.count("points", POINTS_DEFAULT, POINTS_MAX)
        self._by = params.text("by") or REPORT_BY[0]
        if self._by not in REPORT_BY:
            raise InvalidValue(f"view history: by {not_among([self._by[:SHOWN_CHARS]], REPORT_BY)}")

    async def ask(self, handle: Asking) -> dict[str, Any]:
        """Return the three answers, with the names of users; null what is refused, where something is not."""
        now_s = SystemClock.wall_s()
        since_s, until_s = self._period.bounds_s(now_s)
        period = {"since": since_s, "until": until_s}
        answers = await asyncio.gather(
            handle.rpc("history.samples", {**period, "points_max": self._points}),
            handle.rpc("history.intervals", period),
            handle.rpc("history.report", {**period, "by": self._by}),
            return_exceptions=True,
        )
        faults = [answer for answer in answers if isinstance(answer, BaseException)]
        for fault in faults:
            if handle.is_gone or len(faults) == len(answers) or not isinstance(fault, RPCError):
                raise fault
        samples, states, report = [None if isinstance(answer, BaseException) else answer for answer in answers]
        return {"now": now_s, **period, "samples": samples, "intervals": states and states["intervals"],
                "observed": states and states["observed"], "report": report and named(report)}  # fmt: skip


def named(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report whose users have names."""
    if report.get("by") != "user":
        return report
    return report | {"rows": [row | {"name": _name(row["name"])} for row in report["rows"]]}


def _name(userid: str) -> str:
    return user_name(int(userid)) if userid.isdecimal() else userid


# ---- feed `messages`

class MessagesFeed:
    """Feed of messages whose topics have one of some beginnings; begins empty."""

    def __init__(self, params: Params) -> None:
        self._topics = list(params.words("topics"))
        self._kept: list[Any] = []
        self._dropped = 0
        self._has_begun = False

    def current(self) -> Body | None:
        return {"messages": self._kept, "dropped": self._dropped} if self._has_begun else None

    async def run(self, handle: Asking, listener: FeedListener) -> None:
        """See `Feed`; `dropped` counts since it began."""
        with streaming(handle, "instance.trace", {"topics": self._topics}) as answers:
            self._has_begun = True
            listener.snapshot({"messages": self._kept, "dropped": self._dropped})
            async for answer in answers:
                self._kept = [*self._kept, *answer["messages"]][-KEPT_MAX:]
                self._dropped += answer["dropped"]
                listener.delta({"messages": answer["messages"], "dropped": self._dropped})
