"""`fluxsched web`: serves the page until it is ended.

Law: the token stands nowhere but in the printed address, and in a file of the owner's alone if one is asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import uvicorn

from fluxsched.runtime.system import log as logs
from fluxsched.runtime.system.clock import secret_token
from fluxsched.runtime.system.http_address import parse_page_bind
from fluxsched.runtime.system.own_process import die_with
from fluxsched.views.follower import Follower
from fluxsched.web.access.address import BACKLOG, PageAddress, bound, read_address, write_address
from fluxsched.web.access.connections import ACCEPTED_MAX, STRANGERS_MAX, PageConnection, Strangers
from fluxsched.web.access.guard import HEAD_BYTES_MAX
from fluxsched.web.access.secrets import Secrets
from fluxsched.web.app import PageSite
from fluxsched.web.events import VIEWERS_MAX

CONNECTIONS_MAX = VIEWERS_MAX + 500 + STRANGERS_MAX
"""Viewers, what they ask for besides, and those who have not shown the cookie yet; more are answered 503."""
DESCRIPTORS = CONNECTIONS_MAX + 100
"""Open files of the process."""
IDLE_S = 20
"""For how long a connection is kept for the next request (seconds)."""
END_S = 1
"""How long answers that are being sent may take when the process is to end (seconds)."""


class ServeOptions(NamedTuple):
    """What `fluxsched web` is told."""

    uri: str | None
    bind: str
    public: bool = False
    names: Sequence[str] = ()
    """Hosts as which the page may be asked for, besides localhost and IP addresses."""
    instance: int | None = None
    """The process to end with."""
    address_file: Path | None = None
    """Where the address is written; token and port of one that is there are taken again, for viewers that know it."""


class PageServer(uvicorn.Server):
    """Ends by SIGINT and SIGTERM, with what never ends by itself."""

    def __init__(self, config: uvicorn.Config, site: PageSite) -> None:
        super().__init__(config)
        self._site = site

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See uvicorn: it would raise the signal again, and exit by it."""
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, self.end)
        try:
            yield
        finally:
            for signum in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(signum)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn: its `backlog` is how many asyncio accepts at a time; more may wait for that."""
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(BACKLOG)

    def end(self) -> None:
        """Take no more requests, and end the event streams."""
        self.should_exit = True
        self._site.viewers.close()


def check_bind(bind: str, *, public: bool) -> None:
    """Raises InvalidValue or Refused for an address that is wrong."""
    parse_page_bind(bind, public=public)


def serve(options: ServeOptions, told: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `told` gets the address with its token, once it can be opened.

    Raises InvalidValue or Refused for an address that is wrong, FluxschedError for one that cannot be had.
    """
    where = parse_page_bind(options.bind, public=options.public)
    logs.setup(None, 0)
    if options.instance is not None:
        die_with(options.instance)
    _raise_descriptors()
    kept = None if options.address_file is None else read_address(options.address_file)
    token = secret_token() if kept is None else kept.token
    asyncio.run(_serve(options, bound(where, kept, token), told))


async def _serve(options: ServeOptions, address: PageAddress, told: Callable[[str], None]) -> None:
    with address:
        if options.address_file is not None:
            write_address(options.address_file, address.url)
        async with Follower(options.uri) as follower:
            site = PageSite(follower, Secrets(address.token), options.names)
            server = PageServer(config_of(site), site)
            told(address.said)
            await server.serve([address.socket])


def config_of(site: PageSite) -> uvicorn.Config:
    """How uvicorn serves it."""
    return uvicorn.Config(
        site.app,
        http=partial(PageConnection, strangers=Strangers()),  # type: ignore[arg-type]
        backlog=ACCEPTED_MAX,
        loop="asyncio",
        lifespan="off",
        ws="none",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=END_S,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
    )


def _raise_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
