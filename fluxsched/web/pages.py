"""The pages as HTML, readable without the script, and `GET /data/VIEW`: the whole of a view as JSON, compressed.

The names that templates get are described in `Pages.render`; the views come from a follower (`Wire`).

Law: autoescape is on and a name that is missing is an error, so text of users never becomes markup.
"""

from __future__ import annotations

import codecs
import csv
import errno
import gzip
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing, suppress
from io import StringIO
from typing import Any, NamedTuple

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from fluxsched import __version__
from fluxsched.core.idset import Idset
from fluxsched.core.jobfields import WHEN_MAX
from fluxsched.core.jobid import format_f58, parse_jobid
from fluxsched.core.jobspec import Jobspec, parse_sizes
from fluxsched.core.quantities import parse_time_limit
from fluxsched.core.request import Count
from fluxsched.core.role import Role, parse_role
from fluxsched.core.text import printable
from fluxsched.errors import FluxschedError, InvalidValue, LimitExceeded
from fluxsched.protocol.messages.jobs import LIST_START_MAX
from fluxsched.protocol.topics import least_of
from fluxsched.system.clock import SystemClock, local_moment
from fluxsched.views.feeds import ROWS_MAX, ROWS_USUAL
from fluxsched.views.follower import Follower, Subscription, TooManyFeeds, ViewMessage
from fluxsched.views.machine import states_table
from fluxsched.views.words import iso_text, span_text, user_name
from fluxsched.web.access import wants_json


def summary(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Of a whole all figures, of a change those that it has."""
    found: dict[str, Any] = {}
    if "targets" in metrics:
        found["targets"] = metrics["targets"]
    if "cores" in metrics:
        found["cores"] = sum(metrics["cores"].values())
        found["cores_in_use"] = metrics["cores"].get("allocated", 0)
    if "queues" in metrics:
        found["running"] = sum([queue["running"] for queue in metrics["queues"]])
        found["waiting"] = sum([queue["pending"] for queue in metrics["queues"]])
    return found


# ---- connections to the instance

ViewBody = dict[str, Any]

PARAMS_MAX = 32
"""Maximum number of terms of a filter."""
FIGURES = "figures"
"""The view that every page shows at its top."""
NOTICES = "notices"
"""The view of notices of admins, which every page shows, too."""
REFUSED = "refused"
"""The key of a whole that the instance refuses."""
ACTION_TOPICS = {
    "drain": "resource.drain",
    "undrain": "resource.undrain",
    "cancel": "job-manager.cancel",
    "urgency": "job-manager.urgency",
    "raise": "job-manager.raise",
}
"""Topics that the actions of the page call: a user who may call a topic may do the action."""


class InstanceLost(FluxschedError):
    """The instance is gone, or was never there."""

    errnum = errno.ECONNRESET


class ViewRefused(FluxschedError):
    """The instance does not show this: there is no such job, or it is not for this user."""


class About(NamedTuple):
    """The instance, and as whom we are connected to it."""

    name: str = "fluxsched"
    uri: str = ""
    lost: str | None = None
    """Why it is lost; None while it is there."""
    user: str = ""
    role: str = str(Role.GUEST)
    may: tuple[str, ...] = ()
    """The actions that this role may do, guests with jobs of their own."""


class Wire:
    """The views of one instance."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self.about = About()
        """As of the last message."""

    def subscribe(self, view: str, params: Mapping[str, str]) -> Subscription:
        """Follow a view. Raises InvalidValue for one that there is not, and for a filter that is none."""
        if len(params) > PARAMS_MAX:
            raise InvalidValue(f"a filter has at most {PARAMS_MAX} terms, this has {len(params)}")
        return self._follower.subscribe(view, params)

    async def snapshot(self, view: str, params: Mapping[str, str]) -> ViewBody:
        """All of a view now. Raises FluxschedError: ViewRefused by the instance, InstanceLost when there is none."""
        async with self.subscribe(view, params) as messages:
            async for message in messages:
                self.note(message)
                if message.kind == "whole":
                    if REFUSED in message.body:
                        raise ViewRefused(str(message.body[REFUSED]), message.body.get("errnum"))
                    return {"now": SystemClock.wall_s(), **message.body}
                if self.about.lost is not None:
                    raise InstanceLost(self.about.lost)
        raise InstanceLost("the page is being closed")

    async def top(self) -> ViewBody:
        """Return what the top of each page has: `figures`, None where this user may not have them, and `notices`."""
        found: ViewBody = {FIGURES: None, NOTICES: []}
        with suppress(ViewRefused):
            found[FIGURES] = summary(await self.snapshot(FIGURES, {}))
        with suppress(ViewRefused):  # by an instance that has none yet
            found[NOTICES] = (await self.snapshot(NOTICES, {}))[NOTICES]
        return found

    async def ask(self, topic: str, payload: ViewBody) -> ViewBody:
        """One question. Raises FluxschedError, the instance's own."""
        return await self._follower.ask(topic, payload)

    def stream(self, topic: str, payload: ViewBody) -> AsyncGenerator[ViewBody, None]:
        """Return the answers of one streaming request. Raises FluxschedError, the instance's own."""
        return self._follower.stream(topic, payload)

    def note(self, message: ViewMessage) -> None:
        """Take note of a message about the instance."""
        if message.kind == "instance":
            self.about = about(message.body, self.about)

    def json(self, view: str, message: ViewMessage) -> bytes:
        """Return the body as it is sent, written once for all viewers of a message.

        Wholes tell the time here, by which ages are to be shown: a viewer's clock may differ, or step.
        """
        self.note(message)
        if view == FIGURES and message.kind != "instance":
            return as_json(summary(message.body))
        if message.kind == "change" or not message.body or "now" in message.body:
            return message.json
        return b'{"now":%.3f,' % SystemClock.wall_s() + message.json[1:]  # what all viewers share is not written again


def about(said: Mapping[str, Any], before: About) -> About:
    """Return the contents of an `instance` message; of one that is lost all but that is as it was."""
    if said.get("instance") == "lost":
        return before._replace(lost=str(said.get("why") or "it does not answer"))
    role = parse_role(said.get("role") or str(Role.OWNER))
    may = tuple(name for name, topic in ACTION_TOPICS.items() if role >= least_of(topic, private_jobs=False)[0])
    return About(str(said["hostname"]) if said.get("hostname") else _name(said), str(said["uri"]), None,
                 user_name(int(said.get("userid") or said["owner"])), str(role), may)  # fmt: skip


def _name(said: Mapping[str, Any]) -> str:
    return f"{user_name(int(said['owner']))}'s instance"


def as_json(body: object) -> bytes:
    """Return compact JSON without line ends."""
    return msgspec.json.encode(body)


# ---- pages

NAVIGATION = {
    "machine": "Machine", "jobs": "Jobs", "queues": "Queues", "timeline": "Timeline", "groups": "Groups",
    "shares": "Shares", "history": "History",
}  # fmt: skip
"""The pages and their titles."""
IDSET_CHARS_MAX = 400
"""Of an idset in a table without script; of a big machine it is long."""
TIMES = ("t_submit", "t_depend", "t_run", "t_cleanup", "t_inactive", "estimate", "expiration")
"""Keys of a job that are times."""
CSV_COLUMNS = (
    "jobid", "status", "user", "name", "queue", "bank", "ntasks", "nnodes", "ncores", "t_submit", "t_run", "t_inactive",
    "duration", "urgency", "nodelist", "reason",
)  # fmt: skip
"""Keys of a job that `/jobs.csv` has."""
FORMULA_SIGNS = ("=", "+", "-", "@")
"""Beginnings of text that spreadsheets take for a formula."""
REFUSED_STATUS = {errno.ENOENT: 404, errno.EPERM: 403}
"""Of what the instance does not show."""
DOWNLOAD_BYTES_MAX = 1 << 26
"""Of a job's output in one file; `fluxsched job output` prints more."""
CANNOT_BE_SHOWN = "This cannot be shown"
"""Title of a page that is refused."""
WHEN_TITLE = "When would it start?"
WALL = "wall"
"""Parameter of a view that is shown larger and without controls."""
LOST_S = 3
"""Interval at which a page without its instance looks for it (seconds)."""


class WhenRow(NamedTuple):
    """A size about which is asked: its nodes, and its time limit (seconds, 0.0 for none)."""

    nodes: str
    limit_s: float
    jobspec: ViewBody


def sizes_of(given: Mapping[str, str]) -> list[WhenRow]:
    """Return the sizes that the form has: `nodes` and `limit` as `submit` has them, `cores` a node, `queue`, `bank`.

    Raises InvalidValue naming what is wrong.
    """
    sizes = parse_sizes(",".join(given["nodes"].replace(",", " ").split()))
    if len(sizes) > WHEN_MAX:
        raise LimitExceeded(f"{len(sizes)} sizes, the limit is {WHEN_MAX}: ask about fewer at a time")
    cores = given.get("cores", "").strip()
    if cores and not (cores.isascii() and cores.isdecimal() and len(cores) < 10 and int(cores)):
        raise InvalidValue(f"cores {cores[:20]!r} is not a number of cores: leave it empty for whole nodes")
    usual_s, found = parse_time_limit(given.get("limit", "").strip() or "0"), []
    for nodes, limit_s in sizes:
        made = Jobspec.from_command(
            ["true"], nodes=nodes, cores_per_task=int(cores or 1), exclusive=not cores,
            duration_s=usual_s if limit_s is None else limit_s, queue=given.get("queue", "").strip() or None,
            bank=given.get("bank", "").strip() or None,
        )  # fmt: skip
        found.append(WhenRow(str(Count.parse(nodes)), made.duration_s, made.to_json()))
    return found


def templates() -> Environment:
    """All templates, with what they use."""
    found = Environment(
        loader=PackageLoader("fluxsched.web"), autoescape=True, undefined=StrictUndefined, auto_reload=False,
        trim_blocks=True,
    )  # fmt: skip
    found.filters |= {"moment": local_moment, "duration": span_text, "size": _size, "printable": printable}
    found.globals |= {"TIMES": TIMES, "ROWS_USUAL": ROWS_USUAL, "LIST_START_MAX": LIST_START_MAX}
    return found


def csv_text(jobs: Iterable[Mapping[str, Any]]) -> str:
    """Return jobs as CSV (RFC 4180) with a header; times are ISO 8601 with an offset.

    Text of users that a spreadsheet would take for a formula gets an apostrophe in front.
    """
    file = StringIO()
    writer = csv.writer(file)
    writer.writerow(CSV_COLUMNS)
    for job in jobs:
        reason = "" if job.get("reason") == job.get("nodelist") else job.get("reason")
        row = {
            **job,
            "reason": reason,
            **{key: job.get(key) or job.get(f"{key[1:]}_asked") for key in ("nnodes", "ncores")},
        }
        writer.writerow([_csv_cell(key, row.get(key)) for key in CSV_COLUMNS])
    return file.getvalue()


def _csv_cell(key: str, value: Any) -> Any:
    if key in TIMES:
        return iso_text(value) if value else ""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(FORMULA_SIGNS) else text


class Pages:
    """Pages that are rendered from templates."""

    def __init__(self, wire: Wire, csrf: str) -> None:
        """`csrf`: the anti-forgery token of forms; empty for viewers who change nothing."""
        self._wire, self._csrf = wire, csrf
        self._templates = templates()

    def routes(self) -> list[Route]:
        """Return the routes of all pages."""
        found = [Route(f"/{view}", self._page) for view in NAVIGATION]
        found += [
            Route("/jobs.csv", self._csv),
            Route("/jobs/{id}", self._job),
            Route("/jobs/{id}/output", self._output),
            Route("/when", self._when),
            Route("/", _to_machine),
            Route("/static/states.css", _colours),
        ]
        return found

    def render(self, name: str, view: str, title: str, status: int = 200, **more: object) -> HTMLResponse:
        """Return a template with what all of them get."""
        about = self._wire.about
        context = {
            "view": view,
            "title": title,
            "csrf": self._csrf,
            "is_guest": not self._csrf,
            "views": [{"name": name, "title": title} for name, title in NAVIGATION.items()],
            "instance": {"name": about.name, "uri": about.uri, "lost": about.lost},
            "states": [{"state": each["word"], **each} for each in states_table()],
            "may": about.may if self._csrf else (),
            "user": about.user,
            "role": about.role,
            FIGURES: None,
            NOTICES: [],
            "filters": {},
            "wall": False,
            "now_s": SystemClock.wall_s(),
            "version": __version__,
        }
        return HTMLResponse(self._templates.get_template(name).render(context | more), status)

    def error(self, headers: Headers, title: str, words: str, status: int, back: str | None = None) -> Response:
        """Return an error as a page, or as JSON for a script."""
        if wants_json(headers):
            return JSONResponse({"error": words}, status)
        return self.render("error.html", "error", title, status, message=words, back=back)

    def fault(
        self, headers: Headers, fault: FluxschedError, back: str | None = None, title: str = CANNOT_BE_SHOWN
    ) -> Response:
        """Return the response to a fault of the instance or a filter; a page whose instance is lost looks for it."""
        if isinstance(fault, InstanceLost):
            response = self.error(headers, "The instance does not answer", str(fault), 503)
            response.headers["refresh"] = str(LOST_S)
            return response
        return self.error(headers, title, str(fault), _status(fault), back)

    async def _page(self, request: Request) -> Response:
        return await self._show(request, request.url.path[1:], dict(request.query_params))

    async def _job(self, request: Request) -> Response:
        return await self._show(request, "job", {"id": request.path_params["id"]})

    async def _when(self, request: Request) -> Response:
        """Show when jobs of some sizes would start; nothing is submitted."""
        given = dict(request.query_params)
        try:
            asked = [] if not given.get("nodes") else sizes_of(given)
            said: ViewBody = {"estimates": []}
            if asked:
                jobspecs = [each.jobspec for each in asked]
                said = await self._wire.ask("job-manager.when", {"jobspecs": jobspecs})
            top = await self._wire.top()
        except FluxschedError as fault:
            return self.fault(request.headers, fault, "/when")
        rows = list(zip(asked, said["estimates"], strict=True))
        return self.render("when.html", "when", WHEN_TITLE, rows=rows, filters=given, **top)

    async def _output(self, request: Request) -> Response:
        """Send a job's output so far as a file: the bytes as they were written, in the order of their arrival."""
        try:
            jobid = parse_jobid(request.path_params["id"])
            answers = self._wire.stream("job-manager.output", {"id": jobid})
            first = await anext(answers, None)
        except FluxschedError as fault:
            return self.fault(request.headers, fault, f"/jobs/{request.path_params['id']}")
        name = f"{format_f58(jobid, ascii=True)}.out"
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return StreamingResponse(_output_bytes(first, answers), 200, headers, "application/octet-stream")

    async def _csv(self, request: Request) -> Response:
        """Send the jobs that pass a filter as CSV, as many as a view has at most; the name of the file says of how
        many they are.
        """
        params = {**request.query_params, "max_entries": str(ROWS_MAX)}
        params.pop("start", None)
        try:
            found = await self._wire.snapshot("jobs", params)
        except FluxschedError as fault:
            return self.fault(request.headers, fault, "/jobs")
        jobs, left = found["jobs"], found.get("left_out") or 0
        name = f"jobs-{len(jobs)}-of-{len(jobs) + left}.csv" if left else "jobs.csv"
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(f"{codecs.BOM_UTF8.decode()}{csv_text(jobs)}", 200, headers, "text/csv")

    async def _show(self, request: Request, view: str, params: dict[str, str]) -> Response:
        title, wall = NAVIGATION.get(view) or params["id"], params.pop(WALL, None) is not None
        try:
            data = await self._wire.snapshot(view, params)
            top = await self._wire.top()
        except FluxschedError as fault:
            back = f"/{view}" if params and view in NAVIGATION else None
            return self.fault(request.headers, fault, back)
        data = _summary(data) if view == "machine" else data
        return self.render(f"{view}.html", view, title, data=data, filters=params, wall=wall, **top)


async def _output_bytes(first: ViewBody | None, answers: AsyncGenerator[ViewBody, None]) -> AsyncIterator[bytes]:
    left, answer = DOWNLOAD_BYTES_MAX, first
    async with aclosing(answers):  # the stream ends at the instance at once, not when it is collected
        while answer is not None:
            yield answer["data"][:left]
            left -= len(answer["data"])
            if left < 0:
                yield b"\n[there is more: `fluxsched job output` prints all of it]\n"
                return
            answer = await anext(answers, None)


def _status(fault: FluxschedError) -> int:
    """Return the HTTP status of a refusal."""
    if isinstance(fault, TooManyFeeds):
        return 503
    return REFUSED_STATUS.get(fault.errnum, 400)


def _summary(machine: ViewBody) -> ViewBody:
    """Return the parts that a table of states needs; the script requests the rest."""
    states = {state: _shortened(ranks) for state, ranks in machine["states"].items()}
    return {"states": states, **{name: machine[name] for name in ("drained", "outages", "groups")}}


def _shortened(ranks: str) -> str:
    if len(ranks) <= IDSET_CHARS_MAX:
        return ranks
    return ranks[:IDSET_CHARS_MAX].rpartition(",")[0] + ", …"


def _size(ranks: str) -> int:
    return len(Idset.parse(ranks))


async def _to_machine(request: Request) -> Response:
    return RedirectResponse("/machine", 303)


async def _colours(request: Request) -> Response:
    """Return the colours of states, from the one table of them."""
    light = "".join(f"--state-{each['word']}:{each['light']};" for each in states_table())
    dark = "".join(f"--state-{each['word']}:{each['dark']};" for each in states_table())
    own = "".join(
        f".state-{each['word']}{{--state:var(--state-{each['word']})}}" for each in states_table()
    )  # fmt: skip
    text = (
        f":root{{{light}}}@media(prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}"
        f":root[data-theme=dark]{{{dark}}}{own}"
    )
    return Response(text, media_type="text/css", headers={"cache-control": "no-cache"})


# ---- views as JSON

GZIP_BYTES_MIN = 1024
"""Less is sent as it is."""
GZIP_LEVEL = 5
"""Of a machine of 131,072 targets more would save a tenth, and take three times as long."""


class Data:
    """Handler of `GET /data/VIEW` requests."""

    def __init__(self, wire: Wire, pages: Pages) -> None:
        self._wire, self._pages = wire, pages

    async def handle(self, request: Request) -> Response:
        """Answer a request with the whole view."""
        try:
            body = await self._wire.snapshot(request.path_params["view"], dict(request.query_params))
        except FluxschedError as fault:
            return self._pages.fault(request.headers, fault)
        data, headers = as_json(body), {"vary": "accept-encoding"}
        if len(data) >= GZIP_BYTES_MIN and "gzip" in request.headers.get("accept-encoding", ""):
            data = gzip.compress(data, GZIP_LEVEL)
            headers["content-encoding"] = "gzip"
        return Response(data, media_type="application/json", headers=headers)
