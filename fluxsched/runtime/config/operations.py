"""The tables `[log]`, `[metrics]` and `[job-manager]`: how an instance tells what it does, where its figures are
served, and how long it remembers jobs.
"""

from __future__ import annotations

from dataclasses import dataclass

from fluxsched.errors import FluxschedError
from fluxsched.runtime.config.toml_reader import TomlTable
from fluxsched.runtime.system.http_address import parse_bind
from fluxsched.runtime.system.logs.format import FORMATS, TEXT


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Where figures are served (None: nowhere), and whether other hosts may reach that."""

    bind: str | None = None
    public: bool = False


INACTIVE_NUMBER_MAX = 100_000
"""Ended jobs that are remembered: 100 MB of the state, and as many as are listed at once."""
INACTIVE_AGE_MAX_S = 365 * 86_400.0
"""And for how long at most: a year (seconds)."""


@dataclass(frozen=True, slots=True)
class HistorySettings:
    """How many ended jobs are remembered, and how long (seconds)."""

    number_max: int = INACTIVE_NUMBER_MAX
    age_max_s: float = INACTIVE_AGE_MAX_S


def read_history(table: TomlTable) -> HistorySettings:
    """What `[job-manager]` says; the names are Flux's."""
    number, age_s = table.integer("inactive-num-limit", 1), table.duration_s("inactive-age-limit")
    table.done()
    return HistorySettings(
        INACTIVE_NUMBER_MAX if number is None else number, INACTIVE_AGE_MAX_S if age_s is None else age_s
    )


def read_log(table: TomlTable) -> str:
    """The format of the log, one of FORMATS."""
    found = table.choice("format", FORMATS) or TEXT
    table.done()
    return found


def read_metrics(table: TomlTable) -> MetricsSettings:
    """What `[metrics]` says."""
    bind, public = table.text("bind"), bool(table.flag("public"))
    if bind is not None:
        try:
            parse_bind(bind, public=public)
        except FluxschedError as fault:
            table.fault("bind", str(fault))
    table.done()
    return MetricsSettings(bind, public)
