"""A lab for a command, by default a shell; it is gone when the command ends.

    python -m tests.engine.lab HOSTS [slurm] [flux] [ssh] [-- COMMAND...]

The command runs outside of the hosts; `$LAB/on n1 COMMAND...` runs one on a host, `$LAB/on n0 ip link set v-n3 down`
cuts the link of n3.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tests.engine.lab.engines import ADD
from tests.engine.lab.hosts import Lab
from tests.engine.lab.packages import unavailable


def main(words: list[str]) -> int:
    own, _, command = " ".join(words).partition(" -- ")
    count, *parts = own.removesuffix(" --").split()
    reason = unavailable(*parts)
    if reason is not None:
        sys.exit(reason)
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))  # by way of the lab's end
    with Lab(int(count)) as lab:
        for part in parts:
            ADD[part](lab)
        shell = ["sh", "-c", command] if command else [os.environ.get("SHELL", "sh")]
        return subprocess.run(shell, env={**os.environ, "LAB": str(lab.directory)}, check=False).returncode


if __name__ == "__main__":
    if len(sys.argv) < 2 or not sys.argv[1].isdigit():
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
