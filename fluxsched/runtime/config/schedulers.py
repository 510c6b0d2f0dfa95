"""`[[scheduler]]` of a configuration: which scheduler modules an instance starts, and what they serve.

Law: only the specification itself is checked here, down to the options of built-in policies; no plugin code is run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from fluxsched.errors import InvalidValue
from fluxsched.jobs.queue.queues import QueueConfig
from fluxsched.resource.state.groups import DEFAULT, EXCLUDE
from fluxsched.runtime.config.policies import (
    check_policy,
    composed,
    default_name,
    located,
    queues_split_by,
    with_plugins,
)
from fluxsched.runtime.config.toml_reader import TomlTable
from fluxsched.runtime.config.values import Recovery, SchedulerSettings
from fluxsched.sched.plugin_registry import check_plugin

SCHEDULERS_MAX = 64
"""Each is a process of its own."""

HUNG_AFTER_MIN_S = 0.2
"""Below it a busy machine is taken for a scheduler that hangs."""

NO_FALLBACK = "none"

DEFAULT_RECOVERY = Recovery()

TAKEN = ("instance", "job-manager", "resource")
"""Names of modules that are part of the instance."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def read_schedulers(
    root: TomlTable, groups: set[str], queues: Mapping[str, QueueConfig], directory: Path
) -> tuple[SchedulerSettings, ...]:
    """Every `[[scheduler]]`; policies in files count from `directory`. What is wrong is noted in the document."""
    found: list[SchedulerSettings] = []
    names = set(TAKEN)
    served: dict[str, int] = {}
    for at, table in enumerate(root.tables("scheduler")):
        if at >= SCHEDULERS_MAX:
            table.fault(None, f"is above the limit of {SCHEDULERS_MAX} schedulers")
            break
        mine = table.texts("groups")
        split = queues_split_by(mine or (DEFAULT,), queues)
        for text in split.values():
            table.fault("groups" if mine else None, text)
        ours = (mine or (DEFAULT,))[0]
        whole = {queue: replace(one, group=ours, others=()) if queue in split else one for queue, one in queues.items()}
        policy = table.text("policy", partial(composed, groups=mine or (DEFAULT,), queues=whole))
        plugins = table.texts("plugins", check_plugin)
        policy = policy and with_plugins(policy, plugins)
        name = table.text("name", check_name)
        if "policy" not in table:
            table.fault(None, 'has no policy, such as policy = "fifo"')
        twice = False
        for group in mine or (DEFAULT,):
            check_group(table, "groups" if mine else None, group, groups)
            twice |= group in served
            if group in served:
                text = f"group {group!r} is served by scheduler number {served[group] + 1} already: one a group"
                table.fault("groups" if mine else None, text)
            served.setdefault(group, at)
        known = name or (default_name(policy, mine) if policy else None)
        if known in names and (name or not twice):  # two schedulers of one group mostly have one name, too
            whose = f"{known!r} is a part of the instance" if known in TAKEN else f"two schedulers are named {known!r}"
            table.fault("name" if name else None, f"{whose}: give another name")
        names |= {known} if known else set()
        recovery = _recovery(table, directory)
        table.done()
        found.append(SchedulerSettings(located(policy, directory) if policy else "", name, mine, recovery))
    return tuple(found)


def _recovery(table: TomlTable, directory: Path) -> Recovery:
    restart = table.integer("restart", 0)
    fallback = table.text("fallback", check_fallback)
    hung_after_s = table.duration_s("hung-after")
    if hung_after_s is not None and hung_after_s < HUNG_AFTER_MIN_S:
        table.fault("hung-after", f"{hung_after_s:g} s is below {HUNG_AFTER_MIN_S:g} s: every pause would count")
    return recovery_of(restart, fallback and located(fallback, directory), hung_after_s)


def recovery_of(
    restart: int | None, fallback: str | None, hung_after_s: float | None, default: Recovery = DEFAULT_RECOVERY
) -> Recovery:
    """The given values, else the defaults; the fallback `none` means no fallback."""
    return Recovery(
        default.restart if restart is None else restart,
        default.fallback if fallback is None else None if fallback == NO_FALLBACK else fallback,
        default.hung_after_s if hung_after_s is None else hung_after_s,
    )


def check_fallback(spec: str) -> None:
    """Raises InvalidValue for what is neither a policy nor `none`."""
    if spec != NO_FALLBACK:
        check_policy(spec)


def check_group(table: TomlTable, key: str | None, group: str, groups: set[str]) -> None:
    """Report a group that cannot be acquired or is unknown."""
    if group == EXCLUDE:
        table.fault(key, f"group {EXCLUDE!r} cannot be acquired")
    elif group not in groups:
        known = ", ".join(sorted(groups))
        table.fault(key, f"group {group!r} is not in [resource.groups]; there are: {known} (it may be empty there)")


def check_name(name: str) -> None:
    """Raises InvalidValue for a name that is neither a queue's nor a module's."""
    if not _NAME.fullmatch(name):
        raise InvalidValue(f"name {name!r} must be at most 64 letters, digits, '.', '_' and '-', the first no sign")
