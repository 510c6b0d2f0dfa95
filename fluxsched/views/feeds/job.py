"""Topic `job`: one job: its record, why it is where it is, its events, the end of its output. Asked anew at its events.

Law: output is text: what a terminal would obey is shown as `\\x1b` and the like, and only its end is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from codecs import getincrementaldecoder
from collections.abc import Mapping
from typing import Any

from fluxsched.core.jobid import format_f58, parse_jobid
from fluxsched.core.text import UNPRINTABLE, printable
from fluxsched.errors import RPCError
from fluxsched.runtime.system.clock import SystemClock
from fluxsched.views.changes import KEPT_MAX, OUTPUT_CHARS_MAX, Body, after
from fluxsched.views.feeds.feed import WAIT_S, Asking, Audience, streaming, together
from fluxsched.views.feeds.jobs import job_body
from fluxsched.views.feeds.params import Params

ASKED_EVERY_S, REFRESHED_EVERY_S = 0.25, 5.0
"""How often the record is asked for at the shortest, and how often while nothing happens."""


class JobFeed:
    """One job id."""

    def __init__(self, params: Params) -> None:
        self._id = parse_jobid(params.text("id"))
        self._whole: dict[str, Any] | None = None
        self._changed = asyncio.Event()
        self._written = 0
        self._is_told = False
        self._printed = asyncio.Event()
        """Set when there is no more output to come."""

    def now(self) -> Body | None:
        """See `Feed`."""
        return self._whole if self._is_told else None

    async def run(self, handle: Asking, audience: Audience) -> None:
        """See `Feed`."""
        record, logged = await asyncio.gather(
            self._asked(handle), handle.rpc("job-manager.lookup", {"id": self._id, "keys": ["eventlog"]})
        )
        events, self._written = logged["eventlog"], 0
        self._whole = {**record, "events": events[-KEPT_MAX:], "output": [], "output_left_out": 0}
        self._is_told = False
        self._printed.clear()
        await together(
            self._tell_first(audience),
            self._follow_events(handle, audience, len(events)),
            self._follow_output(handle, audience),
            self._ask_again(handle, audience),
        )

    async def _tell_first(self, audience: Audience) -> None:
        """With what it has printed so far: a page without script shows nothing else."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._printed.wait(), WAIT_S)
        self._is_told = True
        audience.whole(self._whole or {})

    def _tell(self, audience: Audience, change: dict[str, Any]) -> None:
        self._whole = after(self._whole or {}, change)
        if self._is_told:
            audience.change(change)

    async def _asked(self, handle: Asking) -> dict[str, Any]:
        """The record, and why; a job of another user may be seen, and the reason not."""
        found = (await handle.rpc("job-manager.list", {"ids": [self._id]}))["jobs"]
        if not found:
            raise RPCError(f"no such job: {format_f58(self._id)}", errno.ENOENT)
        try:
            why = await handle.rpc("job-manager.why", {"id": self._id})
        except RPCError:
            if handle.is_gone:
                raise
            why = None
        return {"job": job_body(found[0], SystemClock.wall_s()), "why": why and {**why, "id": format_f58(self._id)}}

    async def _follow_events(self, handle: Asking, audience: Audience, known: int) -> None:
        """Those beyond the `known` ones of the record."""
        with streaming(handle, "job-manager.eventlog", {"id": self._id, "follow": True}) as answers:
            async for answer in answers:
                events = answer["events"][known:]
                known = max(0, known - len(answer["events"]))
                if events:
                    self._tell(audience, {"events": events})
                    self._changed.set()

    async def _follow_output(self, handle: Asking, audience: Audience) -> None:
        decoders: dict[str, Any] = {}
        with streaming(handle, "job-manager.output", {"id": self._id, "follow": True}) as answers:
            async for answer in answers:
                stream = answer["stream"]
                if stream not in decoders:
                    decoders[stream] = getincrementaldecoder("utf-8")("replace")
                if text := harmless(decoders[stream].decode(answer["data"])):
                    self._written += len(text)
                    left_out = max(0, self._written - OUTPUT_CHARS_MAX)
                    change = {"output": [[stream, text[-OUTPUT_CHARS_MAX:]]], "output_left_out": left_out}
                    self._tell(audience, change)
        self._printed.set()

    async def _ask_again(self, handle: Asking, audience: Audience) -> None:
        while self._is_active():
            try:
                await asyncio.wait_for(self._changed.wait(), REFRESHED_EVERY_S)
                await asyncio.sleep(ASKED_EVERY_S)
            except TimeoutError:
                pass
            self._changed.clear()
            before: Mapping[str, Any] = self._whole or {}
            record = await self._asked(handle)
            if change := {key: value for key, value in record.items() if before.get(key) != value}:
                self._tell(audience, change)
        await asyncio.Event().wait()  # nothing more comes of it: its viewers keep what they have

    def _is_active(self) -> bool:
        return bool(self._whole and self._whole["job"]["state"] != "INACTIVE")


def harmless(text: str) -> str:
    """Output as text of several lines: tabs and ends of lines stay, what else controls a terminal is spelled out."""
    plain = text.replace("\r\n", "\n")
    return UNPRINTABLE.sub(lambda found: found[0] if found[0] in "\n\t" else printable(found[0]), plain)
