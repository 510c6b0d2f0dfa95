"""Topic `machine`: one stream of `resource.watch`, passed on as it comes."""

from __future__ import annotations

from typing import Any

from fluxsched.views.changes import Body
from fluxsched.views.feeds.feed import Asking, Audience, streaming
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
