"""What each key does: a function of the application for each action of `keys.py`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.core.targets import parse_targets
from fluxsched.core.text import printable
from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.runtime.system.clock import SystemClock
from fluxsched.screen import actions
from fluxsched.screen.details import entry_sheets, job_sheets, target_sheets
from fluxsched.screen.keys import KEYS, PANES
from fluxsched.screen.panes.columns import id_text
from fluxsched.screen.panes.look import Run, wrapped
from fluxsched.screen.panes.prompt import OfferedChoice, Question
from fluxsched.screen.panes.reader import Sheet
from fluxsched.screen.panes.table import TablePane
from fluxsched.screen.parts import ScreenParts
from fluxsched.screen.picture import Picture
from fluxsched.views.feed import after
from fluxsched.views.jobs import JobRow
from fluxsched.views.words import time_text, user_name

SORT_KEYS = "123456789abcdefghijklmnop"
JOBS_ON_MAX = 100
"""Jobs that are listed of a target."""
_USER_OPTIONS = ("-u", "--user")
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
    """Which targets are under the cursor, and what is to be said of them."""
    if not ranks:
        return ""
    states = [word for word, part in picture.machine.states.parts.items() if not part.isdisjoint(ranks)]
    drain = picture.drain_of(ranks.min())
    reason = f"  {drain[0] or 'no reason'}{f' (by {drain[1]})' if drain[1] else ''}" if drain else ""
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
        if text:
            _find(app, go_on=False)
        return ""

    label = "Hosts or ranks" if app.pane == "machine" else "Text"
    app.ask(Question(f"Search in {app.pane}", perform, field=label, initial=app.searched))


def _search_next(app: ScreenParts) -> None:
    if not app.searched:
        _search(app)
    else:
        _find(app, go_on=True)


def _find(app: ScreenParts, *, go_on: bool) -> None:
    pane = app.panes[app.pane]
    if pane is app.machine:
        if go_on and app.machine.next_found():
            return
        resources = app.machine.machine.resources
        app.machine.seek(parse_targets(app.searched, resources))
    elif not pane.find(app.searched, go_on=go_on):  # type: ignore[attr-defined]
        raise InvalidValue(f"{printable(app.searched)} is nowhere in {app.pane}")


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
    app.ask(actions.cancelling(app.follower.ask, _rows(app)))


def _hold(app: ScreenParts) -> None:
    app.ask(actions.holding(app.follower.ask, _rows(app)))


def _urgency(app: ScreenParts) -> None:
    app.ask(actions.urgency_set(app.follower.ask, _rows(app), app.settings.parse_urgency))


def _urgency_less(app: ScreenParts) -> None:
    app.ask(actions.urgency_moved(app.follower.ask, _rows(app), -1))


def _urgency_more(app: ScreenParts) -> None:
    app.ask(actions.urgency_moved(app.follower.ask, _rows(app), 1))


def _drain(app: ScreenParts) -> None:
    _with_targets(app, "Drain which targets?", lambda *named: app.ask(actions.draining(app.follower.ask, *named)))


def _undrain(app: ScreenParts) -> None:
    _with_targets(app, "Return which targets?", lambda *named: app.ask(actions.undraining(app.follower.ask, *named)))


def _with_targets(app: ScreenParts, title: str, then: Callable[[str, str], None]) -> None:
    """Those under the cursor or tagged; else of the job under it, or those that are typed."""
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
    "search_next": _search_next, "filter": _filter, "user": _user, "every_state": _every_state, "sort": _sort,
    "invert": _invert, "arrange": _arrange, "tag": _tag, "cancel": _cancel, "hold": _hold, "urgency": _urgency,
    "urgency_less": _urgency_less, "urgency_more": _urgency_more, "drain": _drain, "undrain": _undrain,
    "trace": _trace, "zoom": _zoom, "escape": _escape, "leave": _leave,
}  # fmt: skip
