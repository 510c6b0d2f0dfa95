"""What can be changed from the screen: each action asks first, and says what became of it in the instance's words.

Law: jobs are hit one by one, so that a job that has ended meanwhile keeps no other from being hit; if any was refused,
the box stays with what the instance said. Who did it is known to the instance by the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from fluxsched.core.text import printable
from fluxsched.errors import FluxschedError, InvalidValue, Refused
from fluxsched.protocol.messages.jobs import URGENCY_DEFAULT
from fluxsched.screen.panes.columns import id_text, is_held
from fluxsched.screen.panes.prompt import Question
from fluxsched.views.jobs import PENDING, JobRow
from fluxsched.views.words import plural, user_name

NAMED_MAX = 4
"""Jobs that a question names; the rest is a number."""
REFUSED_NAMED_MAX = 3
"""Refusals that are shown; the rest is a number."""
URGENCY_HOLD, URGENCY_MAX = 0, 31

AskInstance = Callable[[str, dict[str, Any]], Awaitable[Mapping[str, Any]]]


def cancelling(ask: AskInstance, rows: Sequence[JobRow]) -> Question:
    """Cancel these jobs."""

    async def perform(note: str) -> str:
        return await _each(
            ask, rows, "job-manager.cancel", {"note": note}, "canceled {}"
        )

    return Question(
        f"Cancel {plural(len(rows), 'job')}?", perform,
        [*_named(rows), "Running jobs are terminated, then killed."], "Note (may be empty)",
    )  # fmt: skip


def holding(ask: AskInstance, rows: Sequence[JobRow]) -> Question:
    """Hold waiting jobs; if all of them are held, release them."""
    waiting = [row for row in rows if row.info["state"] in PENDING]
    if not waiting:
        raise InvalidValue("only jobs that wait can be held: these run or have ended")
    releases = all(map(is_held, waiting))
    urgency = URGENCY_DEFAULT if releases else URGENCY_HOLD
    done = "released {}" if releases else "held {}"

    async def perform(_: str) -> str:
        return await _each(ask, waiting, "job-manager.urgency", {"urgency": urgency}, done)

    what = f"Release {plural(len(waiting), 'held job')}?" if releases else f"Hold {plural(len(waiting), 'job')}?"
    then = f"The urgency becomes {urgency}{': they do not start until they are released' if not releases else ''}."
    return Question(what, perform, [*_named(waiting), then])


def urgency_set(ask: AskInstance, rows: Sequence[JobRow], parse: Callable[[str], int]) -> Question:
    """Set the urgency of these jobs to what is typed."""

    async def perform(text: str) -> str:
        value = parse(text)
        return await _each(ask, rows, "job-manager.urgency", {"urgency": value}, f"set the urgency of {{}} to {value}")

    now = str(rows[0].info["urgency"]) if len({row.info["urgency"] for row in rows}) == 1 else ""
    return Question(
        f"Urgency of {plural(len(rows), 'job')}", perform, _named(rows), "0-31, hold, default, expedite", now
    )


def urgency_moved(ask: AskInstance, rows: Sequence[JobRow], by: int) -> Question:
    """Raise or lower the urgency of each of these jobs."""
    wanted = [(row, max(URGENCY_HOLD, min(URGENCY_MAX, row.info["urgency"] + by))) for row in rows]

    async def perform(_: str) -> str:
        requests = [(row, {"id": row.info["id"], "urgency": value}) for row, value in wanted]
        return await _all(ask, requests, "job-manager.urgency", "changed the urgency of {}")

    lines = [f"{_one(row)}: {row.info['urgency']} to {value}" for row, value in wanted[:NAMED_MAX]]
    return Question(f"{'Raise' if by > 0 else 'Lower'} the urgency of {plural(len(rows), 'job')}?", perform,
                    [*lines, *_more(len(wanted))])  # fmt: skip


def draining(ask: AskInstance, targets: str, shown: str) -> Question:
    """Drain these targets, for a reason."""

    async def perform(reason: str) -> str:
        if not reason.strip():
            raise InvalidValue("give a reason: it is shown to all who ask about these targets")
        await ask("resource.drain", {"targets": targets, "reason": reason.strip()})
        return f"drained {_short(shown)}"

    return Question(
        f"Drain {_short(shown)}?", perform, ["Running jobs go on, no new ones start there."], "Reason"
    )  # fmt: skip


def undraining(ask: AskInstance, targets: str, shown: str) -> Question:
    """Return these targets to service."""

    async def perform(_: str) -> str:
        await ask("resource.undrain", {"targets": targets})
        return f"returned {_short(shown)} to service"

    return Question(f"Return {_short(shown)} to service?", perform)


async def _each(
    ask: AskInstance, rows: Sequence[JobRow], topic: str, fields: Mapping[str, Any], done: str
) -> str:  # fmt: skip
    return await _all(ask, [(row, {"id": row.info["id"], **fields}) for row in rows], topic, done)


async def _all(ask: AskInstance, requests: Sequence[tuple[JobRow, dict[str, Any]]], topic: str, done: str) -> str:
    answers = await asyncio.gather(*(ask(topic, request) for _, request in requests), return_exceptions=True)
    refused = []
    for (row, _), answer in zip(requests, answers, strict=True):
        if isinstance(answer, FluxschedError):
            refused.append(f"{id_text(row)}: {answer}" if len(requests) > 1 else str(answer))
        elif isinstance(answer, BaseException):
            raise answer
    if refused:
        more = f"; and {len(refused) - REFUSED_NAMED_MAX} more" if len(refused) > REFUSED_NAMED_MAX else ""
        some = f"{len(requests) - len(refused)} of {len(requests)} done; " if len(requests) > 1 else ""
        raise Refused(some + "; ".join(refused[:REFUSED_NAMED_MAX]) + more)
    return done.format(plural(len(requests), "job"))


def _one(row: JobRow) -> str:
    return printable(f"{id_text(row)} {row.info['name']} ({row.status()}, {user_name(row.info['userid'])})")


def _named(rows: Sequence[JobRow]) -> list[str]:
    return [*map(_one, rows[:NAMED_MAX]), *_more(len(rows))]


def _more(count: int) -> list[str]:
    return [f"and {count - NAMED_MAX} more"] if count > NAMED_MAX else []


def _short(targets: str) -> str:
    return printable(targets if len(targets) <= 60 else f"{targets[:60]}...")
