"""The pages as HTML, readable without the script, and `GET /data/VIEW`: the whole of a view as JSON, compressed.

The names that templates get are described in `Pages.render`; the views come from a follower (`Wire`).

Law: autoescape is on and a name that is missing is an error, so text of users never becomes markup.
"""

from __future__ import annotations

import errno
import gzip
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from fluxsched import __version__
from fluxsched.core.idset import Idset
from fluxsched.core.role import Role, parse_role
from fluxsched.core.text import printable
from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.protocol.topics import least_of
from fluxsched.system.clock import SystemClock, local_moment
from fluxsched.views.follower import Follower, Subscription, TooManyFeeds, ViewMessage
from fluxsched.views.machine import states_table
from fluxsched.views.words import duration_text, user_name
from fluxsched.web.access import Secrets, wants_json


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

    async def figures(self) -> ViewBody | None:
        """Return the summary for the top of a page; None where this user may not have it."""
        try:
            return summary(await self.snapshot(FIGURES, {}))
        except ViewRefused:
            return None

    async def ask(self, topic: str, payload: ViewBody) -> ViewBody:
        """One question. Raises FluxschedError, the instance's own."""
        return await self._follower.ask(topic, payload)

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
    "machine": "Machine", "jobs": "Jobs", "timeline": "Timeline", "groups": "Groups", "shares": "Shares",
    "history": "History",
}  # fmt: skip
"""The pages and their titles."""
IDSET_CHARS_MAX = 400
"""Of an idset in a table without script; of a big machine it is long."""
TIMES = ("t_submit", "t_depend", "t_run", "t_cleanup", "t_inactive", "estimate", "expiration")
"""Keys of a job that are times."""
REFUSED_STATUS = {errno.ENOENT: 404, errno.EPERM: 403}
"""Of what the instance does not show."""
LOST_S = 3
"""Interval at which a page without its instance looks for it (seconds)."""


def templates() -> Environment:
    """All templates, with what they use."""
    found = Environment(
        loader=PackageLoader("fluxsched.web"), autoescape=True, undefined=StrictUndefined, auto_reload=False,
        trim_blocks=True,
    )  # fmt: skip
    found.filters |= {"moment": local_moment, "duration": duration_text, "size": _size, "printable": printable}
    found.globals["TIMES"] = TIMES
    return found


class Pages:
    """Pages that are rendered from templates."""

    def __init__(self, wire: Wire, secrets: Secrets) -> None:
        self._wire, self._secrets = wire, secrets
        self._templates = templates()

    def routes(self) -> list[Route]:
        """Return the routes of all pages."""
        found = [Route(f"/{view}", self._page) for view in NAVIGATION]
        found += [Route("/jobs/{id}", self._job), Route("/", _to_machine), Route("/static/states.css", _colours)]
        return found

    def render(self, name: str, view: str, title: str, status: int = 200, **more: object) -> HTMLResponse:
        """Return a template with what all of them get."""
        about = self._wire.about
        context = {
            "view": view,
            "title": title,
            "csrf": self._secrets.csrf,
            "views": [{"name": name, "title": title} for name, title in NAVIGATION.items()],
            "instance": {"name": about.name, "uri": about.uri, "lost": about.lost},
            "states": [{"state": each["word"], **each} for each in states_table()],
            "may": about.may,
            "user": about.user,
            "role": about.role,
            "figures": None,
            "filters": {},
            "now_s": SystemClock.wall_s(),
            "version": __version__,
        }
        return HTMLResponse(self._templates.get_template(name).render(context | more), status)

    def error(self, headers: Headers, title: str, words: str, status: int, back: str | None = None) -> Response:
        """Return an error as a page, or as JSON for a script."""
        if wants_json(headers):
            return JSONResponse({"error": words}, status)
        return self.render("error.html", "error", title, status, message=words, back=back)

    def fault(self, headers: Headers, fault: FluxschedError, back: str | None = None) -> Response:
        """Return the response to a fault of the instance or a filter; a page whose instance is lost looks for it."""
        if isinstance(fault, InstanceLost):
            response = self.error(headers, "The instance does not answer", str(fault), 503)
            response.headers["refresh"] = str(LOST_S)
            return response
        title = "This cannot be shown" if back is None else "Not done"
        return self.error(headers, title, str(fault), _status(fault), back)

    async def _page(self, request: Request) -> Response:
        return await self._show(request, request.url.path[1:], dict(request.query_params))

    async def _job(self, request: Request) -> Response:
        return await self._show(request, "job", {"id": request.path_params["id"]})

    async def _show(self, request: Request, view: str, params: dict[str, str]) -> Response:
        title = NAVIGATION.get(view) or params["id"]
        try:
            data = await self._wire.snapshot(view, params)
            figures = await self._wire.figures()
        except FluxschedError as fault:
            return self.fault(request.headers, fault)
        data = _summary(data) if view == "machine" else data
        return self.render(f"{view}.html", view, title, data=data, figures=figures, filters=params)


def _status(fault: FluxschedError) -> int:
    """Return the HTTP status of a refusal."""
    if isinstance(fault, TooManyFeeds):
        return 503
    return REFUSED_STATUS.get(fault.errnum, 400) if isinstance(fault, ViewRefused) else 400


def _summary(machine: ViewBody) -> ViewBody:
    """Return the parts that a table of states needs; the script requests the rest."""
    states = {state: _shortened(ranks) for state, ranks in machine["states"].items()}
    return {"states": states, "drains": machine["drains"], "groups": machine["groups"]}


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
