"""Runs every benchmark of this directory, one after the other, and prints what each prints.

python benchmarks/all.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main() -> int:
    worst = 0
    for script in sorted(Path(__file__).parent.glob("*.py")):
        if script.name != Path(__file__).name:
            print(f"== {script.stem}", flush=True)
            worst = max(worst, subprocess.run([sys.executable, str(script)]).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
