"""Topic `jobs`: a page of the job list. It is asked for once a second while jobs come and go, else every few seconds.

Law: events of every job are not followed; figures say whether any came or went, and rare events are listened for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fluxsched.core.jobid import format_f58, parse_jobids
from fluxsched.errors import InvalidValue, RPCError
from fluxsched.runtime.system.clock import SystemClock
from fluxsched.views.changes import Body, differences
from fluxsched.views.feeds.feed import SHARE, Asking, Audience, SlowQuestion, streaming, together
from fluxsched.views.feeds.figures import Figures
from fluxsched.views.feeds.params import Params
from fluxsched.views.job_filter import ANY_USER, Jobs, list_request, on_targets, terms_of, user_id
from fluxsched.views.job_row import JOB_STATES, RESULTS, JobRow, queue_reason
from fluxsched.views.words import user_name

ASKED_EVERY_S, REFRESHED_EVERY_S = 1.0, 5.0
"""How often a list is asked for at the shortest, and how often while nothing happens: reasons change all the same."""
REASONS_EVERY_S, REASONS_REFUSED_S = 2.0, 60.0
"""How often a scheduler is asked why jobs wait, at the shortest, and where it has refused that (seconds)."""
ROWS_MAX = 200
"""Jobs of one page."""
RARE_EVENTS = (
    "urgency", "exception", "memo", "dependency-add", "dependency-remove", "jobspec-update", "grow", "shrink",
)  # fmt: skip
"""What changes rows and is not in the figures."""
FILTERS = ("states", "user", "queue", "name", "text", "targets", "ids", "array", "since", "constraint", "max_entries")
_IDS = ("array", "requeue_of", "requeued_as")


def job_request(params: Params) -> dict[str, Any]:
    """The job-manager.list request of a page: the filters of `fluxsched jobs`, as words. Raises InvalidValue."""
    jobs = _named(params.words("ids"))
    words = tuple(word.lower() for word in params.words("states"))
    if unknown := [word for word in words if word not in JOB_STATES and word not in RESULTS]:
        raise InvalidValue(f"{', '.join(unknown)} is not among {', '.join([*JOB_STATES, *RESULTS])}")
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
    """A job's row: what the instance says, with ids as texts (scripts have no exact numbers of that size)."""
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
    """The change from one list to another: rows that are new or differ, ids that are gone, the order if it differs."""
    known = {row["jobid"]: row for row in before["jobs"]}
    change = differences(before, {key: value for key, value in now.items() if key != "jobs"})
    if rows := [row for row in now["jobs"] if known.get(row["jobid"]) != row]:
        change["jobs"] = rows
    if gone := [jobid for jobid in before["order"] if jobid not in set(now["order"])]:
        change["gone"] = gone
    return change


class JobsFeed:
    """One filter."""

    def __init__(self, params: Params, figures: Figures) -> None:
        self._params = params
        job_request(params)  # refused now rather than in the feed
        self._figures = figures
        self._whole: dict[str, Any] | None = None
        self._is_due = asyncio.Event()

    def now(self) -> Body | None:
        """See `Feed`."""
        return self._whole

    async def run(self, handle: Asking, audience: Audience) -> None:
        """See `Feed`."""
        self._whole = None
        reasons = JobReasons(self._is_due.set)
        try:
            await together(self._list(handle, audience, reasons), self._listen(handle))
        finally:
            await reasons.close()

    async def _listen(self, handle: Asking) -> None:
        with streaming(handle, "job-manager.watch", {"names": list(RARE_EVENTS)}) as answers:
            async for _ in answers:
                self._is_due.set()

    async def _list(self, handle: Asking, audience: Audience, reasons: JobReasons) -> None:
        loop = asyncio.get_running_loop()
        while True:
            happened, begun_s = await self._figures.happened(handle), loop.time()
            self._is_due.clear()
            whole = await asked_jobs(handle, job_request(self._params), reasons)
            took_s, before, self._whole = loop.time() - begun_s, self._whole, whole
            if before is None and not whole["jobs"]:
                await self._check_targets(handle)
            if before is None:
                audience.whole(whole)
            elif change := row_differences(before, whole):
                audience.change(change)
            await asyncio.sleep(max(ASKED_EVERY_S, took_s / SHARE))
            await self._until_due(handle, happened, loop.time() + REFRESHED_EVERY_S - ASKED_EVERY_S)

    async def _check_targets(self, handle: Asking) -> None:
        """That there are those of the filter; ended jobs may have been on others. Raises RPCError."""
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

    async def of(self, handle: Asking, ids: Sequence[int]) -> dict[int, tuple[str, float | None, bool]]:
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
        """Ask no more."""
        await self._question.close()


async def asked_jobs(handle: Asking, request: dict[str, Any], reasons: JobReasons) -> dict[str, Any]:
    """A list with the reasons of jobs that have none of their own: their queue's, or their scheduler's.

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
    known = await reasons.of(handle, [info["id"] for info in silent if info["urgency"] and info.get("priority") != 0])
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
