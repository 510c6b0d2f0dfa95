"""`fluxsched metrics`: serves an instance's figures until it is ended."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable

from fluxsched.runtime.metrics.sampler import Sampler
from fluxsched.runtime.metrics.server import MetricsServer
from fluxsched.runtime.system import log as logs
from fluxsched.runtime.system.http_address import parse_bind
from fluxsched.runtime.system.own_process import die_with


def export(uri: str | None, bind: str, *, public: bool, instance: int | None, told: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `told` gets the page's URL. `instance` is the process to end with, if any.

    Raises InvalidValue or Refused for an address that is wrong, FluxschedError for one that cannot be had.
    """
    host, port = parse_bind(bind, public=public)
    logs.setup(None, 0)
    if instance is not None:
        die_with(instance)
    asyncio.run(_export(uri, host, port, told))


def check_bind(bind: str, *, public: bool) -> None:
    """Raises InvalidValue or Refused for an address that is wrong."""
    parse_bind(bind, public=public)


def once(uri: str | None) -> str:
    """The figures now, as text."""

    async def ask() -> str:
        sampler = Sampler(uri)
        try:
            return await sampler.text()
        finally:
            await sampler.close()

    return asyncio.run(ask())


async def _export(uri: str | None, host: str, port: int, told: Callable[[str], None]) -> None:
    sampler, ended = Sampler(uri), asyncio.Event()
    server = MetricsServer(sampler.text)
    told(await server.start(host, port))
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, ended.set)
    with contextlib.suppress(asyncio.CancelledError):
        await ended.wait()
    await server.close()
    await sampler.close()
