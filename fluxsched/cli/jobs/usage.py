"""How a job ended and its resource usage, as text: the last lines of `job info`, and columns of `jobs`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fluxsched.cli.common import show

_PREFIXES = "KMGTP"


def size_text(size_bytes: float) -> str:
    """Bytes in the largest binary unit, three digits: `51.2M`, `3.1G`."""
    unit = "B"
    for prefix in _PREFIXES:
        if size_bytes < 1000:
            break
        size_bytes, unit = size_bytes / 1024, prefix
    return f"{size_bytes:.3g}{unit}"


def cpu_s(usage: Mapping[str, Any]) -> float:
    """User and system time together."""
    return float(usage["user_s"] + usage["system_s"])


def peak_text(usage: Mapping[str, Any]) -> str:
    """The peak of the largest process; `<` before a bound."""
    bound = "<" if usage.get("max_rss_is_bound") else ""
    return bound + size_text(usage["max_rss_bytes"])


def usage_lines(usage: Mapping[str, Any]) -> Iterator[str]:
    """The job's figures, then those of its tasks."""
    yield f"used: {_figures(usage)}"
    for rank, task in enumerate(usage.get("tasks") or ()):
        yield f"task {rank}: {task['ended']}, {_figures(task)}"
    if usage.get("tasks_left_out"):
        yield f"({usage['tasks_left_out']} more tasks are included in the sums only)"


def _figures(usage: Mapping[str, Any]) -> str:
    user, system = show.duration_text(usage["user_s"]), show.duration_text(usage["system_s"])
    return (
        f"{show.duration_text(usage['wall_s'])} wall, {show.duration_text(cpu_s(usage))} CPU "
        f"({user} user, {system} system), {peak_text(usage)} peak memory"
    )
