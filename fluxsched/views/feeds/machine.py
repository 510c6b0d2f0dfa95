"""Topic `machine`: one stream of `resource.watch`, passed on as it comes. Topic `target`: what has happened to one."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from fluxsched.core.idset import ID_MAX, Idset
from fluxsched.views.changes import Body
from fluxsched.views.feeds.feed import Asking, Audience, streaming
from fluxsched.views.feeds.params import Params
from fluxsched.views.machine import LiveMachine


class MachineFeed:
    """Keeps the picture for viewers that come later."""

    def __init__(self) -> None:
        self.machine: LiveMachine | None = None
        self._whole: dict[str, Any] | None = None

    def now(self) -> Body | None:
        """See `Feed`; made again only after a change."""
        if self._whole is None and self.machine is not None:
            self._whole = self.machine.whole()
        return self._whole

    async def run(self, handle: Asking, audience: Audience) -> None:
        """See `Feed`."""
        machine = LiveMachine()
        with streaming(handle, "resource.watch") as answers:
            async for answer in answers:
                change = machine.apply(answer)
                self.machine, self._whole = machine, None
                if change is None:
                    audience.whole(self.now() or {})
                elif change:
                    audience.change(change)


EVENTS_MAX = 20
"""Events of one target, the last ones."""


class TargetFeed:
    """The events of the journal that name one target, by its rank."""

    def __init__(self, params: Params) -> None:
        self._rank = params.count("rank", 0, ID_MAX, least=0)
        self._events: deque[Mapping[str, Any]] = deque(maxlen=EVENTS_MAX)
        self._is_live = False

    def now(self) -> Body | None:
        """See `Feed`."""
        return {"rank": self._rank, "events": [*self._events]} if self._is_live else None

    async def run(self, handle: Asking, audience: Audience) -> None:
        """See `Feed`; the history comes first and ends with an answer without events."""
        self._events.clear()
        self._is_live = False
        with streaming(handle, "resource.journal") as answers:
            async for answer in answers:
                events = [event for event in answer["events"] if self._names(event.get("context") or {})]
                self._events += events
                if self._is_live and events:
                    audience.change({"events": events})
                elif not self._is_live and not answer["events"]:
                    self._is_live = True
                    audience.whole(self.now() or {})

    def _names(self, context: Mapping[str, Any]) -> bool:
        of_properties = context.get("properties") or {}
        return any(self._rank in Idset.parse(text) for text in (context.get("idset") or "", *of_properties.values()))
