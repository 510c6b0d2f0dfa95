"""Three banks and a standby queue at work, in a few seconds; see fair_site.toml. Run it inside an instance:

    fluxsched start --config examples/fair_site.toml --fake 2x4 -- python examples/fair_site.py

Standby jobs fill the machine; for a job of a bank below its share some of them are preempted, wait, and run again.
"""

from __future__ import annotations

import json
import shlex
import subprocess


def run(command: str) -> str:
    """Print a command, run it, print its output and return it."""
    print(f"$ {command}", flush=True)
    text = subprocess.run(shlex.split(command), stdout=subprocess.PIPE, check=True, text=True, timeout=60).stdout
    print(text, end="", flush=True)
    return text.strip()


def jobs(state: str) -> list[str]:
    """Return the ids of the standby jobs in a state."""
    shown = ["fluxsched", "jobs", "--set", "sweep", "-n", "-o", "{id.f58}", "--filter", state]
    return subprocess.run(shown, stdout=subprocess.PIPE, check=True, text=True).stdout.split()


print("== Standby jobs fill the machine, though their bank weighs next to nothing")
sweep = "--bank standby -q standby --preemptible-after 0s --requeue 100 --set sweep"
started = run(f"fluxsched submit {sweep} --cc 1-8 sleep 300").split()
for job in started:
    subprocess.run(["fluxsched", "job", "wait-event", job, "start"], stdout=subprocess.PIPE, check=True)
run("fluxsched fair")

print("\n== Physics is below its share: as many of them are preempted as its job needs, and it starts")
physics = run("fluxsched submit --bank physics -n 3 sleep 300")
run(f"fluxsched job wait-event {physics} start")
victims = sorted(set(started) - set(jobs("running")))
run(f"fluxsched job eventlog {victims[0]}")

print("\n== They were submitted again, and wait for resources")
run("fluxsched jobs -a --set sweep")
run(f"fluxsched job why {jobs('pending')[0]}")
run("fluxsched fair")

print("\n== When physics is done they run again")
run(f"fluxsched cancel {physics}")
for job in jobs("pending"):
    subprocess.run(["fluxsched", "job", "wait-event", job, "start"], stdout=subprocess.PIPE, check=True)
told = json.loads(subprocess.run(["fluxsched", "fair", "--json"], stdout=subprocess.PIPE, check=True).stdout)
print({"/".join(each["path"]): each["running"] for each in told["accounts"] if each["running"]})
run("fluxsched cancel --set sweep")
