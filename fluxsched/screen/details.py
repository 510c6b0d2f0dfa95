"""The details of what is under a cursor, as sheets: a job's record, why it waits, its events and output; a target's
state, drain and jobs; a queue; a group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.core.text import printable, printable_lines
from fluxsched.screen.panes.columns import id_text
from fluxsched.screen.panes.look import Run, wrapped
from fluxsched.screen.panes.reader import Sheet
from fluxsched.screen.picture import Picture
from fluxsched.views.feed import Body
from fluxsched.views.jobs import JobRow
from fluxsched.views.words import context_text, duration_text, time_text, user_name

_TIMES = ("t_submit", "t_depend", "t_run", "t_cleanup", "t_inactive", "expiration")
_DURATIONS = ("duration",)
_NAME_WIDTH = 16


def pairs(values: Mapping[str, Any], width: int) -> list[list[Run]]:
    """Names and values, one a line; long values go on below."""
    lines: list[list[Run]] = []
    for name, value in values.items():
        if value in (None, "", [], {}):
            continue
        first, *more = wrapped(value_text(name, value), max(10, width - _NAME_WIDTH - 3)) or [""]
        lines.append([(printable(name).ljust(_NAME_WIDTH) + " ", "bold"), (first, "")])
        lines += [[(" " * (_NAME_WIDTH + 1), ""), (line, "")] for line in more]
    return lines


def value_text(name: str, value: Any) -> str:
    """A value as people read it: times as dates, durations with units, the rest as it is."""
    if name in _TIMES and isinstance(value, int | float):
        return time_text(value) if value else "none"
    if name in _DURATIONS and isinstance(value, int | float):
        return duration_text(value) if value else "unlimited"
    if name == "userid" and isinstance(value, int):
        return f"{user_name(value)} ({value})"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={value_text(str(key), one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return str(value)


def job_sheets(body: Callable[[], Body]) -> list[Sheet]:
    """The sheets of a job; `body`: what the follower says of it at the time."""

    def record(width: int) -> Sequence[Sequence[Run]]:
        job = body().get("job")
        if body().get("refused"):
            return _refused(body(), width)
        return _WAITED if job is None else pairs(job, width)

    def why(width: int) -> Sequence[Sequence[Run]]:
        said = body().get("why")
        if not said:
            job = body().get("job")
            text = "it does not wait" if job is not None and job["state"] != "SCHED" else "nothing is said of it"
            return [[(text, "dim")]]
        return pairs(said, width) if isinstance(said, Mapping) else [[(line, "")] for line in wrapped(str(said), width)]

    def events(width: int) -> Sequence[Sequence[Run]]:
        return [_event(event) for event in body().get("events") or ()] or _NONE

    def output(width: int) -> Sequence[Sequence[Run]]:
        return _output(body(), width) or _NONE

    return [Sheet("Record", record), Sheet("Why", why), Sheet("Events", events, True), Sheet("Output", output, True)]


_WAITED: list[list[Run]] = [[("asking...", "dim")]]
_NONE: list[list[Run]] = [[("none", "dim")]]


def _refused(body: Body, width: int) -> list[list[Run]]:
    return [[(line, "bad")] for line in wrapped(str(body["refused"]), width)]


def _event(event: Body) -> list[Run]:
    at = time_text(event["timestamp"], "%m-%d %H:%M:%S")
    context = context_text(event.get("context") or {})
    style = "bad" if event["name"] == "exception" else "bold"
    return [(f"{at} ", "dim"), (printable(str(event["name"])), style), (printable(context), "")]


def _output(body: Body, width: int) -> list[list[Run]]:
    lines: list[list[Run]] = []
    if left_out := body.get("output_left_out"):
        lines.append([(f"{left_out:,} bytes before this are left out", "dim")])
    text: dict[str, str] = {}
    for stream, piece in body.get("output") or ():
        text[stream] = text.get(stream, "") + piece
    for stream, whole in text.items():
        style = "warn" if stream == "stderr" else ""
        for line in printable_lines(whole.removesuffix("\n").expandtabs()).split("\n"):
            lines += [[(part, style)] for part in _cut(line, width - 2)]
    return lines


def _cut(line: str, width: int) -> list[str]:
    width = max(10, width)
    return [line[at : at + width] for at in range(0, len(line), width)] or [""]


def target_sheets(picture: Picture, ranks: Idset, rows: Sequence[JobRow], refused: str = "") -> list[Sheet]:
    """Targets: their state and the jobs on them."""
    machine = picture.machine

    def about(width: int) -> Sequence[Sequence[Run]]:
        states = {word: part & ranks for word, part in machine.states.parts.items() if part & ranks}
        groups = [str(one["name"]) for one in machine.groups if not Idset.parse(one["targets"]).isdisjoint(ranks)]
        part = machine.resources.restrict(ranks)
        busy = sum(int(cores) * len(some & ranks) for cores, some in machine.busy.parts.items())
        shown: dict[str, Any] = {
            "hosts": picture.hosts_text(ranks), "ranks": str(ranks), "group": ", ".join(groups),
            "state": "; ".join(f"{word}: {some if len(states) > 1 else len(some)}" for word, some in states.items()),
            "cores": f"{busy:,} of {part.count('core'):,} in use", "gpus": part.count("gpu") or "",
            "properties": ", ".join(sorted(part.properties)),
        }  # fmt: skip
        drains = {picture.drain_of(rank) for rank in ranks} - {None}
        for at, drain in enumerate(sorted(filter(None, drains))):
            shown[f"drained{at or ''}"] = f"{drain[0] or 'no reason'}{f' (by {drain[1]})' if drain[1] else ''}"
        return pairs(shown, width)

    def jobs(width: int) -> Sequence[Sequence[Run]]:
        if refused:
            return [[(line, "bad")] for line in wrapped(refused, width)]
        return [_job(row) for row in rows] or [[("no job is there", "dim")]]

    return [Sheet("Targets", about), Sheet(f"Jobs ({len(rows)})", jobs)]


def _job(row: JobRow) -> list[Run]:
    left = f"{id_text(row):>14} {user_name(row.info['userid']):<8} "
    return [(left, ""), (f"{row.status_abbrev():<2} ", "good"), (f"{duration_text(row.runtime_s()):>7} ", ""),
            (printable(f"{row.info['name']} on {row.info.get('nodelist') or row.info.get('ranks')}"), "")]  # fmt: skip


def entry_sheets(entry: Body) -> list[Sheet]:
    """A queue or a group."""
    return [Sheet("Record", lambda width: pairs(entry, width))]
