"""Process entry of a keeper: ends what is left of an instance that was killed, and clears its run directory.

    python -I -S keeper_main.py RUN_DIRECTORY GRACE_S <pipe

Law: it needs nothing of the living instance but the pipe, whose end is the instance's death by whatever means, and does
nothing before that. Until then it is a bare interpreter that has imported neither fluxsched nor anything else, for
there is one of it for each instance. It ignores all signals but SIGKILL; the end of the pipe ends it, too. It inherits
the lock on the run directory, so that no sweep takes the records away before they are read.
"""

import os
import signal
import sys

IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGTSTP)


def main(run_directory: str, grace_s: str) -> None:
    """Wait for the end of the pipe, then clear what is left of the instance, if it did not do so itself."""
    for signum in IGNORED:
        signal.signal(signum, signal.SIG_IGN)
    while os.read(0, 1):
        pass
    if os.path.isdir(run_directory):
        sys.path.insert(0, os.path.abspath(f"{__file__}/../../../../.."))
        from fluxsched.runtime.exec.cleanup.leftovers import end_leftovers

        end_leftovers(run_directory, float(grace_s))


if __name__ == "__main__":
    main(*sys.argv[1:])
