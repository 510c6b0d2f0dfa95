"""The one connection to an instance: kept while it is needed, and looked for anew when the instance is lost.

Law: an instance that is gone is a state, not an error. It is looked for at its address until the viewer ends, with the
pauses that all clients have (`runtime.client.reconnecting`).
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from fluxsched.errors import FluxschedError, RPCError
from fluxsched.runtime.client.reconnecting import delays

ANSWERED_WITHIN_S = 20.0
"""An instance that answers nothing for so long is as good as gone."""

Connect = Callable[[], AbstractAsyncContextManager[Any]]


class ConnectionListener(Protocol):
    """Who is told what becomes of the connection."""

    def connected(self, handle: Any, info: Mapping[str, Any]) -> None:
        """The instance is there; `info` is what `instance.info` says."""

    def lost(self, why: str, retry_s: float) -> Awaitable[None]:
        """It is gone, and will be looked for."""


class KeptConnection:
    """Keeps a handle open from `open` to `close`."""

    def __init__(self, connect: Connect, listener: ConnectionListener) -> None:
        self._connect = connect
        self._listener = listener
        self._task: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        self.handle: Any | None = None
        self.why = ""
        """Why it is lost."""

    def open(self) -> None:
        """Begin to keep a connection, if that is not done yet."""
        if self._task is None:
            self._task = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """End it."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def there(self) -> Any:
        """The handle, after the first attempt. Raises RPCError while there is none."""
        self.open()
        await self._settled.wait()
        if self.handle is None:
            raise RPCError(self.why, errno.ECONNRESET)
        return self.handle

    async def _keep(self) -> None:
        pauses = delays()
        while True:
            try:
                async with self._connect() as handle:
                    info = await handle.rpc("instance.info", timeout_s=ANSWERED_WITHIN_S)
                    pauses, self.handle, self.why = delays(), handle, ""
                    self._settled.set()
                    self._listener.connected(handle, info)
                    try:
                        self.why = str(await handle.gone())
                    finally:
                        self.handle = None
            except (FluxschedError, OSError) as fault:
                self.why = str(fault)
            self._settled.set()
            delay_s = next(pauses)
            await self._listener.lost(self.why, delay_s)
            await asyncio.sleep(delay_s)
