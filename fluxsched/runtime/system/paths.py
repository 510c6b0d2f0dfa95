"""The directories, files and environment variables of an instance, by name.

Each instance has a run directory (mode 0700) with its socket, its log and `instance.json`.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

URI_VARIABLE = "FLUXSCHED_URI"
KEY_VARIABLE = "FLUXSCHED_KEY"
"""Where a client's key file is: the path, never the key."""
TEMPORARY_VARIABLE = "FLUXSCHED_TMPDIR"
LEVEL_VARIABLE = "FLUXSCHED_LEVEL"
"""How many instances of ours are around a process; not set outside of any."""
SOCKET_NAME = "instance.sock"
LOCAL_NAME = "local-0"
"""The socket for Flux's own clients, named as Flux names it."""
INFO_NAME = "instance.json"
LOG_NAME = "log"
PAGE_NAME = "web.address"
"""The file with the address of the page that the instance serves, with its token."""
OWNER_NAME = "owner"
"""The file that says which process a run directory belongs to; see instance/run_directory.py."""
DATABASE_NAME = "state.sqlite"
"""The store's file, in the state directory or else in the run directory."""
ADDRESS_NAME = "address"
"""The file in a state directory that names the run directory of its instances."""
PREFIX = "fluxsched-"
_IPC = "ipc://"
_LEVEL_DIGITS = 4


def level_here() -> int:
    """How many instances are around this process; 0 outside of any, and where the environment has nonsense."""
    text = os.environ.get(LEVEL_VARIABLE, "")
    return int(text) if text.isdecimal() and len(text) < _LEVEL_DIGITS else 0


def temporary_directory() -> str:
    """Where temporary files of instances are. A job's TMPDIR is removed with the job, so an instance inside it does not
    use it.
    """
    return os.environ.get(TEMPORARY_VARIABLE) or tempfile.gettempdir()


def base_directory() -> Path:
    """The directory below which this user's run directories are made.

    Inside an instance it is that instance's: a job may have a temporary directory of its own, which is removed with it.
    """
    enclosing = _beside(os.environ.get(URI_VARIABLE, "")) if level_here() else None
    if enclosing is not None:
        return enclosing
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime)
    return Path(temporary_directory())


def _beside(uri: str) -> Path | None:
    """Where the run directory of the instance at `uri` is, if that says so and we may write there."""
    path = Path(uri.removeprefix(_IPC))
    if not uri.startswith(_IPC) or path.name != SOCKET_NAME or not path.parent.name.startswith(PREFIX):
        return None
    base = path.parent.parent
    return base if os.access(base, os.W_OK) else None
