"""When the history of accounts is saved: every SAVE_EVERY_S while something is held or has changed, and at the end.

Law: it is saved again only once the last time was answered, so that a slow disk gathers nothing; and what cannot be
restored or saved is said once, and ends nothing.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final

from fluxsched.errors import RPCError
from fluxsched.protocol.messages.alloc import SaveRequest
from fluxsched.sched.accounts import state
from fluxsched.sched.accounts.tree import Accounts

SAVE_EVERY_S: Final = 10.0
"""How much history a SIGKILL may cost (seconds)."""

SLICE_ACCOUNTS: Final = 1024
"""Accounts written at a time, within some milliseconds: then questions are answered."""


class Saving:
    """Saves and restores one tree. Times are wall time in seconds."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._saved_s = -inf
        self._bookings = accounts.bookings  # as they were saved
        self._asked: deque[int] = deque()  # those of requests that are not answered: at the end there may be two
        self._writing: state.Writing | None = None  # what is written, in slices, for the request that is due
        self._set_aside = False
        self._complaint = ""

    def restore(self, saved: object, now_s: float) -> str | None:
        """Go on from what is kept, None if that is nothing; the line of the log if that is of no use."""
        self._saved_s, self._bookings = now_s, self._accounts.bookings
        if saved is None:
            return None
        what = state.restore(self._accounts, saved, now_s)
        if what is None:
            return None
        self._set_aside = True
        return f"the saved history of accounts is {what}; it is set aside, and history begins anew"

    @property
    def is_asked(self) -> bool:
        """Whether a request is not answered yet."""
        return bool(self._asked)

    @property
    def next_s(self) -> float:
        """When the next request is due; inf while there is nothing to save, -inf while one is being written."""
        if self._writing is not None:
            return -inf
        if self._asked or not self._is_changed:
            return inf
        return self._saved_s if self._set_aside else self._saved_s + SAVE_EVERY_S

    def due(self, now_s: float) -> SaveRequest | None:
        """The request that is due by now, once it is written. After a clock was set back, it is due at once."""
        if self._writing is None:
            if self._saved_s <= now_s < self.next_s or self.next_s == inf:
                return None
            self._writing = state.Writing(self._accounts)
        is_whole = self._writing.go_on(SLICE_ACCOUNTS, now_s)
        return self._request(self._writing.text(now_s), now_s) if is_whole else None

    def last(self, now_s: float) -> SaveRequest | None:
        """A request to save what has changed, whenever that was; None for nothing."""
        if not self._is_changed:
            return None
        return self._request(state.saved(self._accounts, now_s), now_s)

    def _request(self, text: str, now_s: float) -> SaveRequest:
        self._writing, self._saved_s = None, now_s
        self._asked.append(self._accounts.bookings)
        return SaveRequest(text, self._set_aside)

    def answered(self, error: RPCError | None) -> str | None:
        """The answer to the oldest request; a line for the log."""
        asked = self._asked.popleft()
        if error is None:
            self._bookings = asked
            self._set_aside, self._complaint = False, ""
            return None
        said, self._complaint = self._complaint, str(error)
        if said == self._complaint:
            return None
        return f"the history of accounts is not saved: {error}; it is tried again in {SAVE_EVERY_S:g} s"

    @property
    def _is_changed(self) -> bool:
        """Signals of accounts that hold something change with time alone."""
        accounts = self._accounts
        held = accounts.root.all_jobs.usage > 0.0
        return held or self._set_aside or accounts.bookings != self._bookings
