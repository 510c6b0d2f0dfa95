"""Results as text and JSON, several policies side by side; and the data that a page draws of them.

Law: both say the same; text is rounded for people, JSON is not. Bounded, and what was left out is counted; lines are
sampled and classes of waits computed here, so that a page only draws. Jobs and policies are in columns: names, users
and queues are written once, whatever the number of policies.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, fields
from itertools import compress, pairwise
from typing import Any, NamedTuple

from fluxsched.core.text import plural
from fluxsched.sim.result import (
    COMPLETED,
    DENIED,
    FAILED,
    NO_ROW,
    PARTS,
    PREEMPTED,
    RUNNING,
    TIMEOUT,
    UNSUBMITTED,
    WAITING,
    AccountCourse,
    Columns,
    Result,
    Share,
    Spread,
    Summary,
    averages,
    busy_steps,
    percentile,
    queue_steps,
    stretches,
)
from fluxsched.sim.traces import Trace

BARS = "▁▂▃▄▅▆▇█"

BANK = "bank"
"""Value of `by` that requests the table of accounts."""

SHARES_SHOWN = 10
"""Users or queues in a table: the largest ones; JSON has all."""

STATES = (COMPLETED, TIMEOUT, FAILED, PREEMPTED, DENIED, RUNNING, WAITING, UNSUBMITTED)
"""In the order of the table."""

FAULTS_SHOWN = 3
"""Lines of a trace that were not used, shown as examples."""


REASONS_SHOWN = 5
"""Different reasons a policy: the most frequent ones; JSON has all."""

JOBS_SHOWN = 3
"""Jobs that are named for a reason."""

Reasons = dict[tuple[str, str], list[int | str]]
"""Jobs by their state and the reason for it."""


JOBS, WAITS, MACHINE, SCHEDULER = "Jobs", "Waits", "Machine", "Scheduler"
"""Groups of figures: the headings under which a report has them."""

LESS, MORE = -1, 1
"""Which of two policies is better by a figure, where it says so."""


class Figure(NamedTuple):
    """One figure: its name, its text for one result (`""` where there is none), its group, and which is better."""

    title: str
    text: Callable[[Result, Summary], str]
    group: str = SCHEDULER
    better: int = 0
    is_none_zero: bool = False
    """True if no text means that there was none of it."""


def report(trace: Trace, results: Sequence[Result], by: str | None = None, columns: int | None = None) -> Iterator[str]:
    """Yield the lines of the whole report; `by` is `user`, `queue` or `bank` for a table of these a policy.

    Without it there is one of accounts for each policy under which they were recorded. `columns` is the width of the
    terminal, to which the bars over time are fitted.
    """
    yield from heading(trace, results)
    yield ""
    yield from table(results)
    yield ""
    if lines := list(refusals(results)):
        yield from lines
        yield ""
    yield from over_time(results, columns)
    for result in results:
        if by is not None or result.accounts:
            yield ""
            yield from accounts_table(result) if by in (BANK, None) else shares_table(result, by)


def heading(trace: Trace, results: Sequence[Result]) -> Iterator[str]:
    """Yield lines about the trace: what was simulated, and what of the trace was not."""
    one = results[0]
    machine = f"{plural(one.targets, 'target')}, {plural(one.cores, 'core')}"
    yield f"{trace.name}: {plural(len(trace.jobs), 'job')} on {machine}"
    if endless := sum([job.limit_s is None for job in trace.jobs]):
        jobs = plural(endless, "job")
        yield f"{jobs} without a limit: without a default in their queue nothing can be planned after them"
    if trace.bad or trace.left_out:
        yield f"{plural(trace.bad, 'bad line')}, {trace.left_out:,} left out:"
        yield from (f"  {trace.name}:{fault.line}: {fault.why}: {fault.text}" for fault in trace.faults[:FAULTS_SHOWN])
        more = trace.bad + trace.left_out - FAULTS_SHOWN
        if more > 0:
            yield f"  and {more:,} more"


def table(results: Sequence[Result]) -> Iterator[str]:
    """One column per policy; lines without any figure are left out."""
    rows = [("", [result.title for result in results])]
    for line in FIGURES:
        texts = [line.text(result, result.summary) for result in results]
        if any(texts):
            rows.append((line.title, texts))
    yield from aligned([[title, *texts] for title, texts in rows])


def reasons_of(result: Result) -> Reasons:
    """Jobs by what became of them and why, the most frequent first."""
    jobs = result.jobs
    found: Reasons = {}
    for row, why in sorted(jobs.notes.items()):
        found.setdefault((jobs.state[row], why), []).append(jobs.job[row])
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def refusals(results: Sequence[Result]) -> Iterator[str]:
    """Lines for people; once where all policies say the same of their jobs."""
    yield from [result.cost.refusal for result in results if result.cost.refusal]
    reasons = [reasons_of(result) for result in results]
    if len(results) > 1 and all(each == reasons[0] for each in reasons):
        yield from _reason_lines("", reasons[0])
        return
    for result, mine in zip(results, reasons, strict=True):
        yield from _reason_lines("" if len(results) == 1 else f"{result.title}: ", mine)


def _reason_lines(title: str, reasons: Reasons) -> Iterator[str]:
    for (state, why), jobs in list(reasons.items())[:REASONS_SHOWN]:
        named = ", ".join(map(str, jobs[:JOBS_SHOWN])) + (", ..." if len(jobs) > JOBS_SHOWN else "")
        yield f"{title}{len(jobs):,} {state}: {why} (job {named})"
    if len(reasons) > REASONS_SHOWN:
        yield f"{title}and {len(reasons) - REASONS_SHOWN} more reasons: see the column note of --jobs-out"


PARTS_MIN = 8
"""Fewer bars say nothing, however narrow the terminal."""


def over_time(results: Sequence[Result], columns: int | None = None) -> Iterator[str]:
    """Yield a line of bars a policy, over the makespan: utilisation, and queue length up to the longest of all
    policies.
    """
    longest = max([max(result.summary.over_time.queue) for result in results])
    label = max([len(f"in {PARTS} parts"), *[len(result.title) for result in results]])
    parts = PARTS if columns is None else max(PARTS_MIN, min(PARTS, (columns - label - 4) // 2))
    rows = [[f"in {parts} parts", "utilisation, 0 to 100 %", f"queue length, {scale_of(longest)}"]]
    for result in results:
        course = result.summary.over_time
        rows.append(
            [result.title, bars(folded(course.utilisation, parts), 1.0), bars(folded(course.queue, parts), longest)]
        )
    for title, *courses in rows:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        yield "  ".join([title.ljust(widths[0]), courses[0].ljust(widths[1]), courses[1]]).rstrip()


def folded(values: Sequence[float | None], parts: int) -> list[float | None]:
    """Return the means of fewer parts, None where there is no value."""
    ends = [len(values) * part // parts for part in range(parts + 1)]
    groups = [[each for each in values[begin:end] if each is not None] for begin, end in pairwise(ends)]
    return [sum(group) / len(group) if group else None for group in groups]


def scale_of(longest: float) -> str:
    """Return the scale of bars, in as many digits as it takes to be more than nothing."""
    if not longest:
        return "0 throughout"
    return f"0 to {longest:,.1f}" if longest >= 0.1 else f"0 to {longest:.1g}"


def bars(values: Sequence[float | None], most: float) -> str:
    """Return a bar a value, or a blank where there is none."""
    top = len(BARS) - 1
    heights = [None if each is None else round(top * each / most) if most else 0 for each in values]
    return "".join([" " if height is None else BARS[min(top, height)] for height in heights])


def shares_table(result: Result, by: str) -> Iterator[str]:
    """Yield the lines of the table of the largest users or queues under one policy."""
    shares = result.summary.users if by == "user" else result.summary.queues
    rows = [[f"{result.title}: {by}", "jobs", "core h", "wait mean [s]", "slowdown mean"]]
    for share in shares[:SHARES_SHOWN]:
        name = "unknown" if share.name is None else str(share.name)
        core_h = f"{share.core_s / 3600:,.1f}"
        rows.append([name, f"{share.jobs:,}", core_h, _number(share.wait_mean_s), _number(share.slowdown_mean)])
    yield from aligned(rows)
    if len(shares) > SHARES_SHOWN:
        yield f"and {len(shares) - SHARES_SHOWN} more"


def accounts_table(result: Result) -> Iterator[str]:
    """Yield the lines of the table of the accounts with the highest usage under one policy: means over the makespan, in
    cores' worth.
    """
    rows = [[f"{result.title}: account", "jobs", "usage", "share", "shortfall [h]", "wait mean [s]", "preempted",
             "lost [core h]"]]  # fmt: skip
    makespan_s = result.summary.makespan_s or 1.0
    for course in result.accounts[:SHARES_SHOWN]:
        wait_s = course.wait_mean_s
        rows.append([
            course.name, f"{course.jobs:,}", _number(course.used_s / makespan_s), _number(course.share_s / makespan_s),
            _number(course.shortfall_s / 3600), "" if wait_s is None else _number(wait_s), f"{course.preempted:,}",
            _number(course.lost_core_s / 3600),
        ])  # fmt: skip
    yield from aligned(rows)
    if len(result.accounts) > SHARES_SHOWN:
        yield f"and {len(result.accounts) - SHARES_SHOWN} more"


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines, with the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
        yield "  ".join([first.ljust(widths[0]), *cells]).rstrip()


def as_json(trace: Trace, results: Sequence[Result]) -> dict[str, Any]:
    """Everything that the text says, and all users and queues."""
    one = results[0]
    return {
        "trace": {
            "name": trace.name, "jobs": len(trace.jobs), "bad": trace.bad, "left_out": trace.left_out,
            "faults": [fault._asdict() for fault in trace.faults],
        },
        "machine": {"targets": one.targets, "cores": one.cores},
        "policies": [_result_json(result) for result in results],
    }  # fmt: skip


def _result_json(result: Result) -> dict[str, Any]:
    cost = result.cost
    figures: dict[str, Any] = {
        "instants": cost.instants, "passes": cost.passes, "refused": cost.refused, "wall_s": cost.wall_s,
        **({"refusal": cost.refusal} if cost.refusal else {}),
    }  # fmt: skip
    if cost.pass_s:
        passes = sorted(cost.pass_s)
        figures |= {
            "pass_mean_s": sum(passes) / len(passes), "pass_p99_s": percentile(passes, 0.99), "pass_max_s": passes[-1]
        }  # fmt: skip
    if cost.considered_s:
        considered_s = sorted(cost.considered_s)
        figures |= {
            "considered_p50_s": percentile(considered_s, 0.5), "considered_p99_s": percentile(considered_s, 0.99),
            "considered_max_s": considered_s[-1], "started_per_s": result.started_per_s,
            "utilisation_of": result.utilisation_of,
        }  # fmt: skip
    label = {} if result.label is None else {"label": result.label}
    return {
        "policy": result.policy, **label, **asdict(result.summary), "notes": _reasons_json(result),
        "preempted": _preempted_json(result.jobs), "cost": figures, **_accounts_json(result)
    }  # fmt: skip


def _reasons_json(result: Result) -> list[dict[str, Any]]:
    """All reasons, with how many jobs have each."""
    return [{"state": state, "reason": why, "jobs": len(jobs)} for (state, why), jobs in reasons_of(result).items()]


def _accounts_json(result: Result) -> dict[str, Any]:
    """All accounts, with means of usage and share over equal parts of the makespan."""
    if not result.accounts:
        return {}
    course = result.summary.over_time
    begin_s, end_s = course.begin_s, course.begin_s + PARTS * course.part_s
    rows = [
        {
            "account": each.name, "jobs": each.jobs, "wait_mean_s": each.wait_mean_s, "preempted": each.preempted,
            "lost_core_s": each.lost_core_s, "used_s": each.used_s, "share_s": each.share_s,
            "shortfall_s": each.shortfall_s, "usage": averages(each.usage, begin_s, end_s, PARTS),
            "share": averages(each.share, begin_s, end_s, PARTS),
        }
        for each in result.accounts
    ]  # fmt: skip
    return {"accounts": rows}


def _preempted_json(jobs: Columns) -> list[dict[str, Any]]:
    """All attempts that were ended for other jobs."""
    return [
        {
            "job": jobs.job[each.row], "start": each.start_s, "end": each.end_s, "lost_core_s": each.lost_core_s,
            "for": None if each.for_row == NO_ROW else jobs.job[each.for_row],
        }
        for each in jobs.preemptions
    ]  # fmt: skip


def _states(state: str) -> Callable[[Result, Summary], str]:
    return lambda result, summary: f"{summary.states[state]:,}" if state in summary.states else ""


def _spread(which: Callable[[Summary], Spread | None], number: str) -> Callable[[Result, Summary], str]:
    def text(result: Result, summary: Summary) -> str:
        spread = which(summary)
        return "" if spread is None else _number(getattr(spread, number))

    return text


def _wait(summary: Summary) -> Spread | None:
    return summary.wait_s


def _slowdown(summary: Summary) -> Spread | None:
    return summary.slowdown


def _fairness(value: float | None, shares: Sequence[Share]) -> str:
    """Of more than one, else there is nothing to compare."""
    return "" if value is None or len(shares) < 2 else f"{value:.3f}"


def _passes(number: Callable[[Sequence[float]], float]) -> Callable[[Result, Summary], str]:
    def text(result: Result, summary: Summary) -> str:
        passes = sorted(result.cost.pass_s)
        return f"{number(passes) * 1e6:,.1f}" if passes else ""

    return text


def _considered(result: Result, part: float) -> str:
    considered_s = sorted(result.cost.considered_s)
    return _number(percentile(considered_s, part)) if considered_s else ""


def _kinds_used(result: Result, summary: Summary) -> str:
    """Utilisation of all that is no core: `gpu 81.2, memory 40.0`."""
    parts = result.utilisation_of.items() if result.cost.considered_s else ()
    return ", ".join([f"{kind} {100 * part:.1f}" for kind, part in parts if kind != "core"])


def _rate(result: Result, summary: Summary) -> str:
    submitted = len(result.jobs) - summary.states.get(UNSUBMITTED, 0)
    return f"{submitted / result.cost.wall_s:,.0f}" if result.cost.wall_s else ""


def _number(value: float) -> str:
    """Three decimals below a thousand, one above."""
    return f"{value:,.3f}" if abs(value) < 1000 else f"{value:,.1f}"


SPREAD = tuple(field.name for field in fields(Spread))

FIGURES = (
    *[Figure(f"jobs {state}", _states(state), JOBS) for state in STATES],
    *[Figure(f"wait {number} [s]", _spread(_wait, number), WAITS, LESS) for number in SPREAD],
    *[Figure(f"bounded slowdown {number}", _spread(_slowdown, number), WAITS, LESS) for number in SPREAD],
    Figure(
        "utilisation [%]",
        lambda _, summary: _number(100 * summary.utilisation) if summary.utilisation else "",
        MACHINE,
        MORE,
    ),
    Figure("makespan [s]", lambda _, summary: _number(summary.makespan_s), MACHINE, LESS),
    Figure("queue length mean", lambda _, summary: _number(summary.queue_mean), MACHINE, LESS),
    Figure("queue length max", lambda _, summary: f"{summary.queue_max:,}", MACHINE, LESS),
    Figure("fairness over users", lambda _, summary: _fairness(summary.fairness_users, summary.users), MACHINE, MORE),
    Figure(
        "fairness over queues", lambda _, summary: _fairness(summary.fairness_queues, summary.queues), MACHINE, MORE
    ),
    Figure(
        "preemptions", lambda _, summary: f"{summary.preemptions:,}" if summary.preemptions else "", MACHINE, LESS, True
    ),
    Figure(
        "work lost [core h]",
        lambda _, summary: _number(summary.lost_core_s / 3600) if summary.preemptions else "",
        MACHINE,
        LESS,
        True,
    ),
    Figure("grows", lambda _, summary: f"{summary.grows:,}" if summary.grows or summary.shrinks else "", MACHINE),
    Figure("shrinks", lambda _, summary: f"{summary.shrinks:,}" if summary.grows or summary.shrinks else "", MACHINE),
    Figure("grown [core h]", lambda _, summary: _number(summary.grown_core_s / 3600) if summary.grows else "", MACHINE),
    Figure(
        "shrunk [core h]", lambda _, summary: _number(summary.shrunk_core_s / 3600) if summary.shrinks else "", MACHINE
    ),
    Figure(
        "hops mean", lambda _, summary: "" if summary.hops_mean is None else _number(summary.hops_mean), MACHINE, LESS
    ),
    Figure("hops max", lambda _, summary: "" if summary.hops_max is None else f"{summary.hops_max}", MACHINE, LESS),
    Figure("passes", lambda result, _: f"{result.cost.passes:,}" if result.cost.passes else ""),
    Figure("decisions refused", lambda result, _: f"{result.cost.refused:,}" if result.cost.refused else ""),
    Figure("considered p50 [s]", lambda result, _: _considered(result, 0.5), better=LESS),
    Figure("considered p99 [s]", lambda result, _: _considered(result, 0.99), better=LESS),
    Figure("started [jobs/s]", lambda result, _: _number(result.started_per_s) if result.cost.considered_s else ""),
    Figure("utilisation of others [%]", _kinds_used, MACHINE),
    Figure("pass mean [us]", _passes(lambda passes: sum(passes) / len(passes)), better=LESS),
    Figure("pass p99 [us]", _passes(lambda passes: percentile(passes, 0.99)), better=LESS),
    Figure("pass max [us]", _passes(lambda passes: passes[-1]), better=LESS),
    Figure("simulated [jobs/s]", _rate, better=MORE),
)
"""The figures in their order."""


# ---- drawings

BARS_MAX = 40_000
"""Jobs of a policy on the chart of targets, those with most core seconds: about 50 bytes each in the file.

One that was preempted, or changed its size, has some bars more.
"""

POINTS_MAX = 800
"""Of a line: more than its part of a page has pixels."""

QUANTILES = 200
"""Points of the curve of all waits."""

USERS_MAX = 20
"""Users in the chart of waits: those with most core seconds."""

UNIX_START_MAX = 1 << 40
"""Later years have five digits."""

SIZE_CLASSES_MAX = 24
"""Powers of two: up to 16 million cores."""


def drawing(trace: Trace, results: Sequence[Result]) -> dict[str, Any]:
    """Everything that the page of a study draws."""
    jobs = results[0].jobs
    end_s = max([result.end_s for result in results])
    users, user_of = _named(jobs.user)
    queues, queue_of = _named(jobs.queue)
    drawn = sorted(set().union(*[largest(result) for result in results]))
    return {
        "trace": trace.name, "heading": list(heading(trace, results)), "begin": min(jobs.submit, default=0.0),
        "end": end_s, "unix_start": _unix_start(trace),
        "targets": results[0].targets, "cores": results[0].cores, "figures": _figures(results),
        "refusals": list(refusals(results)), "users": users, "queues": queues,
        "jobs": {
            "row": drawn, "id": [str(jobs.job[row]) for row in drawn],
            "submit": [_short(jobs.submit[row]) for row in drawn], "user": [user_of[row] for row in drawn],
            "queue": [queue_of[row] for row in drawn],
        },
        "policies": [_policy(result, drawn, end_s) for result in results],
        "by_size": by_size(results), "by_user": by_user(results),
    }  # fmt: skip


def _unix_start(trace: Trace) -> int | None:
    """Return the wall time of the trace's beginning, if its header has one."""
    text = trace.header.get("UnixStartTime", "")
    return int(text) if text.isascii() and text.isdecimal() and 0 < int(text) < UNIX_START_MAX else None


def _policy(result: Result, drawn: Sequence[int], end_s: float) -> dict[str, Any]:
    jobs, ranks = result.jobs, result.jobs.ranks
    shown = [row for row in drawn if ranks is not None and ranks[row] is not None]
    bars = list(stretches(jobs, shown))
    begun = sum([start is not None for start in jobs.start])
    waits = sorted([wait_s for wait_s in result.wait if wait_s is not None])
    return {
        "title": result.title, "policy": result.policy,
        "bars": {
            "at": [bisect_left(drawn, each.row) for each in bars],
            "start": [_short(each.start_s) for each in bars],
            "end": [_short(each.end_s) for each in bars],
            "ranks": [each.ranks for each in bars],
            "procs": [each.procs for each in bars],
        },
        "left_out": begun - len(shown),
        "used": _averaged(busy_steps(jobs), end_s), "usable": [[_short(at), cores] for at, cores in result.capacity],
        "waiting": _averaged(queue_steps(jobs), end_s),
        "quantiles": [_short(percentile(waits, part / QUANTILES)) for part in range(QUANTILES + 1)] if waits else [],
        "accounts": [_account(course, result.summary.makespan_s or 1.0) for course in result.accounts[:USERS_MAX]],
    }  # fmt: skip


def _account(course: AccountCourse, makespan_s: float) -> dict[str, Any]:
    return {
        "name": course.name, "depth": len(course.path) - 1, "jobs": course.jobs, "usage": course.used_s / makespan_s,
        "share": course.share_s / makespan_s, "shortfall_s": course.shortfall_s, "wait_mean_s": course.wait_mean_s,
    }  # fmt: skip


def largest(result: Result) -> list[int]:
    """Return the rows that have started, those with most core seconds if they are too many."""
    jobs = result.jobs
    begun = [row for row, start_s in enumerate(jobs.start) if start_s is not None]
    if len(begun) <= BARS_MAX:
        return begun

    def work(row: int) -> float:
        start_s, end_s = jobs.start[row], jobs.end[row]
        return ((result.end_s if end_s is None else end_s) - (start_s or 0.0)) * jobs.procs[row]

    return sorted(begun, key=work, reverse=True)[:BARS_MAX]


def _figures(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return the lines of the report's table: a text for each policy, and the number that it says."""
    found = []
    for line in FIGURES:
        texts = [line.text(result, result.summary) for result in results]
        if any(texts):
            numbers = [0.0 if not text and line.is_none_zero else _number_of(text) for text in texts]
            found.append(
                {"title": line.title, "group": line.group, "better": line.better, "texts": texts, "numbers": numbers}
            )
    return found


def _number_of(text: str) -> float | None:
    """Return the number of a figure as it is shown; None for none, or for several."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _named(names: Iterable[int | str | None]) -> tuple[list[str], list[int]]:
    """Return the names once each, and the place of each entry's name among them."""
    places: dict[int | str | None, int] = {}
    of = [places.setdefault(name, len(places)) for name in names]
    return ["" if name is None else str(name) for name in places], of


def _size_class(procs: int) -> int:
    return min(SIZE_CLASSES_MAX, max(0, procs - 1).bit_length())


def _size_label(power: int) -> str:
    """`5–8` of the jobs of more than 2^2 cores and at most 2^3."""
    if power == SIZE_CLASSES_MAX:
        return f"over {1 << power - 1:,}"
    return f"{1 << power:,}" if power < 2 else f"{(1 << power - 1) + 1:,}–{1 << power:,}"


def by_size(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Draw the waits of jobs of like size: powers of two of cores."""
    powers = [_size_class(procs) for procs in results[0].jobs.procs]
    return [_class(results, _size_label(power), [at == power for at in powers]) for power in sorted(set(powers))]


def by_user(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Draw the waits of the users that used most under the first policy."""
    users = results[0].jobs.user
    return [
        _class(results, "unknown" if share.name is None else str(share.name), [user == share.name for user in users])
        for share in results[0].summary.users[:USERS_MAX]
    ]


def _class(results: Sequence[Result], label: str, members: Sequence[bool]) -> dict[str, Any]:
    """Return a class of jobs: under each policy median and 95th percentile of its waits, and how many have started."""
    waits: list[list[float | int | None] | None] = []
    for result in results:
        ordered = sorted([wait_s for wait_s in compress(result.wait, members) if wait_s is not None])
        waits.append(
            [_short(percentile(ordered, 0.5)), _short(percentile(ordered, 0.95)), len(ordered)] if ordered else None
        )
    return {"label": label, "jobs": sum(members), "waits": waits}


def _averaged(steps: Sequence[tuple[float, float]], end_s: float) -> list[list[float | int | None]]:
    """Return a line of at most POINTS_MAX points: means of equal parts of the time if there are more steps."""
    if len(steps) <= POINTS_MAX:
        return [[_short(when_s), _short(value)] for when_s, value in steps]
    means = averages(steps, 0.0, end_s, POINTS_MAX)
    return [[_short(end_s * part / POINTS_MAX), _short(mean)] for part, mean in enumerate(means)]


def _short(number: float | None) -> float | int | None:
    """Milliseconds are enough for a drawing, and whole numbers shorter."""
    if number is None:
        return None
    rounded = round(number, 3)
    return int(rounded) if rounded == int(rounded) else rounded
