"""Readers of `[prolog]`, `[epilog]`, `[health]` and `[notify]`: programs of the site.

Law: a program is looked up when the file is read, so that a start and `config check` refuse one that is missing or that
this user cannot execute. A relative path counts from the directory of the file; a name without a slash is looked up in
the PATH that programs have. Other hosts must have it at the same path.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from fluxsched.config.toml import TomlTable
from fluxsched.core.programs import PROGRAM_PATH, WHEN, HealthCheck, SiteProgram, check_words, parse_words
from fluxsched.core.text import shown
from fluxsched.errors import InvalidValue

PER_HOST, PER_JOB = "host", "job"
PERILOG_TIMEOUT_S: Final = 60.0
"""Time limit of a prolog or an epilog (seconds), unless `timeout` sets another one: a job waits for it on all hosts."""
HEALTH_INTERVAL_S: Final = 300.0
"""Interval of health checks (seconds), unless `interval` sets another one."""
PROGRAM_TIMEOUT_MAX_S: Final = 86_400.0
"""The longest time limit of a program: a day."""


def read_perilog(root: TomlTable, name: str, directory: Path) -> SiteProgram | None:
    """Return the program of the table `prolog` or `epilog`; None if there is none, or it is faulty."""
    if name not in root:
        return None
    table = root.table(name)
    words, timeout_s = read_words(table, directory), read_time(table, "timeout", PERILOG_TIMEOUT_S)
    per = table.choice("per", (PER_HOST, PER_JOB)) or PER_HOST
    table.done()
    return None if words is None else SiteProgram(words, timeout_s, per == PER_HOST)


def read_health(root: TomlTable, directory: Path) -> HealthCheck | None:
    """Return the health check of `[health]`; None if there is none, or it is faulty."""
    if "health" not in root:
        return None
    table = root.table("health")
    words, timeout_s = read_words(table, directory), read_time(table, "timeout", PERILOG_TIMEOUT_S)
    interval_s = read_time(table, "interval", HEALTH_INTERVAL_S)
    when = [word.strip() for word in table.joined("when").split(",")] if "when" in table else list(WHEN)
    if unknown := [word for word in when if word not in WHEN]:
        table.fault("when", f"{shown(unknown[0])} is not one of {', '.join(WHEN)}: name some of them")
    table.done()
    return None if words is None else HealthCheck(SiteProgram(words, timeout_s), interval_s, frozenset(when))


def read_notify(root: TomlTable, directory: Path) -> tuple[str, ...] | None:
    """Return the words of the program of `[notify]`; None if there is none, or it is faulty."""
    if "notify" not in root:
        return None
    table = root.table("notify")
    words = read_words(table, directory)
    table.done()
    return words


def read_words(table: TomlTable, directory: Path) -> tuple[str, ...] | None:
    """Return the words of `program`, a text or a list, with the path of the program; None if they are faulty."""
    if "program" not in table:
        table.fault(None, 'names no program, such as program = "/usr/sbin/site-check --quick"')
        return None
    try:
        words = parse_words(table.text("program") or "") if table.has_text("program") else list(table.texts("program"))
        first, *arguments = check_words(words)
        return (found_program(first, directory), *arguments)
    except InvalidValue as fault:
        table.fault("program", str(fault))
        return None


def read_time(table: TomlTable, key: str, default_s: float, lowest_s: float = 0.1) -> float:
    """Return a duration in seconds, the default if it is not given or faulty."""
    found = table.duration_s(key)
    if found is not None and not lowest_s <= found <= PROGRAM_TIMEOUT_MAX_S:
        table.fault(key, f"{found:g} s is not within {lowest_s:g} s and {PROGRAM_TIMEOUT_MAX_S:g} s")
        return default_s
    return default_s if found is None else found


def found_program(word: str, directory: Path) -> str:
    """Return the absolute path of a program. Raises InvalidValue if it is missing or cannot be executed."""
    if "/" not in word:
        found = shutil.which(word, path=PROGRAM_PATH)
        if found is None:
            raise InvalidValue(f"there is no program {shown(word)} in {PROGRAM_PATH}: give its path")
        return found
    path = os.path.abspath(directory / Path(word).expanduser())
    if not os.path.exists(path):
        raise InvalidValue(f"there is no program {shown(path)}: correct the path")
    if os.path.isdir(path) or not os.access(path, os.X_OK):
        raise InvalidValue(f"{shown(path)} cannot be executed: name a program, and allow it (chmod +x)")
    return path
