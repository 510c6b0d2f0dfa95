"""Programs for PATH that stand for those of an engine, and write down how they were called."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

CALL = f"""#!{sys.executable} -S
import json, os, sys
with open(os.environ["FAKES"] + "/calls", "a") as file:
    file.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
"""
"""Beginning of each program."""


class Fakes:
    """A directory of programs; `environment` has it on PATH."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.environment = {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}", "FAKES": str(directory)}
        for name in ("FLUXSCHED_URI", "FLUX_URI", "SLURM_JOB_ID"):
            self.environment.pop(name, None)

    def program(self, name: str, body: str) -> None:
        """Add a program; `body` is Python."""
        file = self._directory / name
        file.write_text(CALL + body)
        file.chmod(0o755)

    def prints(self, name: str, text: str) -> None:
        """Add a program that prints a text."""
        self.program(name, f"print({text!r})\n")

    def fails(self, name: str, text: str, status: int = 1) -> None:
        """Add a program that fails."""
        self.program(name, f"sys.stderr.write({text!r})\nsys.exit({status})\n")

    def calls(self, name: str) -> list[list[str]]:
        """Return the arguments of each call of a program."""
        file = self._directory / "calls"
        found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [call[1:] for call in found if call[0] == name]

    def slurm(self, hosts: list[str]) -> None:
        """Be a Slurm with an allocation (SLURM_JOB_ID=7) of these hosts, all of them this machine."""
        self.environment["SLURM_JOB_ID"] = "7"
        self.prints("squeue", f"2100-01-01T00:00:00 UNLIMITED {','.join(hosts)} RUNNING")
        self.prints("scontrol", "\n".join(hosts))
        self.prints("sinfo", "\n".join(f"{host} allocated" for host in hosts))
        self.program("srun", f"HOSTS = {hosts!r}\n{SRUN}")


SRUN = """
import subprocess
at = sys.argv.index("sh")
steps = [subprocess.Popen(sys.argv[at:], env={**os.environ, "SLURMD_NODENAME": host}, stdin=subprocess.PIPE)
         for host in HOSTS]
told = sys.stdin.readline().encode()
for each in steps:
    each.stdin.write(told)
    each.stdin.close()
for each in steps:
    each.wait()
"""
"""Starts the rest of its command for each of HOSTS, and passes on the first line of its input."""
