"""The tables `[log]` and `[metrics]`: how an instance tells what it does, and where its figures are served."""

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
