"""One scheduler service decides for two groups of an instance, each a resource manager. Run it inside an instance:

    fluxsched start --config examples/si_two_rms.toml --fake 4x2 --scheduler none -- python examples/si_two_rms.py

Real jobs run where the service places them; targets move between the groups, as nodes that are removed and added.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


def output(command: str) -> str:
    """Run a command and return its output."""
    return subprocess.run(shlex.split(command), stdout=subprocess.PIPE, check=True, text=True, timeout=60).stdout


def run(command: str) -> str:
    """Print a command, run it, print its output and return it."""
    print(f"$ {command}", flush=True)
    text = output(command)
    print(text, end="", flush=True)
    return text.strip()


@contextmanager
def beside(*words: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a program for the duration of the context."""
    process = subprocess.Popen(["fluxsched", "si", *words], text=True, **more)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def nodes() -> dict[str, list[str]]:
    """Return the nodes of each resource manager from the dump of the service."""
    found = {}
    for manager in json.loads(output(f"fluxsched si dump {address}"))["rms"]:
        names = [node["nodeID"] for partition in manager["partitions"] for node in partition["nodes"]]
        found[manager["rmID"]] = sorted(names)
    return dict(sorted(found.items()))


def show_nodes(**wanted: int) -> None:
    """Print the nodes once each resource manager has the wanted number."""
    end_s = time.monotonic() + 30
    known = nodes()
    while {name: len(names) for name, names in known.items()} != wanted:
        if time.monotonic() > end_s:
            sys.exit(f"the service knows {known}")
        time.sleep(0.2)
        known = nodes()
    print(known, flush=True)


with ExitStack() as stack:
    directory = stack.enter_context(tempfile.TemporaryDirectory())
    service = stack.enter_context(beside("serve", "--bind", f"unix:{directory}/socket", stdout=subprocess.PIPE))
    address = service.stdout.readline().strip()
    for group in ("blue", "green"):
        stack.enter_context(beside("rm", address, "--group", group, "--rm", group, stderr=subprocess.DEVNULL))

    print("== Two groups are two resource managers of one service")
    show_nodes(blue=2, green=2)

    print("\n== Their jobs run where the service places them: one core, and two nodes as a gang")
    run("fluxsched run -q blue echo one core")
    run("fluxsched run -q green -N2 -n2 echo two nodes")

    print("\n== Blue is full, and a further job of blue waits")
    full = run("fluxsched submit -q blue --cc 1-2 -N1 --exclusive sleep 300").split()
    for job in full:
        output(f"fluxsched job wait-event {job} start")
    waiting = run("fluxsched submit -q blue -N1 --exclusive sleep 300")
    run(f"fluxsched job why {waiting}")

    print("\n== A target moves from green to blue; the job starts there")
    run("fluxsched resource assign --graceful 2 blue")
    run(f"fluxsched job wait-event {waiting} start")
    show_nodes(blue=3, green=1)

    print("\n== It moves back at once: its job ends by an exception, the jobs on other targets continue")
    run("fluxsched resource assign --yes 2 green")
    print(f"{waiting} ended with status {subprocess.run(['fluxsched', 'wait', waiting], check=False).returncode}")
    show_nodes(blue=2, green=2)
    run("fluxsched jobs -n -o '{name} {status} {nodelist}'")

    run(f"fluxsched cancel {' '.join(full)}")
