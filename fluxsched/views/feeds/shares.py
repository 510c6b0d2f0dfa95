"""Topic `shares`: the accounts of the schedulers that keep some."""

from __future__ import annotations

from typing import Any

from fluxsched.errors import RPCError
from fluxsched.views.feeds.feed import Asking
from fluxsched.views.feeds.params import Params

SHARES_EVERY_S = 2.0


class SharesQuestion:
    """The accounts of one group, or of all groups that a scheduler with accounts serves."""

    def __init__(self, params: Params) -> None:
        self._group = params.text("group")

    async def ask(self, handle: Asking) -> dict[str, Any]:
        """`accounts` and the settings of one group, and the names of all `groups` that have some; `accounts` is null
        where none has, and `why` says so.
        """
        names = [group["name"] for group in (await handle.rpc("resource.groups"))["groups"] if group["acquired"]]
        found, why = dict[str, dict[str, Any]](), "no scheduler has acquired a group"
        for name in names:
            try:
                found[name] = await accounts_of(handle, name)
            except RPCError as fault:
                if handle.is_gone:
                    raise
                why = str(fault)
        group = self._group or next(iter(found), "")
        if group not in found:
            return {"accounts": None, "why": why, "group": group, "groups": list(found)}
        return {**found[group], "group": group, "groups": list(found)}


async def accounts_of(handle: Asking, group: str) -> dict[str, Any]:
    """All parts of the answer as one."""
    whole: dict[str, Any] = {}
    start: int | None = 0
    while start is not None:
        part = await handle.rpc("sched.accounts", {"group": group, "start": start})
        start = part.pop("next")
        whole = part | {"accounts": [*whole.get("accounts", ()), *part["accounts"]]}
    return whole
