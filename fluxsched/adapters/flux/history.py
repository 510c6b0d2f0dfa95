"""The history of accounts in Flux's KVS, under fixed keys: read when we are ready, written when the session asks.

Law: a value of no use, or one that cannot be read, ends nothing; before another takes its place it is kept under a
second key, once.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from fluxsched.adapters.flux.handle import LOG_ERR, BrokerHandle, BrokerReply
from fluxsched.protocol.messages.alloc import ReadyResponse, SaveRequest

KEY = "fluxsched.accounts"
"""Key of the state that was saved last: JSON, as `sched.fair.account_state` describes it."""

SET_ASIDE = "fluxsched.accounts-set-aside"
"""Key of a state that could not be restored."""


class KvsHistory:
    """Reads and writes the keys."""

    def __init__(self, handle: BrokerHandle) -> None:
        self._handle = handle
        self._found: bytes | None = None

    def add(self, ready: ReadyResponse, then: Callable[[ReadyResponse], None]) -> None:
        """Give `then` the answer to sched-ready with what was saved, as in an instance of our own."""

        def found(reply: BrokerReply) -> None:
            self._found = reply.payload if not reply.errnum else None
            if reply.errnum not in (0, errno.ENOENT):
                self._handle.log(LOG_ERR, f"the history of accounts begins anew: {KEY} cannot be read: {reply.text}")
            state = None if self._found is None else self._found.decode(errors="replace")
            then(ReadyResponse(ready.count, state))

        self._handle.lookup(KEY, found)

    def save(self, wanted: SaveRequest, done: Callable[[BrokerReply], None]) -> None:
        """Write it, in one transaction with what is set aside."""
        values = {KEY: str(wanted.state).encode()}
        if wanted.set_aside and self._found is not None:
            values[SET_ASIDE] = self._found
        self._handle.commit(values, done)
