"""Process entry of a keeper.

    python -I -S keeper_main.py SOCKET LISTENER RUN_DIRECTORY GRACE_S MODULES <connection

SOCKET is the path at which the next instance connects, LISTENER the descriptor that listens there; RUN_DIRECTORY is
empty where the jobs outlive their instance; MODULES is the instance's sys.path.

Law: until its instance says something, a keeper is a bare interpreter that has imported neither fluxsched nor anything
else, for most instances with an initial program run no job. The end of the connection is the death of the instance by
whatever means. It ignores all signals but SIGKILL. It inherits the lock on the run directory that it clears, so that no
sweep takes the records away before they are read.
"""

from __future__ import annotations

import os
import signal
import sys

IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGTSTP)
READ_BYTES = 1 << 16


def main(socket: str, listener: str, run_directory: str, grace_s: str, modules: str) -> None:
    """Wait for the first message of the instance and serve it; if there is none, clear the instance's leftovers."""
    for signum in IGNORED:
        signal.signal(signum, signal.SIG_IGN)
    try:
        said = os.read(0, READ_BYTES)
    except ConnectionResetError:
        said = b""
    sys.path[:] = modules.split(os.pathsep)
    if said:
        sys.modules["ssl"] = None  # type: ignore[assignment] # asyncio does without: 3 MiB, 9 ms
        from fluxsched.executor.keeper import serve

        serve(said, socket, int(listener), run_directory, float(grace_s))
        return
    if os.path.exists(socket):
        os.unlink(socket)
    if os.path.isdir(run_directory):
        from fluxsched.executor.cleanup import end_leftovers

        end_leftovers(run_directory, float(grace_s))


if __name__ == "__main__":
    main(*sys.argv[1:])
