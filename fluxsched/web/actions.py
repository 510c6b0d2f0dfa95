"""`POST /actions/NAME`: changes from the page, confirmed first, then sent to the instance.

The instance decides whether it may be, and records who did it: the user of this process, by whose connection it comes,
with a note that it was done on the page where there is room for one.

Law: an action is done only with our own anti-forgery token, and once it was confirmed. A body that is longer, slower or
anything else than a form is refused before it is read to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from fluxsched.core.constraint import split_targets
from fluxsched.core.jobid import format_f58, parse_jobid
from fluxsched.core.text import some_of
from fluxsched.errors import FluxschedError, InvalidValue, LimitExceeded
from fluxsched.web.access import NOT_DONE, Secrets, refusal, wants_json
from fluxsched.web.pages import ACTION_TOPICS, Pages, Wire

BODY_BYTES_MAX = 65_536
"""Of a form: a thousand job ids."""
BODY_S = 10.0
"""For how long a form may take to arrive (seconds)."""
FIELDS_MAX = 256
"""Of a form: those of a page of jobs, each with a box."""
TOGETHER = "ids"
"""The field whose values of one form are one list."""
_KIND = "application/x-www-form-urlencoded"


class TooSlow(InvalidValue):
    """A form that did not arrive within BODY_S."""


async def fields_of(request: Request) -> dict[str, str]:
    """Return the fields of a form, the last of each name but TOGETHER. Raises InvalidValue."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _KIND:
        raise InvalidValue(f"the body is {kind or 'of no type'}, not {_KIND}")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > BODY_BYTES_MAX:
                    raise LimitExceeded(f"a form has {BODY_BYTES_MAX} bytes at most")
    except TimeoutError:
        raise TooSlow(f"the form did not arrive within {BODY_S:g} s") from None
    except ClientDisconnect:
        raise InvalidValue("the form did not arrive to its end") from None
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except UnicodeDecodeError:
        raise InvalidValue("the form is not UTF-8 text") from None
    except ValueError:
        raise LimitExceeded(f"a form has {FIELDS_MAX} fields at most") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        found[name] = f"{found[name]} {value}" if name == TOGETHER and name in found else value
    return found


# ---- actions

IDS_MAX = 1000
"""Jobs of one action; `fluxsched cancel` selects more."""
URGENCY_MAX = 31
"""RFC 30 has the job before all others then."""
FAULTS_MAX = 10
"""Refusals that one answer names."""
NOTE = "on the page"
"""Note in the event log that names the page as the place where a job was canceled."""

Fields = Mapping[str, str]


Deed = Callable[[Wire], Awaitable[str]]
"""Asks the instance, and returns what was done in words."""


class Action(NamedTuple):
    """Something that the page can do: its words, its fields, and what it does with them.

    `prepare` raises InvalidValue for fields that are wrong in themselves.
    """

    title: str
    question: str
    fields: tuple[str, ...]
    prepare: Callable[[Fields], Deed]


def _of_targets(name: str, done: str) -> Callable[[Fields], Deed]:
    """Drain, and the reverse; `done` are the words for it."""

    def prepare(fields: Fields) -> Deed:
        targets = _targets(fields)
        given = {field: fields[field] for field in ("reason", "mode") if fields.get(field)}

        async def do(wire: Wire) -> str:
            await wire.ask(ACTION_TOPICS[name], {"targets": targets, **given})
            return done.replace("{}", targets)

        return do

    return prepare


def _cancel(fields: Fields) -> Deed:
    note = f"{fields['note']} ({NOTE})" if fields.get("note") else NOTE
    return _of_jobs("cancel", fields, {"note": note}, "canceled {}")


def _raise(fields: Fields) -> Deed:
    kind = fields.get("type", "").strip()
    if not kind or not kind.isprintable() or " " in kind:
        raise InvalidValue(f"type {kind[:20]!r} is not one word, such as `checkpoint`")
    more = {"type": kind, "severity": 0, "note": fields.get("note") or NOTE}
    return _of_jobs("raise", fields, more, f"exception {kind} raised on " + "{}")


def _urgency(fields: Fields) -> Deed:
    text = fields.get("urgency", "").strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= 2 and int(text) <= URGENCY_MAX):
        raise InvalidValue(f"urgency {text[:20]!r} is not a number from 0 (hold) to {URGENCY_MAX} (expedite)")
    return _of_jobs("urgency", fields, {"urgency": int(text)}, f"urgency {int(text)} for " + "{}")


ACTIONS: Mapping[str, Action] = {
    "drain": Action("Drain targets", "Running jobs continue; no new ones start there.",
                    ("targets", "reason", "mode"), _of_targets("drain", "drained {}")),
    "undrain": Action("Return targets to service", "Jobs may start there again.",
                      ("targets", "reason", "mode"), _of_targets("undrain", "{} back in service")),
    "cancel": Action("Cancel jobs", "What runs is ended, what waits never starts.", ("ids", "note"), _cancel),
    "raise": Action("Raise an exception", "It ends the jobs.", ("ids", "type", "note"), _raise),
    "urgency": Action("Change the urgency", "0 holds a job, 31 puts it before all others.",
                      ("ids", "urgency"), _urgency),
}  # fmt: skip


class Actions:
    """The handler of all of them."""

    def __init__(self, wire: Wire, pages: Pages, secrets: Secrets) -> None:
        self._wire, self._pages, self._secrets = wire, pages, secrets

    async def handle(self, request: Request) -> Response:
        """Ask, or do it, and say what was done."""
        name, headers = request.path_params["name"], request.headers
        action = ACTIONS.get(name)
        if action is None:
            return self._pages.error(headers, "No such action", f"there are {', '.join(ACTIONS)}", 404)
        try:
            given = await fields_of(request)
        except InvalidValue as fault:
            status = 408 if isinstance(fault, TooSlow) else 413 if isinstance(fault, LimitExceeded) else 400
            return self._pages.error(headers, "Not done", str(fault), status)
        if not self._secrets.is_csrf(given.get("csrf") or headers.get("x-csrf", "")):
            words = "The form has no valid anti-forgery token, so nothing was done. Go back and reload the page."
            return refusal(headers, words, NOT_DONE)
        fields = {field: given[field] for field in action.fields if given.get(field)}
        back = _back(fields)
        try:
            do = action.prepare(fields)
            if given.get("confirmed") != "yes":
                await _check_known(self._wire, fields)
        except FluxschedError as fault:
            return self._pages.fault(headers, fault, back)
        if given.get("confirmed") != "yes":
            if wants_json(headers):
                return JSONResponse({"error": "not confirmed: send confirmed=yes"}, 400)
            return self._pages.render(
                "confirm.html", "confirm", action.title, action=name, question=action.question,
                fields=list(fields.items()), back=back,
            )  # fmt: skip
        try:
            said = await do(self._wire)
        except FluxschedError as fault:
            return self._pages.fault(headers, fault, back)
        return JSONResponse({"said": said}) if wants_json(headers) else RedirectResponse(back, 303)


def _targets(fields: Fields) -> str:
    targets = fields.get("targets", "").strip()
    if not targets:
        raise InvalidValue("name targets: ranks (0-3,7), hosts (node[0-3]) or both")
    split_targets(targets)
    return targets


def _jobids(fields: Fields) -> list[int]:
    texts = fields.get("ids", "").replace(",", " ").split()
    if not texts:
        raise InvalidValue("name jobs: ids, with commas or spaces between them")
    if len(texts) > IDS_MAX:
        raise LimitExceeded(f"{len(texts)} jobs, the limit is {IDS_MAX}: select them with `fluxsched cancel`")
    return list(dict.fromkeys([parse_jobid(text) for text in texts]))


async def _check_known(wire: Wire, fields: Fields) -> None:
    """Check that such targets and jobs exist: who is asked to confirm should know before that it will be refused."""
    if "targets" in fields:
        await wire.ask("job-manager.running", {"targets": fields["targets"], "max_entries": 1})
    if "ids" in fields:
        wanted = _jobids(fields)
        found = (await wire.ask("job-manager.list", {"ids": wanted, "max_entries": len(wanted)}))["jobs"]
        if unknown := set(wanted) - {job["id"] for job in found}:
            raise InvalidValue(f"no such job: {some_of([format_f58(jobid) for jobid in sorted(unknown)])}")


def _of_jobs(name: str, fields: Fields, more: dict[str, Any], done: str) -> Deed:
    """Ask for all; it raises one error with the words of all refusals."""
    jobids = _jobids(fields)

    async def do(wire: Wire) -> str:
        faults = []
        for jobid in jobids:
            try:
                await wire.ask(ACTION_TOPICS[name], {"id": jobid, **more})
            except FluxschedError as fault:
                shown, text = format_f58(jobid), str(fault)
                faults.append(text if shown in text or len(jobids) == 1 else f"{shown}: {text}")
        if faults:
            left = len(faults) - FAULTS_MAX
            raise InvalidValue("; ".join(faults[:FAULTS_MAX]) + (f"; and {left} more" if left > 0 else ""))
        return done.replace("{}", format_f58(jobids[0]) if len(jobids) == 1 else f"{len(jobids)} jobs")

    return do


def _back(fields: Fields) -> str:
    """Return the page from which a form without script was sent."""
    ids = fields.get("ids", "")
    if not ids:
        return "/machine"
    return f"/jobs/{format_f58(parse_jobid(ids))}" if _is_jobid(ids) else "/jobs"


def _is_jobid(text: str) -> bool:
    try:
        parse_jobid(text)
    except InvalidValue:
        return False
    return True
