"""Settings of our scheduler in a Flux instance's configuration: `[fair]`, and how long a preempted job has.

Law: the configuration is read once, when the module is loaded, and its faults are reported then; only the parts that a
policy asks for are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fluxsched.config.reader import fair_settings
from fluxsched.core.duration import parse_duration
from fluxsched.errors import InvalidValue
from fluxsched.sched.fair.accounts import FairSettings
from fluxsched.sched.preemption import PREEMPT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class SiteConfig:
    """`fair` is None unless the policy asks for accounts. A job has `preempt_timeout_s` from SIGTERM to SIGKILL."""

    fair: FairSettings | None = None
    preempt_timeout_s: float = PREEMPT_TIMEOUT_S


NO_CONFIG: Final = SiteConfig()


def read_site(config: Mapping[str, Any]) -> SiteConfig:
    """The answer to `config.get`. Raises InvalidValue with all that is wrong with `[fair]`."""
    return SiteConfig(fair_settings(config), _kill_timeout_s(config))


def _kill_timeout_s(config: Mapping[str, Any]) -> float:
    """Flux's `exec.kill-timeout`; what is wrong with it is for Flux to say."""
    table = config.get("exec")
    given = table.get("kill-timeout") if isinstance(table, Mapping) else None
    try:
        return parse_duration(given) if isinstance(given, str) else PREEMPT_TIMEOUT_S
    except InvalidValue:
        return PREEMPT_TIMEOUT_S
