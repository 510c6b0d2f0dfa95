"""Notices of admins: short texts that every user of the instance sees, until a time or until they are removed.

Law: a notice is on disk before its number is answered, and shown again after a restart. One whose time is over is in no
answer; its row goes when another notice is set or removed, so that no timer is needed.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from math import inf
from typing import Any, Final

import msgspec

from fluxsched.core.text import UNPRINTABLE, some_of
from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.messaging.peers import RpcRequest
from fluxsched.messaging.router import Router
from fluxsched.protocol.messages.common import WALL_TIME_MAX_S
from fluxsched.protocol.messages.instance import (
    Notice,
    NoticeAddRequest,
    NoticeAddResponse,
    NoticeRemoveRequest,
    NoticesResponse,
)
from fluxsched.store.store import Store
from fluxsched.system.loop import Turns

KIND: Final = "notice"
"""Kind of the rows of `saved`; the key is the number of the notice."""
NOTICES_MAX = 10
"""Notices at once: users read no more, and each command that submits on a terminal prints all of them."""
NOTICE_CHARS_MAX = 500
"""Characters of one notice: a few lines of a terminal."""


class NoticeService:
    """Service of the three `instance.notice-*` requests."""

    def __init__(self, router: Router, store: Store, turns: Turns, stored: Mapping[str, Any]) -> None:
        """Show what the last instance had: `stored` are the values of its rows of `saved`, by key."""
        self._store = store
        self._turns = turns
        found = [msgspec.convert(value, Notice) for value in stored.values()]
        self._notices = {one.id: one for one in sorted(found, key=lambda one: one.id)}
        self._latest = max(self._notices, default=0)
        """The last number given: no other notice gets it while the instance runs, for who removes one by its number."""
        router.serve(
            {
                "instance.notice-add": self._add,
                "instance.notice-remove": self._remove,
                "instance.notice-list": self._list,
            }
        )

    def _shown(self) -> list[Notice]:
        now_s = self._turns.wall_s
        return [one for one in self._notices.values() if one.until is None or one.until > now_s]

    def _add(self, request: RpcRequest) -> None:
        wanted, now_s = request.payload(NoticeAddRequest), self._turns.wall_s
        until_s = wanted.until if wanted.for_ is None else now_s + wanted.for_
        check_notice(wanted.text, now_s, inf if until_s is None else until_s)
        self._drop({*self._notices} - {one.id for one in self._shown()})
        if len(self._notices) >= NOTICES_MAX:
            raise LimitExceeded(f"{NOTICES_MAX} notices are shown, the limit: remove one")
        self._latest = number = self._latest + 1
        notice = Notice(id=number, text=wanted.text, user=request.who, timestamp=now_s, until=until_s)
        self._notices[number] = notice
        self._store.add("saved", (KIND, str(number), msgspec.json.encode(notice)))
        self._store.after_commit(lambda: request.respond(NoticeAddResponse(number)))

    def _remove(self, request: RpcRequest) -> None:
        numbers = request.payload(NoticeRemoveRequest).ids
        shown = {one.id for one in self._shown()}
        gone = shown if numbers is None else set(numbers)
        if unknown := sorted(gone - shown):
            there = f"those shown have the numbers {', '.join(map(str, shown))}" if shown else "none is shown"
            raise Refused(f"there is no notice {some_of([*map(str, unknown)])}: {there}", errno.ENOENT)
        self._drop({*self._notices} - shown | gone)
        self._store.after_commit(request.respond)

    def _drop(self, numbers: set[int]) -> None:
        for number in numbers:
            del self._notices[number]
            self._store.remove("saved", (KIND, str(number)))

    def _list(self, request: RpcRequest) -> None:
        request.respond(NoticesResponse(self._shown()))


def check_notice(text: str, now_s: float, until_s: float) -> None:
    """Raise InvalidValue for a text that is empty or cannot be printed on one line, and for an end that has passed;
    LimitExceeded for a text that is too long, and for an end after the year 9999.
    """
    if not text.strip():
        raise InvalidValue("a notice has a text")
    if len(text) > NOTICE_CHARS_MAX:
        raise LimitExceeded(f"a notice of {len(text)} characters is above the limit of {NOTICE_CHARS_MAX}: shorten it")
    if found := UNPRINTABLE.search(text):
        at = found.start()
        raise InvalidValue(f"a notice is one line of printable text: character {at + 1} is U+{ord(text[at]):04X}")
    if WALL_TIME_MAX_S < until_s < inf:
        raise LimitExceeded(
            f"the notice would end {until_s:.0f} s after 1970, above the limit of {WALL_TIME_MAX_S:.0f}: "
            "give an earlier end, or none"
        )
    if until_s <= now_s:
        raise InvalidValue(f"the end of the notice, {until_s:.0f} s after 1970, is not after now: give a later one")
