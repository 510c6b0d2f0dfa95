"""A configuration file as an instance takes it up: all its faults in one go, also those that only the machine shows.

Law: the text, the policies' files and the targets are looked at in this order, and nothing is said before all three
were; only what is no TOML, or no file, is said alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fluxsched.runtime.config import Config, read_file
from fluxsched.runtime.policies import absent_files
from fluxsched.runtime.toml_lines import Path as Keys
from fluxsched.runtime.toml_reader import Fault


def read_site(path: Path | None) -> tuple[Config, list[Fault]]:
    """What a file says, and all that is wrong with it as long as nobody asks for its targets (`build_inventory`).

    Without a file everything has its default. Raises InvalidValue for what cannot be read or is no TOML.
    """
    if path is None:
        return Config(), []
    config, faults = read_file(path)
    return config, [*faults, *_absent_policies(config)]


def _absent_policies(config: Config) -> Iterator[Fault]:
    for at, scheduler in enumerate(config.schedulers):
        for name in absent_files(scheduler.policy) if scheduler.policy else ():
            path: Keys = ("scheduler", at, "policy")
            yield Fault(config.line_of(path), f"[[scheduler]] policy: there is no file {name}", path)
    for queue in config.queues.values():
        for name in absent_files(queue.policy) if queue.policy else ():
            path = ("queues", queue.name, "policy")
            yield Fault(config.line_of(path), f"[queues.{queue.name}] policy: there is no file {name}", path)
