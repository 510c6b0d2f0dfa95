"""Process entry of the keeper of a host that an engine holds.

    python -P -m fluxsched.engine.keeper_main [HOST] <INTRODUCTION >REPORT

HOST is the engine's name of the host, if it is not the host's own; see `engine.report` for what is written and read.

Law: the host is reported before anything is imported that only its tasks need. The instance waits for the reports of
all hosts, and makes itself ready while the keepers import the rest.
"""

from __future__ import annotations

import sys

from fluxsched.config.discovery import discover
from fluxsched.engine.report import HostReport, report_lines
from fluxsched.errors import FluxschedError
from fluxsched.system.processes import boot_id


def main(host: str | None = None) -> int:
    """Report the host, and run its keeper once it is introduced to the instance; return the exit status."""
    try:
        report = HostReport.of(discover(), boot_id(), host)
        sys.stdout.buffer.write(report_lines(report))
        sys.stdout.buffer.flush()
        sys.modules["ssl"] = None  # type: ignore[assignment] # asyncio does without: 3 MiB, 9 ms
        from fluxsched.engine.keeper import run_keeper

        return run_keeper(report)
    except (FluxschedError, OSError) as fault:
        sys.stderr.write(f"fluxsched: keeper: {fault}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
