"""Topic `history`: the past as the store keeps it: samples, states of targets, and a report."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

from fluxsched.errors import InvalidValue, RPCError
from fluxsched.protocol.messages.history import ReportBy
from fluxsched.runtime.system.clock import SystemClock
from fluxsched.views.feeds.feed import Asking
from fluxsched.views.feeds.params import SHOWN_CHARS, Params, Period
from fluxsched.views.words import user_name

HISTORY_EVERY_S = 10.0
POINTS_DEFAULT, POINTS_MAX = 600, 4000
"""Steps of a figure: about as many as a screen has columns."""
DAY_S = 86400.0
REPORT_BY: tuple[str, ...] = get_args(ReportBy)
"""What a report may be by."""


class HistoryQuestion:
    """One period; the report is by user, bank, queue, group or property."""

    def __init__(self, params: Params) -> None:
        self._period = Period(params, -DAY_S, 0.0)
        self._points = params.count("points", POINTS_DEFAULT, POINTS_MAX)
        self._by = params.text("by") or REPORT_BY[0]
        if self._by not in REPORT_BY:
            raise InvalidValue(f"view history: by {self._by[:SHOWN_CHARS]!r} is not among {', '.join(REPORT_BY)}")

    async def ask(self, handle: Asking) -> dict[str, Any]:
        """The three answers, with the names of users; null what is refused, where something is not."""
        now_s = SystemClock.wall_s()
        since_s, until_s = self._period.bounds_s(now_s)
        period = {"since": since_s, "until": until_s}
        answers = await asyncio.gather(
            handle.rpc("history.samples", {**period, "points_max": self._points}),
            handle.rpc("history.intervals", period),
            handle.rpc("history.report", {**period, "by": self._by}),
            return_exceptions=True,
        )
        faults = [answer for answer in answers if isinstance(answer, BaseException)]
        for fault in faults:
            if handle.is_gone or len(faults) == len(answers) or not isinstance(fault, RPCError):
                raise fault
        samples, states, report = [None if isinstance(answer, BaseException) else answer for answer in answers]
        return {"now": now_s, **period, "samples": samples, "intervals": states and states["intervals"],
                "observed": states and states["observed"], "report": report and named(report)}  # fmt: skip


def named(report: dict[str, Any]) -> dict[str, Any]:
    """A report whose users have names."""
    if report.get("by") != "user":
        return report
    return report | {"rows": [row | {"name": _name(row["name"])} for row in report["rows"]]}


def _name(userid: str) -> str:
    return user_name(int(userid)) if userid.isdecimal() else userid
