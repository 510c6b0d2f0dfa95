"""Debian packages of the laboratory: what a lab needs on this machine, and their installation, which starts no service.

    python -m tests.engine.lab.packages [slurm] [ssh] [mpi]

installs what is missing, where this is root and apt-get is there; else it prints the reason and changes nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NEEDS = {
    "namespaces": {
        "ip": "iproute2", "nsenter": "util-linux", "unshare": "util-linux", "setpriv": "util-linux",
        "mount": "mount", "ps": "procps",
    },
    "slurm": {
        "slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "munged": "munge",
    },
    "ssh": {"sshd": "openssh-server", "ssh": "openssh-client", "ssh-keygen": "openssh-client"},
    "mpi": {"mpicc.mpich": "libmpich-dev", "mpiexec.mpich": "mpich"},
    "flux": {"flux": ""},
}  # fmt: skip
"""Programs by what they are for, each with its package; "" is in no package of Debian 12."""
BESIDE = {"slurm": ("slurm-wlm-basic-plugins",)}
"""Packages that bring no program of their own."""
POLICY = Path("/usr/sbin/policy-rc.d")
"""While it exits 101, apt-get starts no service."""
INSTALL_S = 300
PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
"""Daemons are in sbin, which users do not have in their PATH."""


def program(name: str) -> str | None:
    """Return the path of a program of the lab."""
    return shutil.which(name, path=PATH)


def unavailable(*kinds: str) -> str | None:
    """Return why a lab with these parts cannot be started here, None if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "hosts in namespaces need Linux and root"
    for kind in ("namespaces", *kinds):
        for name, package in NEEDS[kind].items():
            if program(name) is None:
                return f"no {name} on PATH" + (f": python -m tests.engine.lab.packages {kind}" if package else "")
    trial = ["unshare", "--net", "--uts", "--mount", "--pid", "--ipc", "--fork", "--mount-proc", "true"]
    if subprocess.run(trial, capture_output=True, check=False).returncode:
        return "namespaces may not be made here (is this a container without CAP_SYS_ADMIN?)"
    return None


def install(*kinds: str) -> str | None:
    """Install what these parts lack; return why that cannot be, None when all is there."""
    lacking = [kind for kind in kinds if any(program(name) is None for name in NEEDS[kind])]
    if not lacking:
        return None
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return f"{', '.join(lacking)}: not installed, and only root can do so, with apt-get"
    names = sorted({name for kind in lacking for name in (*NEEDS[kind].values(), *BESIDE.get(kind, ())) if name})
    is_ours = not POLICY.exists()
    if is_ours:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        for words in (["update"], ["install", "-y", "--no-install-recommends", *names]):
            done = subprocess.run(
                ["apt-get", "-qq", *words], env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                capture_output=True, text=True, timeout=INSTALL_S, check=False,
            )  # fmt: skip
            if done.returncode:
                return f"apt-get {words[0]} failed: {done.stderr.strip()[-200:]}"
    except subprocess.TimeoutExpired:
        return f"apt-get took longer than {INSTALL_S} s"
    finally:
        if is_ours:
            POLICY.unlink()
    return None


if __name__ == "__main__":
    for kind in sys.argv[1:] or ["slurm", "ssh"]:
        reason = install(kind) or unavailable(kind)
        print(f"{kind}: " + ("is there" if reason is None else f"not there, its tests are skipped: {reason}"))  # noqa: T201
