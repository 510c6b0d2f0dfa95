"""What a killed instance left in its run directory: its processes are ended, then the directory goes.

Both the instance's keeper and the next instance that starts (`instance.run_directory`) do this: a keeper may have been
killed, too.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from pathlib import Path

from fluxsched.core.jobid import format_f58
from fluxsched.runtime.exec.cleanup.orphans import clear_orphans, stored_records
from fluxsched.runtime.system import log as logs
from fluxsched.runtime.system.paths import LOG_NAME, OWNER_NAME

KILLED_S = 5.0
"""How long killed processes may take to be gone (seconds)."""
PROGRAM = 0
"""The instance's initial program among the ids of jobs."""
SPARED = "no process of the job was left"


def end_leftovers(run_directory: str, grace_s: float) -> None:
    """For a keeper, which is alone in its process: clear the directory, and tell the instance's own log about it."""
    path = Path(run_directory)
    logs.setup(path / LOG_NAME if (path / LOG_NAME).exists() else None, 0)
    log = logs.logger("keeper")
    log.warning("the instance was killed: what it left running is ended")
    clear(path, grace_s, log)


def clear(path: Path, grace_s: float, log: logging.Logger) -> None:
    """End the processes on record in a run directory whose instance is dead, and remove it. Blocks for `grace_s` at
    most before what does not end is killed.
    """
    try:
        notes = clear_orphans(stored_records(path), KILLED_S, grace_s)
    except (sqlite3.Error, ValueError) as fault:
        log.error("what %s left running is not known: %s", path, fault)
        notes = {}
    for jobid, note in notes.items():
        whose = "the initial program" if jobid == PROGRAM else f"job {format_f58(jobid)}"
        log.log(logging.DEBUG if note == SPARED else logging.WARNING, "%s: %s", whose, note)
    remove(path)


def remove(path: Path) -> None:
    """Remove a run directory, the owner file last, so that an interrupted removal is resumed by the next sweep."""
    for name in os.listdir(path):
        inside = path / name
        if inside.is_dir() and not inside.is_symlink():
            shutil.rmtree(inside, ignore_errors=True)
        elif name != OWNER_NAME:
            inside.unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)
