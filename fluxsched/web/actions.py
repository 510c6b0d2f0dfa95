"""`POST /actions/NAME`: what may be changed from the page, asked first, then said to the instance.

The instance decides whether it may be, and records who did it: the user of this process, by whose connection it comes,
with a note that it was done on the page where there is room for one.

Law: an action is done only with our own anti-forgery token, and once it was confirmed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from fluxsched.core.jobid import format_f58, parse_jobid
from fluxsched.errors import FluxschedError, InvalidValue, LimitExceeded
from fluxsched.web.access.forms import fields_of
from fluxsched.web.access.guard import refusal, wants_json
from fluxsched.web.access.secrets import Secrets
from fluxsched.web.pages import Pages
from fluxsched.web.wire import ACTION_TOPICS, Wire

IDS_MAX = 1000
"""Jobs of one action; `fluxsched cancel` selects more."""
FAULTS_MAX = 10
"""Refusals that one answer names."""
NOTE = "on the page"
"""What the event log says of where a job was canceled."""

Fields = Mapping[str, str]


class Action(NamedTuple):
    """Something that the page can do: its words, its fields, and how it is done, which returns what was."""

    title: str
    question: str
    fields: tuple[str, ...]
    do: Callable[[Wire, Fields], Awaitable[str]]


async def _drain(wire: Wire, fields: Fields) -> str:
    given = {name: fields[name] for name in ("reason", "mode") if fields.get(name)}
    await wire.ask(ACTION_TOPICS["drain"], {"targets": _targets(fields), **given})
    return f"drained {fields['targets'].strip()}"


async def _undrain(wire: Wire, fields: Fields) -> str:
    given = {name: fields[name] for name in ("reason", "mode") if fields.get(name)}
    await wire.ask(ACTION_TOPICS["undrain"], {"targets": _targets(fields), **given})
    return f"{fields['targets'].strip()} back in service"


async def _cancel(wire: Wire, fields: Fields) -> str:
    note = f"{fields['note']} ({NOTE})" if fields.get("note") else NOTE
    return "canceled " + await _each(wire, ACTION_TOPICS["cancel"], fields, {"note": note})


async def _raise(wire: Wire, fields: Fields) -> str:
    more = {"type": fields.get("type", ""), "severity": 0, "note": fields.get("note") or NOTE}
    return f"exception {more['type']} raised on " + await _each(wire, ACTION_TOPICS["raise"], fields, more)


async def _urgency(wire: Wire, fields: Fields) -> str:
    text = fields.get("urgency", "").strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= 2):
        raise InvalidValue(f"urgency {text[:20]!r} is not a number from 0 (hold) to 31 (expedite)")
    done = await _each(wire, ACTION_TOPICS["urgency"], fields, {"urgency": int(text)})
    return f"urgency {int(text)} for {done}"


ACTIONS: Mapping[str, Action] = {
    "drain": Action("Drain targets", "Running jobs continue; no new ones start there.",
                    ("targets", "reason", "mode"), _drain),
    "undrain": Action("Return targets to service", "Jobs may start there again.",
                      ("targets", "reason", "mode"), _undrain),
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
            status = 413 if isinstance(fault, LimitExceeded) else 400
            return self._pages.error(headers, "Not done", str(fault), status)
        if not self._secrets.is_csrf(given.get("csrf") or headers.get("x-csrf", "")):
            return refusal(headers, "The form has no valid anti-forgery token, so nothing was done. Reload the page.")
        fields = {field: given[field] for field in action.fields if given.get(field)}
        back = _back(fields)
        if given.get("confirmed") != "yes":
            if wants_json(headers):
                return JSONResponse({"error": "not confirmed: send confirmed=yes"}, 400)
            return self._pages.render(
                "confirm.html", "confirm", action.title, action=name, question=action.question,
                fields=list(fields.items()), back=back,
            )  # fmt: skip
        try:
            said = await action.do(self._wire, fields)
        except FluxschedError as fault:
            return self._pages.fault(headers, fault, back)
        return JSONResponse({"said": said}) if wants_json(headers) else RedirectResponse(back, 303)


def _targets(fields: Fields) -> str:
    targets = fields.get("targets", "").strip()
    if not targets:
        raise InvalidValue("name targets: ranks (0-3,7), hosts (node[0-3]) or both")
    return targets


def _jobids(fields: Fields) -> list[int]:
    texts = fields.get("ids", "").replace(",", " ").split()
    if not texts:
        raise InvalidValue("name jobs: ids, with commas or spaces between them")
    if len(texts) > IDS_MAX:
        raise LimitExceeded(f"{len(texts)} jobs, the limit is {IDS_MAX}: select them with `fluxsched cancel`")
    return [parse_jobid(text) for text in texts]


async def _each(wire: Wire, topic: str, fields: Fields, more: dict[str, Any]) -> str:
    """Ask for all; raises one error with the words of all refusals."""
    jobids, faults = _jobids(fields), []
    for jobid in jobids:
        try:
            await wire.ask(topic, {"id": jobid, **more})
        except FluxschedError as fault:
            name, text = format_f58(jobid), str(fault)
            faults.append(text if name in text or len(jobids) == 1 else f"{name}: {text}")
    if faults:
        left = len(faults) - FAULTS_MAX
        raise InvalidValue("; ".join(faults[:FAULTS_MAX]) + (f"; and {left} more" if left > 0 else ""))
    return format_f58(jobids[0]) if len(jobids) == 1 else f"{len(jobids)} jobs"


def _back(fields: Fields) -> str:
    """Where a form without script came from."""
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
