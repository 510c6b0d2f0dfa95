"""The pages as HTML, readable without the script; what the templates get is said in `Pages.render`.

Law: autoescape is on and a name that is missing is an error, so text of users never becomes markup.
"""

from __future__ import annotations

import errno

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from fluxsched import __version__
from fluxsched.core.idset import Idset
from fluxsched.core.text import printable
from fluxsched.errors import FluxschedError
from fluxsched.runtime.system.clock import SystemClock, local_moment
from fluxsched.views.follower import TooManyFeeds
from fluxsched.views.machine import states_table
from fluxsched.views.words import duration_text
from fluxsched.web.access.guard import wants_json
from fluxsched.web.access.secrets import Secrets
from fluxsched.web.wire import InstanceLost, ViewBody, ViewRefused, Wire

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
"""How often a page without its instance looks for it (seconds)."""


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
    """Renders templates."""

    def __init__(self, wire: Wire, secrets: Secrets) -> None:
        self._wire, self._secrets = wire, secrets
        self._templates = templates()

    def routes(self) -> list[Route]:
        """All pages."""
        found = [Route(f"/{view}", self._page) for view in NAVIGATION]
        found += [Route("/jobs/{id}", self._job), Route("/", _to_machine), Route("/static/states.css", _colours)]
        return found

    def render(self, name: str, view: str, title: str, status: int = 200, **more: object) -> HTMLResponse:
        """A template with what all of them get."""
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
        """An error as a page, or as JSON for a script."""
        if wants_json(headers):
            return JSONResponse({"error": words}, status)
        return self.render("error.html", "error", title, status, message=words, back=back)

    def fault(self, headers: Headers, fault: FluxschedError, back: str | None = None) -> Response:
        """What the instance or a filter refused; a page whose instance is lost looks for it."""
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
            data = await self._wire.whole(view, params)
            figures = await self._wire.figures()
        except FluxschedError as fault:
            return self.fault(request.headers, fault)
        data = _summary(data) if view == "machine" else data
        return self.render(f"{view}.html", view, title, data=data, figures=figures, filters=params)


def _status(fault: FluxschedError) -> int:
    """As HTTP says it."""
    if isinstance(fault, TooManyFeeds):
        return 503
    return REFUSED_STATUS.get(fault.errnum, 400) if isinstance(fault, ViewRefused) else 400


def _summary(machine: ViewBody) -> ViewBody:
    """What a table of states needs; the script asks for the rest."""
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
    """The colours of states, from the one table of them."""
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

