"""Tour of an instance on this machine's own resources, in under a minute, with every message shown.

    python examples/tour.py

It discovers the machine, runs real commands as jobs, drains the target while a job runs, moves it between two groups
(with a shrink, a release and a grow), and ends the instance. Lines that begin with `->` and `<-` are messages that the
instance sends and receives; `--quiet` omits them.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time

TRACED = ("resource.", "sched.", "job-manager.sched", "job-manager.raise", "module.")


def say(text: str) -> None:
    print(f"\n\033[1m== {text}\033[0m" if sys.stdout.isatty() else f"\n== {text}", flush=True)


def run(command: str, *, check: bool = True) -> str:
    """Print a command, run it, print its output and return it."""
    print(f"$ {command}", flush=True)
    done = subprocess.run(shlex.split(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30)
    print(done.stdout, end="", flush=True)
    time.sleep(0.05)  # so that the instance's own lines about this command precede the next command
    if check and done.returncode != 0:
        sys.exit(f"tour: {command!r} exited with status {done.returncode}")
    return done.stdout.strip()


def tour() -> None:
    """Run the commands inside the instance."""
    say("The resources of this machine, and the scheduler that has acquired them")
    run("fluxsched resource list")
    run("fluxsched resource R")
    run("fluxsched module list")

    say("Real commands run as jobs")
    run("fluxsched run hostname")
    run("fluxsched run -n1 sh -c 'echo task $FLUX_TASK_RANK of $FLUX_JOB_SIZE, cores $(nproc)'")
    run("fluxsched run sh -c 'exit 3'", check=False)

    say("An admin drains the target while a job runs: the job continues, a new one waits, and the reason is shown")
    sleeper = run("fluxsched submit sleep 60")
    run(f"fluxsched job wait-event {sleeper} start")
    run("fluxsched resource drain 0 'fan is noisy'")
    run("fluxsched resource drain")
    waiting = run("fluxsched submit true")
    run(f"fluxsched job why {waiting}")
    run(f"fluxsched cancel {sleeper}")
    run(f"fluxsched wait {sleeper}", check=False)
    run("fluxsched resource drain")
    run("fluxsched resource undrain 0")
    run(f"fluxsched wait {waiting}")

    say("A second group with a scheduler of its own")
    run("fluxsched resource assign '' debug")
    run("fluxsched module load firstfit --group debug")
    run("fluxsched resource groups")

    say("The target moves to group debug: shrink, the end of its job, release, grow")
    doomed = run("fluxsched submit sleep 60")
    run(f"fluxsched job wait-event {doomed} start")
    run("fluxsched resource assign 0 debug")
    run(f"fluxsched wait {doomed}", check=False)
    run("fluxsched resource groups")

    say("And back")
    run("fluxsched resource include 0")
    run("fluxsched run echo home again")
    run("fluxsched jobs -a")
    run("fluxsched resource eventlog")


def main() -> int:
    if os.environ.get("FLUXSCHED_TOUR"):
        tour()
        return 0
    begin_s = time.monotonic()
    trace = [] if "--quiet" in sys.argv[1:] else [f"--trace={','.join(TRACED)}"]
    say("An instance on the resources of this machine")
    command = ["fluxsched", "start", *trace, "--", sys.executable, __file__]
    print("$", shlex.join(command), flush=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("FLUXSCHED_URI", "FLUX_JOB_ID")}
    status = subprocess.run(command, env={**environment, "FLUXSCHED_TOUR": "1"}).returncode
    say(f"The instance has exited with status {status}, after {time.monotonic() - begin_s:.0f} s")
    return status


if __name__ == "__main__":
    sys.exit(main())
