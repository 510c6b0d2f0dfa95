"""Functions of the application for the keys: one for each action of `look.KEYS`, with changes and details.

A command knows the application as `ScreenParts`. Details of what is under a cursor are sheets: a job's record, why it
waits, its events and output; a target's state, drain and jobs; a queue; a group.

Law: a change is confirmed first. Jobs are hit one by one, so that a job that has ended meanwhile keeps no other from
being hit; if any was refused, the box stays with what the instance said. Who did it is known to the instance by the
connection.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from fluxsched.core.constraint import GROUP, QUEUE, parse_targets, split_targets
from fluxsched.core.idset import Idset
from fluxsched.core.text import plural, printable, printable_lines
from fluxsched.errors import FluxschedError, InvalidValue, Refused
from fluxsched.protocol.messages.jobs import URGENCY_DEFAULT
from fluxsched.screen.look import KEYS, PANES, Pane, Run, ScreenSettings, wrapped
from fluxsched.screen.panes import LogPane, MachinePane, OfferedChoice, Question, Sheet
from fluxsched.screen.picture import Followed, Pacer, Picture, ViewFollower
from fluxsched.screen.table import TablePane, id_text, is_held
from fluxsched.system.clock import SystemClock
from fluxsched.views.feeds import Body, after
from fluxsched.views.jobs import PENDING, JobRow
from fluxsched.views.machine import drain_text, outage_text
from fluxsched.views.words import context_text, span_text, time_text, user_name

SORT_KEYS = "123456789abcdefghijklmnop"
JOBS_ON_MAX = 100
"""Jobs that are listed of a target."""
_USER_OPTIONS = ("-u", "--user")
_QUEUE_OPTIONS = ("-q", "--queue")
_HELP_INDENT = 18


def about_row(pane: TablePane) -> str:
    """More of the row under the cursor than its columns have room for."""
    row = pane.current
    if row is None:
        return ""
    if isinstance(row, JobRow):
        parts = [id_text(row), str(row.info["name"]), row.status(), row.reason()]
        if estimate_s := row.estimate_s():
            parts.append(f"estimated start {time_text(estimate_s, '%b %d %H:%M')}")
        return "  ".join(part for part in parts if part)
    return "  ".join(column.text(row) for column in pane.columns if column.text(row))


def about_targets(picture: Picture, ranks: Idset) -> str:
    """Return a text about the targets under the cursor: their names, states, drain and use."""
    if not ranks:
        return ""
    states = [word for word, part in picture.machine.states.parts.items() if not part.isdisjoint(ranks)]
    reason = "".join(f"  {text}" for text in picture.machine.limits_of(ranks))
    busy = sum(int(cores) * len(some & ranks) for cores, some in picture.machine.busy.parts.items())
    total = picture.machine.resources.restrict(ranks).count("core")
    return f"{picture.hosts_text(ranks)}  rank {ranks}  {', '.join(states)}  {busy}/{total} cores{reason}"


# -- panes ------------------------------------------------------------------------------------------------------


def _next_pane(app: ScreenParts) -> None:
    app.focus_pane(PANES[(PANES.index(app.pane) + 1) % len(PANES)])


def _previous_pane(app: ScreenParts) -> None:
    app.focus_pane(PANES[PANES.index(app.pane) - 1])


def _zoom(app: ScreenParts) -> None:
    app.zoomed = app.pane if app.zoomed is None else None
    app.arrange()


def _arrange(app: ScreenParts) -> None:
    app.machine.next_arrangement()
    app.arrange()


def _leave(app: ScreenParts) -> None:
    app.leave()


def _escape(app: ScreenParts) -> None:
    pane = app.panes[app.pane]
    if isinstance(pane, TablePane) and pane.tags:
        pane.tags.clear()
        pane.redraw()
    elif pane is app.machine and (app.machine.tagged or app.machine.found):
        app.machine.tagged = app.machine.found = Idset()
        app.machine.redraw()
    elif app.zoomed is not None:
        _zoom(app)
    elif app.filter_text and app.pane == "jobs":
        _filter_by(app, "")


def _help(app: ScreenParts) -> None:
    def lines(width: int) -> Sequence[Sequence[Run]]:
        found: list[list[Run]] = []
        for use in KEYS:
            if use.help:
                needs = f" (role {use.least})" if use.least > 1 else ""
                first, *more = wrapped(use.help + needs, width - _HELP_INDENT)
                label = use.label or use.action.capitalize()
                found.append([(f"{use.shown:>7} ", "key"), (f"{label:<9} ", "bold"), (first, "")])
                found += [[(" " * _HELP_INDENT + line, "")] for line in more]
        return found

    app.read("Keys", [Sheet("Keys", lines)])


# -- looking for ------------------------------------------------------------------------------------------------


def _search(app: ScreenParts) -> None:
    async def perform(text: str) -> str:
        app.searched = text
        if text and app.pane == "machine":
            await _seek(app)
        elif text:
            _find(app, go_on=False)
        return ""

    label = "Targets" if app.pane == "machine" else "Text"
    app.ask(Question(f"Search in {app.pane}", perform, field=label, initial=app.searched))


def _search_next(app: ScreenParts) -> None:
    if not app.searched:
        _search(app)
    else:
        _find(app, go_on=True)


def _find(app: ScreenParts, *, go_on: bool) -> None:
    pane = app.panes[app.pane]
    if pane is app.machine:
        if not app.machine.next_found():
            app.perform(_seek_again(app))
    elif not pane.find(app.searched, go_on=go_on):  # type: ignore[attr-defined]
        raise InvalidValue(f"{printable(app.searched)} was not found in {app.pane}")


async def _seek(app: ScreenParts) -> None:
    """Find the targets that the text names; the instance is asked about sets that it alone knows."""
    text = app.searched
    if any(each.kind in (GROUP, QUEUE) for each in split_targets(text).sets):
        answer = await app.follower.ask("resource.targets", {"targets": text})
        app.machine.seek(Idset.parse(answer["targets"]))
    else:
        app.machine.seek(parse_targets(text, app.machine.machine.resources))


async def _seek_again(app: ScreenParts) -> None:
    try:
        await _seek(app)
    except FluxschedError as error:
        app.say_fault(str(error))


def _filter(app: ScreenParts) -> None:
    async def perform(text: str) -> str:
        _filter_by(app, text)
        return ""

    lines = ["As for `fluxsched jobs`: -u USER, -q QUEUE, -f STATE or RESULT, --name 'sol*', -i TARGETS, --set, "
             "--array, --since, JOBID. Empty: all active jobs."]  # fmt: skip
    app.ask(Question("Filter the jobs", perform, lines, "Options", app.filter_text))


def _filter_by(app: ScreenParts, text: str) -> None:
    """Show these jobs. Raises InvalidValue, and what was shown stays."""
    before, app.filter_text = app.filter_text, text
    try:
        app.follow_jobs()
    except FluxschedError:
        app.filter_text = before
        raise
    app.jobs.tags.clear()
    app.fill()
    app.jobs.redraw()


def _user(app: ScreenParts) -> None:
    row = app.jobs.current

    async def perform(text: str) -> str:
        words = _without(shlex.split(app.filter_text), _USER_OPTIONS)
        _filter_by(app, shlex.join([*words, *(["-u", text] if text else [])]))
        return ""

    initial = user_name(row.info["userid"]) if row is not None else ""
    app.ask(Question("Jobs of one user", perform, field="User (empty: all)", initial=initial))


def _next_queue(app: ScreenParts) -> None:
    _turn_queue(app, 1)


def _previous_queue(app: ScreenParts) -> None:
    _turn_queue(app, -1)


def _turn_queue(app: ScreenParts, step: int) -> None:
    """Show the jobs of another queue: of all, then of one after the other."""
    names = ["", *[str(queue["name"]) for queue in app.picture.queues if queue["name"]]]
    words = shlex.split(app.filter_text)
    now = words[words.index("-q") + 1] if "-q" in words[:-1] else ""
    name = names[(names.index(now) + step if now in names else 0) % len(names)]
    _filter_by(app, shlex.join([*_without(words, _QUEUE_OPTIONS), *(["-q", name] if name else [])]))


def _without(words: Sequence[str], options: Sequence[str]) -> list[str]:
    kept, skips = [], False
    for word in words:
        if skips:
            skips = False
        elif word in options:
            skips = True
        elif not word.startswith(tuple(f"{option}=" for option in options)):
            kept.append(word)
    return kept


def _every_state(app: ScreenParts) -> None:
    app.every_state = not app.every_state
    app.follow_jobs()


# -- order and tags ---------------------------------------------------------------------------------------------


def _sort(app: ScreenParts) -> None:
    pane = _table(app)
    columns = [(index, column) for index, column in enumerate(pane.columns) if column.order is not None]
    choices = [OfferedChoice("0", "as listed", "")]
    choices += [
        OfferedChoice(key, column.heading, str(index)) for key, (index, column) in zip(SORT_KEYS, columns, strict=False)
    ]

    async def perform(value: str) -> str:
        pane.sort(int(value) if value else None, is_reversed=False)
        return ""

    app.ask(Question(f"Sort {app.pane} by", perform, choices=choices))


def _columns(app: ScreenParts) -> None:
    pane = _table(app)
    choices = [
        OfferedChoice(key, column.heading, str(index))
        for key, (index, column) in zip(SORT_KEYS, enumerate(pane.columns), strict=False)
    ]

    async def perform(value: str) -> str:
        pane.toggle(int(value))
        return ""

    app.ask(Question(f"Show or hide a column of {app.pane}", perform, choices=choices))


def _invert(app: ScreenParts) -> None:
    pane = _table(app)
    pane.sort(pane.sorted_by, is_reversed=not pane.is_reversed)


def _table(app: ScreenParts) -> TablePane:
    pane = app.panes[app.pane]
    if not isinstance(pane, TablePane):
        raise InvalidValue(f"{app.pane} has no columns")
    return pane


def _tag(app: ScreenParts) -> None:
    pane = app.panes[app.pane]
    if pane is app.machine:
        app.machine.tag()
    else:
        _table(app).tag()


# -- details ----------------------------------------------------------------------------------------------------


def _details(app: ScreenParts) -> None:
    if app.pane == "machine":
        if app.machine.ranks:
            app.perform(_read_targets(app, app.machine.ranks))
    elif app.pane == "jobs":
        if app.jobs.current is not None:
            _read_job(app, app.jobs.current)
    else:
        entry = _table(app).current
        if entry is not None:
            app.read(printable(f"{app.pane.removesuffix('s')} {entry['name'] or '(default)'}"), entry_sheets(entry))


def _read_job(app: ScreenParts, row: JobRow) -> None:
    held: dict[str, Mapping[str, Any]] = {"body": {"job": row.info}}

    def take(kind: str, body: Mapping[str, Any]) -> None:
        if kind != "instance":
            held["body"] = body if kind == "whole" else after(held["body"], body)
            app.pacer.wake()

    app.read(printable(f"{id_text(row)} {row.info['name']}"), job_sheets(lambda: held["body"]))
    app.followed.follow("job", "job", {"id": str(row.info["id"])}, take)


async def _read_targets(app: ScreenParts, ranks: Idset) -> None:
    request = {
        "constraint": {"and": [{"ranks": [str(ranks)]}, {"states": ["RUN", "CLEANUP"]}]},
        "max_entries": JOBS_ON_MAX,
    }
    found: Sequence[Mapping[str, Any]] = ()
    refused = ""
    try:
        found = (await app.follower.ask("job-manager.list", request))["jobs"]
    except FluxschedError as error:
        refused = str(error)
    rows = [JobRow(info, SystemClock.wall_s()) for info in found]
    app.read(printable(app.picture.hosts_text(ranks)), target_sheets(app.picture, ranks, rows, refused))


# -- what changes something -------------------------------------------------------------------------------------


def _rows(app: ScreenParts) -> list[JobRow]:
    rows = app.jobs.meant
    if not rows:
        raise InvalidValue("there is no job here")
    return rows


def _cancel(app: ScreenParts) -> None:
    app.ask(cancelling(app.follower.ask, _rows(app)))


def _hold(app: ScreenParts) -> None:
    app.ask(holding(app.follower.ask, _rows(app)))


def _urgency(app: ScreenParts) -> None:
    app.ask(urgency_set(app.follower.ask, _rows(app), app.settings.parse_urgency))


def _urgency_less(app: ScreenParts) -> None:
    app.ask(urgency_moved(app.follower.ask, _rows(app), -1))


def _urgency_more(app: ScreenParts) -> None:
    app.ask(urgency_moved(app.follower.ask, _rows(app), 1))


def _drain(app: ScreenParts) -> None:
    _with_targets(app, "Drain which targets?", lambda *named: app.ask(draining(app.follower.ask, *named)))


def _undrain(app: ScreenParts) -> None:
    _with_targets(app, "Return which targets?", lambda *named: app.ask(undraining(app.follower.ask, *named)))


def _with_targets(app: ScreenParts, title: str, then: Callable[[str, str], None]) -> None:
    """Pass targets to `then`: those under the cursor or tagged, else those of the job under it, or those typed by the
    user.
    """
    if app.pane == "machine" and app.machine.meant:
        then(str(app.machine.meant), app.picture.hosts_text(app.machine.meant))
        return
    pane = app.panes[app.pane]
    row = pane.current if isinstance(pane, TablePane) else None
    initial = ""
    if isinstance(row, JobRow):
        initial = str(row.info.get("ranks") or "")
    elif row is not None:
        initial = str(row.get("targets") or "")

    async def perform(text: str) -> str:
        if not text:
            raise InvalidValue("name targets: ranks (0-3,7), hosts (node[0-3]) or both")
        then(text, text)
        return ""

    app.ask(Question(title, perform, field="Targets", initial=initial))


def _trace(app: ScreenParts) -> None:
    if app.traced is not None:
        app.traced = None
        app.followed.leave("messages")
        app.log_pane.note = ""
        app.log_pane.redraw()
        return

    async def perform(text: str) -> str:
        app.followed.follow("messages", "messages", {"topics": ",".join(text.split())}, take)
        app.traced = text
        app.log_pane.note = f"with messages{f' of {text}' if text else ''}; t: without"
        return ""

    def take(kind: str, body: Mapping[str, Any]) -> None:
        if kind == "instance":
            return
        if "refused" in body:
            app.say_fault(str(body["refused"]))
        for message in body.get("messages") or () if kind == "change" else ():
            app.note("dim", str(message.get("text") or message.get("topic")))
        app.pacer.wake()

    app.ask(Question("Show messages", perform, ["Of topics that begin with one of these words, such as resource. or "
                     "sched.; empty: all."], "Beginnings", "resource."))  # fmt: skip


COMMANDS: Mapping[str, Callable[[ScreenParts], None]] = {
    "help": _help, "next_pane": _next_pane, "previous_pane": _previous_pane, "details": _details, "search": _search,
    "search_next": _search_next, "filter": _filter, "user": _user, "next_queue": _next_queue,
    "previous_queue": _previous_queue, "every_state": _every_state, "sort": _sort,
    "columns": _columns,
    "invert": _invert, "arrange": _arrange, "tag": _tag, "cancel": _cancel, "hold": _hold, "urgency": _urgency,
    "urgency_less": _urgency_less, "urgency_more": _urgency_more, "drain": _drain, "undrain": _undrain,
    "trace": _trace, "zoom": _zoom, "escape": _escape, "leave": _leave,
}  # fmt: skip


# ---- parts of the screen


class ScreenParts(Protocol):
    """Parts of the application that commands use."""

    picture: Picture
    settings: ScreenSettings
    follower: ViewFollower
    followed: Followed
    pacer: Pacer
    machine: MachinePane
    jobs: TablePane
    log_pane: LogPane
    filter_text: str
    every_state: bool
    searched: str
    zoomed: str | None
    traced: str | None
    pane: str

    @property
    def panes(self) -> Mapping[str, Pane]: ...

    def focus_pane(self, name: str) -> None: ...

    def arrange(self) -> None: ...

    def fill(self) -> None: ...

    def follow_jobs(self) -> None: ...

    def ask(self, question: Question) -> None: ...

    def read(self, title: str, sheets: list[Sheet]) -> None: ...

    def say_fault(self, text: str) -> None: ...

    def note(self, style: str, text: str) -> None: ...

    def leave(self) -> None: ...

    def perform(self, work: Coroutine[Any, Any, None]) -> None: ...


# ---- actions

NAMED_MAX = 4
"""Jobs that a question names; the rest is a number."""
REFUSED_NAMED_MAX = 3
"""Refusals that are shown; the rest is a number."""
URGENCY_HOLD, URGENCY_MAX = 0, 31

AskInstance = Callable[[str, dict[str, Any]], Awaitable[Mapping[str, Any]]]


def cancelling(ask: AskInstance, rows: Sequence[JobRow]) -> Question:
    """Return the question that cancels these jobs."""

    async def perform(note: str) -> str:
        return await _each(ask, rows, "job-manager.cancel", {"note": note}, "canceled {}")

    return Question(
        f"Cancel {plural(len(rows), 'job')}?", perform,
        [*_named(rows), "Running jobs are terminated, then killed."], "Note (may be empty)",
    )  # fmt: skip


def holding(ask: AskInstance, rows: Sequence[JobRow]) -> Question:
    """Hold waiting jobs; if all of them are held, release them."""
    waiting = [row for row in rows if row.info["state"] in PENDING]
    if not waiting:
        raise InvalidValue("only jobs that wait can be held: these run or have ended")
    releases = all(map(is_held, waiting))
    urgency = URGENCY_DEFAULT if releases else URGENCY_HOLD
    done = "released {}" if releases else "held {}"

    async def perform(_: str) -> str:
        return await _each(ask, waiting, "job-manager.urgency", {"urgency": urgency}, done)

    what = f"Release {plural(len(waiting), 'held job')}?" if releases else f"Hold {plural(len(waiting), 'job')}?"
    then = f"The urgency becomes {urgency}{': they do not start until they are released' if not releases else ''}."
    return Question(what, perform, [*_named(waiting), then])


def urgency_set(ask: AskInstance, rows: Sequence[JobRow], parse: Callable[[str], int]) -> Question:
    """Set the urgency of these jobs to what is typed."""

    async def perform(text: str) -> str:
        value = parse(text)
        return await _each(ask, rows, "job-manager.urgency", {"urgency": value}, f"set the urgency of {{}} to {value}")

    now = str(rows[0].info["urgency"]) if len({row.info["urgency"] for row in rows}) == 1 else ""
    return Question(
        f"Urgency of {plural(len(rows), 'job')}", perform, _named(rows), "0-31, hold, default, expedite", now
    )


def urgency_moved(ask: AskInstance, rows: Sequence[JobRow], by: int) -> Question:
    """Raise or lower the urgency of each of these jobs."""
    wanted = [(row, max(URGENCY_HOLD, min(URGENCY_MAX, row.info["urgency"] + by))) for row in rows]

    async def perform(_: str) -> str:
        requests = [(row, {"id": row.info["id"], "urgency": value}) for row, value in wanted]
        return await _all(ask, requests, "job-manager.urgency", "changed the urgency of {}")

    lines = [f"{_one(row)}: {row.info['urgency']} to {value}" for row, value in wanted[:NAMED_MAX]]
    return Question(f"{'Raise' if by > 0 else 'Lower'} the urgency of {plural(len(rows), 'job')}?", perform,
                    [*lines, *_more(len(wanted))])  # fmt: skip


def draining(ask: AskInstance, targets: str, shown: str) -> Question:
    """Drain these targets, for a reason."""

    async def perform(reason: str) -> str:
        if not reason.strip():
            raise InvalidValue("give a reason: it is shown to all who ask about these targets")
        await ask("resource.drain", {"targets": targets, "reason": reason.strip()})
        return f"drained {_short(shown)}"

    return Question(
        f"Drain {_short(shown)}?", perform, ["Running jobs continue, no new ones start there."], "Reason"
    )  # fmt: skip


def undraining(ask: AskInstance, targets: str, shown: str) -> Question:
    """Return these targets to service."""

    async def perform(_: str) -> str:
        await ask("resource.undrain", {"targets": targets})
        return f"returned {_short(shown)} to service"

    return Question(f"Return {_short(shown)} to service?", perform)


async def _each(
    ask: AskInstance, rows: Sequence[JobRow], topic: str, fields: Mapping[str, Any], done: str
) -> str:  # fmt: skip
    return await _all(ask, [(row, {"id": row.info["id"], **fields}) for row in rows], topic, done)


async def _all(ask: AskInstance, requests: Sequence[tuple[JobRow, dict[str, Any]]], topic: str, done: str) -> str:
    answers = await asyncio.gather(*(ask(topic, request) for _, request in requests), return_exceptions=True)
    refused = []
    for (row, _), answer in zip(requests, answers, strict=True):
        if isinstance(answer, FluxschedError):
            refused.append(f"{id_text(row)}: {answer}" if len(requests) > 1 else str(answer))
        elif isinstance(answer, BaseException):
            raise answer
    if refused:
        more = f"; and {len(refused) - REFUSED_NAMED_MAX} more" if len(refused) > REFUSED_NAMED_MAX else ""
        some = f"{len(requests) - len(refused)} of {len(requests)} done; " if len(requests) > 1 else ""
        raise Refused(some + "; ".join(refused[:REFUSED_NAMED_MAX]) + more)
    return done.format(plural(len(requests), "job"))


def _one(row: JobRow) -> str:
    return printable(f"{id_text(row)} {row.info['name']} ({row.status()}, {user_name(row.info['userid'])})")


def _named(rows: Sequence[JobRow]) -> list[str]:
    return [*map(_one, rows[:NAMED_MAX]), *_more(len(rows))]


def _more(count: int) -> list[str]:
    return [f"and {count - NAMED_MAX} more"] if count > NAMED_MAX else []


def _short(targets: str) -> str:
    return printable(targets if len(targets) <= 60 else f"{targets[:60]}...")


# ---- details of a row

_TIMES = ("t_submit", "t_depend", "t_run", "t_cleanup", "t_inactive", "expiration")
_DURATIONS = ("duration",)
_NAME_WIDTH = 16


def pairs(values: Mapping[str, Any], width: int) -> list[list[Run]]:
    """Names and values, one a line; long values go on below."""
    lines: list[list[Run]] = []
    for name, value in values.items():
        if value in (None, "", [], {}):
            continue
        first, *more = wrapped(value_text(name, value), max(10, width - _NAME_WIDTH - 3)) or [""]
        lines.append([(printable(name).ljust(_NAME_WIDTH) + " ", "bold"), (first, "")])
        lines += [[(" " * (_NAME_WIDTH + 1), ""), (line, "")] for line in more]
    return lines


def value_text(name: str, value: Any) -> str:
    """Return a value as people read it: times as dates, durations with units, the rest as it is."""
    if name in _TIMES and isinstance(value, int | float):
        return time_text(value) if value else "none"
    if name in _DURATIONS and isinstance(value, int | float):
        return span_text(value) if value else "unlimited"
    if name == "userid" and isinstance(value, int):
        return f"{user_name(value)} ({value})"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={value_text(str(key), one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return str(value)


def job_sheets(body: Callable[[], Body]) -> list[Sheet]:
    """Return the sheets of a job; `body`: what the follower says of it at the time."""

    def record(width: int) -> Sequence[Sequence[Run]]:
        job = body().get("job")
        if body().get("refused"):
            return _refused(body(), width)
        return _WAITED if job is None else pairs(job, width)

    def why(width: int) -> Sequence[Sequence[Run]]:
        said = body().get("why")
        if not said:
            job = body().get("job")
            text = "it does not wait" if job is not None and job["state"] != "SCHED" else "nothing is said of it"
            return [[(text, "dim")]]
        return pairs(said, width) if isinstance(said, Mapping) else [[(line, "")] for line in wrapped(str(said), width)]

    def events(width: int) -> Sequence[Sequence[Run]]:
        return [_event(event) for event in body().get("events") or ()] or _NONE

    def output(width: int) -> Sequence[Sequence[Run]]:
        return _output(body(), width) or _NONE

    return [Sheet("Record", record), Sheet("Why", why), Sheet("Events", events, True), Sheet("Output", output, True)]


_WAITED: list[list[Run]] = [[("asking...", "dim")]]
_NONE: list[list[Run]] = [[("none", "dim")]]


def _refused(body: Body, width: int) -> list[list[Run]]:
    return [[(line, "bad")] for line in wrapped(str(body["refused"]), width)]


def _event(event: Body) -> list[Run]:
    at = time_text(event["timestamp"], "%m-%d %H:%M:%S")
    context = context_text(event.get("context") or {})
    style = "bad" if event["name"] == "exception" else "bold"
    return [(f"{at} ", "dim"), (printable(str(event["name"])), style), (printable(context), "")]


def _output(body: Body, width: int) -> list[list[Run]]:
    lines: list[list[Run]] = []
    if left_out := body.get("output_left_out"):
        lines.append([(f"{left_out:,} bytes before this are left out", "dim")])
    text: dict[str, str] = {}
    for stream, piece in body.get("output") or ():
        text[stream] = text.get(stream, "") + piece
    for stream, whole in text.items():
        style = "warn" if stream == "stderr" else ""
        for line in printable_lines(whole.removesuffix("\n").expandtabs()).split("\n"):
            lines += [[(part, style)] for part in _cut(line, width - 2)]
    return lines


def _cut(line: str, width: int) -> list[str]:
    width = max(10, width)
    return [line[at : at + width] for at in range(0, len(line), width)] or [""]


def target_sheets(picture: Picture, ranks: Idset, rows: Sequence[JobRow], refused: str = "") -> list[Sheet]:
    """Targets: their state and the jobs on them."""
    machine = picture.machine

    def about(width: int) -> Sequence[Sequence[Run]]:
        states = {word: part & ranks for word, part in machine.states.parts.items() if part & ranks}
        groups = [str(one["name"]) for one in machine.groups if not Idset.parse(one["targets"]).isdisjoint(ranks)]
        part = machine.resources.restrict(ranks)
        busy = sum(int(cores) * len(some & ranks) for cores, some in machine.busy.parts.items())
        shown: dict[str, Any] = {
            "hosts": picture.hosts_text(ranks), "ranks": str(ranks), "group": ", ".join(groups),
            "state": "; ".join(f"{word}: {some if len(states) > 1 else len(some)}" for word, some in states.items()),
            "cores": f"{busy:,} of {part.count('core'):,} in use", "gpus": part.count("gpu") or "",
            "properties": ", ".join(sorted(part.properties)),
        }  # fmt: skip
        shown |= {f"not in use{at or ''}": text for at, text in enumerate(machine.limits_of(ranks))}
        return pairs(shown, width)

    def jobs(width: int) -> Sequence[Sequence[Run]]:
        if refused:
            return [[(line, "bad")] for line in wrapped(refused, width)]
        return [_job(row) for row in rows] or [[("no job is there", "dim")]]

    def limits(width: int) -> Sequence[Sequence[Run]]:
        found = [f"{row['hosts']}: {text(row)}" for rows, text in every for row in rows]
        return [[(line, "")] for text in found for line in wrapped(text, width)] or [[("none", "dim")]]

    every = ((machine.drained, drain_text), (machine.outages, outage_text))
    drains = Sheet(f"All drains, outages and reservations ({len(machine.drained) + len(machine.outages)})", limits)
    return [Sheet("Targets", about), Sheet(f"Jobs ({len(rows)})", jobs), drains]


def _job(row: JobRow) -> list[Run]:
    left = f"{id_text(row):>14} {user_name(row.info['userid']):<8} "
    return [(left, ""), (f"{row.status_abbrev():<2} ", "good"), (f"{span_text(row.runtime_s()):>7} ", ""),
            (printable(f"{row.info['name']} on {row.info.get('nodelist') or row.info.get('ranks')}"), "")]  # fmt: skip


def entry_sheets(entry: Body) -> list[Sheet]:
    """Return a queue or a group."""
    return [Sheet("Record", lambda width: pairs(entry, width))]
