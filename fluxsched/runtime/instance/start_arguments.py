"""Checks the arguments of `fluxsched start` before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fluxsched.errors import InvalidValue
from fluxsched.jobs.queue.queues import DEFAULT_GROUP, QueueConfig
from fluxsched.runtime.config.policies import check_files, check_policies, composed
from fluxsched.runtime.config.reader import load_config
from fluxsched.runtime.inventory.sources import fake_resources


def check_start(fake: str | None, schedulers: tuple[str, ...], config: Path | None = None) -> None:
    """Raises InvalidValue for a bad `--fake`, and for a `--scheduler` that names no policy, file or queue."""
    if fake is not None:
        fake_resources(fake)
    for specs in schedulers:
        if specs == "none":
            continue
        try:
            _, own = check_policies(specs)
            check_files(specs)
            if own and (queues := _queues(config)) is not None:
                composed(specs, (DEFAULT_GROUP,), queues)
        except InvalidValue as fault:
            raise InvalidValue(f"--scheduler {specs}: {fault}") from None


def _queues(config: Path | None) -> Mapping[str, QueueConfig] | None:
    """Those that are configured; None if the file has faults, which the start itself reports."""
    try:
        return {} if config is None else load_config(config).queues
    except InvalidValue:
        return None
