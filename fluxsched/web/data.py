"""`GET /data/VIEW`: the whole of a view as JSON, compressed."""

from __future__ import annotations

import gzip

from starlette.requests import Request
from starlette.responses import Response

from fluxsched.errors import FluxschedError
from fluxsched.web.pages import Pages
from fluxsched.web.wire import Wire, as_json

GZIP_BYTES_MIN = 1024
"""Less is sent as it is."""
GZIP_LEVEL = 5
"""Of a machine of 131,072 targets more would save a tenth, and take three times as long."""


class Data:
    """The handler."""

    def __init__(self, wire: Wire, pages: Pages) -> None:
        self._wire, self._pages = wire, pages

    async def handle(self, request: Request) -> Response:
        """Answer with the whole."""
        try:
            body = await self._wire.whole(request.path_params["view"], dict(request.query_params))
        except FluxschedError as fault:
            return self._pages.fault(request.headers, fault)
        data, headers = as_json(body), {"vary": "accept-encoding"}
        if len(data) >= GZIP_BYTES_MIN and "gzip" in request.headers.get("accept-encoding", ""):
            data = gzip.compress(data, GZIP_LEVEL)
            headers["content-encoding"] = "gzip"
        return Response(data, media_type="application/json", headers=headers)
