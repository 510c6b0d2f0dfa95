"""Topic `messages`: messages between the instance and its peers as they pass (`instance.trace`), for its owner."""

from __future__ import annotations

from typing import Any

from fluxsched.views.changes import KEPT_MAX, Body
from fluxsched.views.feeds.feed import Asking, Audience, streaming
from fluxsched.views.feeds.params import Params


class MessagesFeed:
    """Those whose topics have one of some beginnings; begins empty."""

    def __init__(self, params: Params) -> None:
        self._topics = list(params.words("topics"))
        self._kept: list[Any] = []
        self._dropped = 0
        self._has_begun = False

    def now(self) -> Body | None:
        """See `Feed`."""
        return {"messages": self._kept, "dropped": self._dropped} if self._has_begun else None

    async def run(self, handle: Asking, audience: Audience) -> None:
        """See `Feed`; `dropped` counts since it began."""
        with streaming(handle, "instance.trace", {"topics": self._topics}) as answers:
            self._has_begun = True
            audience.whole({"messages": self._kept, "dropped": self._dropped})
            async for answer in answers:
                self._kept = [*self._kept, *answer["messages"]][-KEPT_MAX:]
                self._dropped += answer["dropped"]
                audience.change({"messages": answer["messages"], "dropped": self._dropped})
