"""A configuration file as an instance takes it up: all its faults in one go, also those that only the machine shows.

Law: the text, the policies' files and the targets are looked at in this order, and nothing is said before all three
were; only a missing file or one that is not TOML is reported alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fluxsched.runtime.config.policies import absent_files
from fluxsched.runtime.config.policy_list import IMPORT_S, POLICY, USED_PLUGIN, fault_of
from fluxsched.runtime.config.reader import Config, read_file
from fluxsched.runtime.config.toml_lines import Path as Keys
from fluxsched.runtime.config.toml_reader import TomlFault
from fluxsched.sched.loading import PLUGIN_SIGN, split_plugins
from fluxsched.sched.registry import has_plugin, split_queues


def read_site(path: Path | None, *, trying: bool = False) -> tuple[Config, list[TomlFault]]:
    """What a file says, and all that is wrong with it without looking at its targets (`build_inventory`).

    With `trying` its policies are also imported, each in a process of its own, which starting an instance does anyway.
    Without a file everything has its default. Raises InvalidValue for what cannot be read or is not TOML.
    """
    if path is None:
        return Config(), []
    config, faults = read_file(path)
    return config, [*faults, *_faulty_policies(config, trying)]


def _faulty_policies(config: Config, trying: bool) -> Iterator[TomlFault]:
    """Policies and plugins in files that are not there, and those that cannot be used."""
    for keys, title, specs in _policies(config):
        line, absent = config.line_of(keys), list(absent_files(specs))
        yield from (TomlFault(line, f"{title}: there is no file {name}", keys) for name in absent)
        if trying and not absent:
            yield from (TomlFault(line, f"{title}: {fault}", keys) for fault in import_faults(specs))


def import_faults(specs: str, import_s: float = IMPORT_S) -> Iterator[str]:
    """Import the policies and plugins of `SPEC;QUEUE=SPEC;...`, each in a process of its own: why some cannot be used.

    A queue may have plugins alone. Each may take `import_s` seconds.
    """
    general, own = split_queues(specs)
    for spec in (general, *own.values()):
        policy, plugins = split_plugins(spec)
        tried = [(policy, POLICY)] if has_plugin(policy) else []
        for each, noun in (*tried, *((plugin, USED_PLUGIN) for plugin in plugins)):
            fault = fault_of(each, noun, import_s)
            if fault is not None:
                yield fault


def _policies(config: Config) -> Iterator[tuple[Keys, str, str]]:
    """Every text that names policies: where it stands, its title, and what it says."""
    for at, scheduler in enumerate(config.schedulers):
        if scheduler.policy:
            yield ("scheduler", at, "policy"), "[[scheduler]] policy", scheduler.policy
        if scheduler.recovery.fallback is not None:
            yield ("scheduler", at, "fallback"), "[[scheduler]] fallback", scheduler.recovery.fallback
    for name, queue in config.queues.items():
        if queue.policy is not None:
            key = "plugins" if queue.policy.startswith(PLUGIN_SIGN) else "policy"
            yield ("queues", name, key), f"[queues.{name}] {key}", queue.policy
