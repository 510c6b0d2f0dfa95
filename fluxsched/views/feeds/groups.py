"""Topic `groups`: who has acquired what, what is leaving and which jobs it waits for, and the queues of each group."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import format_f58
from fluxsched.errors import RPCError
from fluxsched.views.feeds.feed import Asking
from fluxsched.views.feeds.figures import Figures
from fluxsched.views.words import user_name

GROUPS_EVERY_S = 1.0
HOLDERS_MAX = 20
"""Jobs that are named of those that keep targets from leaving."""


class GroupsQuestion:
    """What is asked for the topic."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    async def ask(self, handle: Asking) -> dict[str, Any]:
        """Groups as `resource.groups` has them, queues with their jobs, and jobs on targets that leave, by group."""
        answer, names = await asyncio.gather(handle.rpc("resource.groups"), handle.rpc("job-manager.queue-list"))
        wanted = [{"name": name} for name in names["queues"]] or [{}]
        statuses = await asyncio.gather(*[handle.rpc("job-manager.queue-status", one) for one in wanted])
        counts = await self._counts(handle)
        queues = [queue_body(status, counts.get(status.get("name") or "")) for status in statuses]
        return {"groups": answer["groups"], "queues": queues, "holders": await holders(handle, answer["groups"])}

    async def _counts(self, handle: Asking) -> Mapping[str, Mapping[str, Any]]:
        try:
            return {queue["name"]: queue for queue in (await self._figures.ask(handle))["queues"]}
        except RPCError:
            if handle.is_gone:
                raise
            return {}


def queue_body(status: Mapping[str, Any], counts: Mapping[str, Any] | None) -> dict[str, Any]:
    """A queue as viewers get it; numbers of jobs are null where figures are refused."""
    return {
        **status,
        "name": status.get("name") or "",
        "group": status.get("group") or "default",
        "enabled": status["enable"],
        "started": status["start"],
        "waiting": counts["pending"] if counts else None,
        "running": counts["running"] if counts else None,
    }


async def holders(handle: Asking, groups: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Jobs on targets that are leaving: `[jobid, targets, end (0: none), user, name]`, by the group that they leave."""
    leaving = {group["name"]: Idset.parse(group["leaving"]) for group in groups if group["leaving"]}
    wanted = EMPTY
    for ranks in leaving.values():
        wanted |= ranks
    if not wanted:
        return {}
    answer = await handle.rpc("job-manager.running", {"targets": str(wanted), "max_entries": HOLDERS_MAX})
    return {
        name: [
            [format_f58(jobid), str(here), end_s, user_name(userid), title]
            for jobid, text, _, end_s, _, userid, _, title, _ in answer["jobs"]
            if (here := Idset.parse(text) & ranks)
        ]
        for name, ranks in leaving.items()
    }
