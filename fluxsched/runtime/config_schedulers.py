"""`[[scheduler]]` of a configuration: which scheduler modules an instance starts, and what they serve.

Law: what the words alone say is judged here, down to the options of our own policies; no code of a plugin is run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from fluxsched.errors import InvalidValue
from fluxsched.resource.groups import DEFAULT, EXCLUDE
from fluxsched.runtime.config_values import QueueSettings, SchedulerSettings
from fluxsched.runtime.policies import composed, default_name, located
from fluxsched.runtime.toml_reader import Table

SCHEDULERS_MAX = 64
"""Each is a process of its own."""

TAKEN = ("instance", "job-manager", "resource")
"""Names of modules that are part of the instance."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def read_schedulers(
    root: Table, groups: set[str], queues: Mapping[str, QueueSettings], directory: Path
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
        policy = table.text("policy", partial(composed, groups=mine or (DEFAULT,), queues=queues))
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
        if known in names and (name or not twice):  # who serves a group twice mostly is called the same twice
            whose = f"{known!r} is a part of the instance" if known in TAKEN else f"two schedulers are named {known!r}"
            table.fault("name" if name else None, f"{whose}: give another name")
        names |= {known} if known else set()
        table.done()
        found.append(SchedulerSettings(located(policy, directory) if policy else "", name, mine))
    return tuple(found)


def check_group(table: Table, key: str | None, group: str, groups: set[str]) -> None:
    """Note a group that nobody can acquire, or that there is none of this name."""
    if group == EXCLUDE:
        table.fault(key, f"nobody can acquire group {EXCLUDE!r}")
    elif group not in groups:
        known = ", ".join(sorted(groups))
        table.fault(key, f"group {group!r} is not in [resource.groups]; there are: {known} (it may be empty there)")


def check_name(name: str) -> None:
    """Raises InvalidValue for what is no name of a queue or a module."""
    if not _NAME.fullmatch(name):
        raise InvalidValue(f"name {name!r} must be at most 64 letters, digits, '.', '_' and '-', the first no sign")
