"""An instance that restarts in place: the same process executes itself anew, and its jobs and program go on.

Law: what the next one needs and cannot find is handed over in one variable of the environment, which it removes at
once, so that no job sees it: the run directory, so that its address stays, the locks on it and on the state, and the
initial program. All else is in the state, and with the keepers.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec

from fluxsched.errors import FluxschedError
from fluxsched.runtime.client.blocking import Handle
from fluxsched.runtime.system.clock import SystemClock, sleep
from fluxsched.runtime.system.live_instances import find_uri
from fluxsched.runtime.system.processes import stat_of

VARIABLE = "_FLUXSCHED_RESTART"
RESTART_S = 60.0
"""How long keepers wait for the next instance (seconds) before they end jobs that do not outlive it."""
LOOK_S = 0.02
"""How often a client looks whether the next instance is there (seconds)."""


class HandedOver(msgspec.Struct, frozen=True):
    """What an instance hands over to itself."""

    pid: int
    run_directory: str
    owner: int
    """The descriptor that holds the lock on it."""
    program: int | None
    """Its initial program, if one runs."""
    state_lock: int | None = None
    """The descriptor that holds the lock on its state: no other instance may take that meanwhile."""

    @classmethod
    def take(cls) -> HandedOver | None:
        """What was handed over to this process, if it was started so."""
        text = os.environ.pop(VARIABLE, None)
        found = None if text is None else msgspec.json.decode(text, type=cls)
        if found is None or found.pid != os.getpid():
            return None
        for fd in found._locks:
            os.set_inheritable(fd, False)
        return found

    @property
    def _locks(self) -> list[int]:
        return [fd for fd in (self.owner, self.state_lock) if fd is not None]

    @property
    def directory(self) -> tuple[Path, int]:
        """As `make_run_directory` has it."""
        return Path(self.run_directory), self.owner

    def execute(self) -> NoReturn:
        """Execute this program again, with the same arguments."""
        for fd in self._locks:
            os.set_inheritable(fd, True)
        os.environ[VARIABLE] = msgspec.json.encode(self).decode()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def restart(uri: str | None, timeout_s: float) -> str:
    """Restart the instance at `uri`, else the only one of this user, and wait until it is ready again; where it is.

    Raises Refused naming all, if there are several.
    """
    uri = find_uri(uri, only=True)
    with Handle(uri) as handle:
        before = handle.rpc("instance.info")
        handle.rpc("instance.restart")
    until_s = SystemClock.monotonic_s() + timeout_s
    while True:
        with suppress(FluxschedError), Handle(uri) as handle:
            if handle.rpc("instance.info")["starttime"] != before["starttime"]:
                handle.rpc("instance.ready")
                return uri
        stat = stat_of(before["pid"])
        if stat is None or not stat.alive:
            raise FluxschedError(f"instance {uri} has ended while it restarted: see its log; its jobs run on, if it "
                                 "has a state directory, and the next start goes on with them")  # fmt: skip
        if SystemClock.monotonic_s() > until_s:
            raise FluxschedError(f"instance {uri} was not ready again within {timeout_s:g} s", errno.ETIMEDOUT)
        sleep(LOOK_S)
