"""The history of accounts as one text, to be kept while no scheduler runs: their signals, and when they were so high.

    {"version": 1, "saved": 1700000000.0, "signal": "decayed-usage", "half-life": 604800.0,
     "accounts": [[["physics", "ann"], 5.25, 0.0], ...]}

An account's numbers are its signal and the flow of its firm usage. Law: usage is not in it, since the running jobs are
what is used; and whatever is wrong with a text, restoring it changes nothing and says what it was.
"""

# Not compiled: msgspec decodes into these classes by annotations, of which mypyc keeps few

from __future__ import annotations

from operator import itemgetter
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from fluxsched.core.jobfields import check_name
from fluxsched.core.text import shown
from fluxsched.errors import FluxschedError, InvalidValue, LimitExceeded
from fluxsched.sched.fair.accounts import ACCOUNTS_MAX, DEPTH_MAX, Account, Accounts

VERSION: Final = 1

STATE_BYTES_MAX = 16 * 2**20
"""Maximum size of the text: above it, accounts with the least signals are left out. 65,536 accounts usually need 4 MiB.
"""

NOTHING: Final = 1e-9
"""Signal that counts as nothing, in units of weight: reached by 1,000 cores after 40 half-lives."""

CLOCK_STEP_MAX_S: Final = 60.0
"""A clock that was set back by less is no reason to forget a week (seconds)."""

_Level = Annotated[float, Meta(ge=0.0)]
_Path = Annotated[tuple[str, ...], Meta(max_length=DEPTH_MAX)]
_Entry = tuple[_Path, _Level, _Level]


class _Version(msgspec.Struct):
    version: int


class _State(msgspec.Struct, rename={"half_life": "half-life"}):
    saved: _Level
    signal: str
    half_life: float
    accounts: list[_Entry]


class Writing:
    """The history being written, some accounts at a time, since tens of thousands of them take a while.

    What an account does between its turn and the last one's is not in it: that is less than a second.
    """

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._left: list[tuple[_Path, Account]] = [((), accounts.root)]
        self._entries: list[_Entry] = []
        self._texts: list[bytes] = []

    def go_on(self, limit: int, now_s: float) -> bool:
        """Write up to `limit` more accounts, as they are at `now_s`; return whether these were the last."""
        scale, left, entries = self._accounts.advance(now_s), self._left, list[_Entry]()
        while left and limit:
            limit -= 1
            path, account = left.pop()
            left += [((*path, name), child) for name, child in account.children.items()]
            level, firm = account.all_jobs.level(scale), account.firm.level(scale)
            if level > NOTHING or firm > NOTHING:
                entries.append((path, max(level, 0.0), max(firm, 0.0)))
        if entries:
            self._entries += entries
            self._texts.append(msgspec.json.encode(entries)[1:-1])
        return not left

    def text(self, now_s: float) -> str:
        """Return the whole of it, once all accounts were written, and it is `now_s`."""
        signal, half_life_s = self._accounts.signal.value, self._accounts.decay.half_life_s
        known = {"version": VERSION, "saved": now_s, "signal": signal, "half-life": half_life_s, "accounts": []}
        head = msgspec.json.encode(known)[:-2]
        size, body = len(head) + 2, b",".join(self._texts)
        if size + len(body) > STATE_BYTES_MAX:
            body = _most(self._entries, len(body), STATE_BYTES_MAX - size)
        return (head + body + b"]}").decode()


def _most(entries: list[_Entry], size: int, size_max: int) -> bytes:
    """Return the entries that are furthest from nothing, as many as there is room for; all of them have `size`."""
    entries.sort(key=itemgetter(1, 2), reverse=True)
    body = b""
    while size > size_max:
        del entries[len(entries) * size_max // size :]
        body = msgspec.json.encode(entries)[1:-1]
        size = len(body)
    return body


def saved(accounts: Accounts, now_s: float) -> str:
    """Return the history as it is now."""
    writing = Writing(accounts)
    writing.go_on(ACCOUNTS_MAX + 1, now_s)
    return writing.text(now_s)


def restore(accounts: Accounts, state: object, now_s: float) -> str | None:
    """Restore saved signals, over the present usage of running jobs; return what is wrong with them, in one line."""
    try:
        found = _read(state)
        _check_fits(accounts, found, now_s)
    except FluxschedError as fault:
        return str(fault)
    levels = {path: (level, firm) for path, level, firm in found.accounts}
    accounts.restore(levels, found.saved, now_s)
    return None


def _read(state: object) -> _State:
    """Decode a saved state. Raise InvalidValue or LimitExceeded."""
    if not isinstance(state, str):
        raise InvalidValue(f"damaged: {shown(state)} is not a text")
    size = len(state.encode(errors="replace"))
    if size > STATE_BYTES_MAX:
        raise LimitExceeded(f"too large: {size} bytes, the limit is {STATE_BYTES_MAX}")
    try:
        version = msgspec.json.decode(state, type=_Version).version
        if version != VERSION:
            raise InvalidValue(f"of version {version}, where this fluxsched reads {VERSION}")
        found = msgspec.json.decode(state, type=_State)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as fault:
        raise InvalidValue(f"damaged: {fault}") from fault
    if len(found.accounts) > ACCOUNTS_MAX + 1:  # the root is one of them
        raise LimitExceeded(f"too large: {len(found.accounts)} accounts, the limit is {ACCOUNTS_MAX}")
    for at, (path, *_) in enumerate(found.accounts):
        for name in path:
            check_name(name, f"damaged: accounts[{at}]")
    return found


def _check_fits(accounts: Accounts, found: _State, now_s: float) -> None:
    """Check that signals are defined as they were when saved, and that all accounts fit.

    Raise InvalidValue or LimitExceeded.
    """
    ours, half_life_s = accounts.signal.value, accounts.decay.half_life_s
    if found.signal != ours:
        raise InvalidValue(f"of signal {shown(found.signal)}, which is {shown(ours)} by now")
    if found.half_life != half_life_s:
        raise InvalidValue(f"of half-life {found.half_life:.15g} s, which is {half_life_s:.15g} s by now")
    if found.saved > now_s + CLOCK_STEP_MAX_S:
        raise InvalidValue(f"from the future: saved {found.saved - now_s:.0f} s after now")
    paths = {path[:depth] for path, *_ in found.accounts for depth in range(1, len(path) + 1)}
    paths |= {account.path for account in accounts.root.walk()} - {()}
    if len(paths) > ACCOUNTS_MAX:
        raise LimitExceeded(f"too large: with it there would be {len(paths)} accounts, the limit is {ACCOUNTS_MAX}")
