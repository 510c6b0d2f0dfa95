"""A keeper for tests of engines: it reports a host, writes down what it is told, and obeys a file of orders.

    python keeper.py DIRECTORY HOST

DIRECTORY/NAME.order has words: silent (no report), noise (other lines first), end (ends instead of reporting),
other (another version), twice (reports twice), stubborn (ignores SIGTERM). DIRECTORY/NAME.told gets what it reads.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import msgspec

from fluxsched.config.discovery import MachineTopology
from fluxsched.core.idset import Idset
from fluxsched.engine.report import HostReport, report_lines
from fluxsched.system.processes import boot_id


def main(directory: str, host: str) -> None:
    """Do what the order for this host says."""
    file = Path(directory) / f"{host}.order"
    order = file.read_text().split() if file.exists() else []
    if "stubborn" in order:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "noise" in order:
        os.write(1, f"Welcome to {host}\n".encode())
    if "end" in order:
        os.write(2, f"no room on {host}\n".encode())
        sys.exit(3)
    with (Path(directory) / f"{host}.pids").open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    report = HostReport.of(MachineTopology(host, (Idset.of([0]), Idset.of([1])), (), "sysfs"), boot_id())
    if "other" in order:
        report = msgspec.structs.replace(report, version=report.version + 1)
    if "silent" not in order:
        os.write(1, report_lines(report) * (2 if "twice" in order else 1))
    told = Path(directory) / f"{host}.told"
    line = sys.stdin.readline()
    if not line:
        sys.exit(4)
    told.write_text(line)
    os.write(1, f"late words of {host}\n".encode())
    while True:
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
