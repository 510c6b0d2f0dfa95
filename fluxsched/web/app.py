"""The application: pages, data, events, actions and files, behind the guard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from fluxsched.errors import FluxschedError
from fluxsched.views.follower import Follower
from fluxsched.web.access.guard import Guard
from fluxsched.web.access.secrets import Secrets
from fluxsched.web.actions import Actions
from fluxsched.web.data import Data
from fluxsched.web.events import TooManyViewers, Viewers
from fluxsched.web.pages import Pages
from fluxsched.web.wire import Wire

STATIC = Path(__file__).parent / "static"
TITLES = {404: "There is no such page", 405: "Method not allowed"}


class Files(StaticFiles):
    """Files that are asked for anew each time, and sent when they have changed: Starlette gives each an ETag."""

    def file_response(self, *args: object, **more: object) -> Response:
        """See StaticFiles."""
        response = super().file_response(*args, **more)  # type: ignore[arg-type]
        response.headers["cache-control"] = "no-cache"
        return response


class PageSite:
    """All that one page server has: `app` is what uvicorn serves."""

    def __init__(self, follower: Follower, secrets: Secrets, names: Sequence[str] = ()) -> None:
        self.wire = Wire(follower)
        self.viewers = Viewers(self.wire)
        self._pages = pages = Pages(self.wire, secrets)
        routes = [
            *pages.routes(),
            Route("/events", self._events),
            Route("/data/{view}", Data(self.wire, pages).handle),
            Route("/actions/{name}", Actions(self.wire, pages, secrets).handle, methods=["POST"]),
            Mount("/static", Files(directory=STATIC)),
        ]
        inner = Starlette(routes=routes, exception_handlers={HTTPException: self._wrong})
        self.app: ASGIApp = Guard(inner, secrets, names)

    async def _events(self, request: Request) -> ASGIApp:
        params = dict(request.query_params)
        try:
            return self.viewers.open(params.pop("view", "machine"), params)
        except TooManyViewers as fault:
            return self._pages.error(request.headers, "Too many viewers", str(fault), 503)
        except FluxschedError as fault:
            return self._pages.fault(request.headers, fault)

    async def _wrong(self, request: Request, fault: Exception) -> Response:
        assert isinstance(fault, HTTPException)
        words = f"{request.method} {request.url.path}"
        title = TITLES.get(fault.status_code, fault.detail)
        response = self._pages.error(request.headers, title, words, fault.status_code, "/machine")
        response.headers.update(fault.headers or {})
        return response
