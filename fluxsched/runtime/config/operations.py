"""The tables `[log]`, `[metrics]`, `[web]` and `[job-manager]`: how an instance tells what it does, where its figures
and its page are served, and how long it remembers jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from fluxsched.errors import FluxschedError
from fluxsched.runtime.config.toml_reader import TomlTable
from fluxsched.runtime.system.http_address import parse_bind, parse_page_bind
from fluxsched.runtime.system.logs.format import FORMATS, TEXT


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Where figures are served (None: nowhere), and whether other hosts may reach that."""

    bind: str | None = None
    public: bool = False


@dataclass(frozen=True, slots=True)
class PageSettings:
    """Where the page is served (None: nowhere), whether other hosts may reach that, and by which names."""

    bind: str | None = None
    public: bool = False
    names: tuple[str, ...] = ()

    def wanted(self) -> PageSettings:
        """The same, at any free port of loopback where nothing is said."""
        return self if self.bind is not None else replace(self, bind="127.0.0.1:0")


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
    found = MetricsSettings(*_bind(table, parse_bind))
    table.done()
    return found


def read_page(table: TomlTable) -> PageSettings:
    """What `[web]` says."""
    found = PageSettings(*_bind(table, parse_page_bind), table.texts("names"))
    table.done()
    return found


def _bind(table: TomlTable, parse: Callable[..., object]) -> tuple[str | None, bool]:
    """Where something is served, and whether that may be public."""
    bind, public = table.text("bind"), bool(table.flag("public"))
    if bind is not None:
        try:
            parse(bind, public=public)
        except FluxschedError as fault:
            table.fault("bind", str(fault))
    return bind, public
