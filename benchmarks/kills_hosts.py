"""Keepers, guards, hosts, links and the instance fail at random under load; who watches shares no code with them.

    python benchmarks/kills_hosts.py [--kills 50] [--hosts 4] [--engine ssh] [--seed 1]

Hosts are namespaces of this machine (root, Linux). Each job has whole hosts. Each of its tasks is two processes, some
a third one in a session of its own; some ignore SIGTERM, and some run for longer than a lease lasts. A task takes a
lock of its host for as long as any process of it lives, which the kernel gives back however it ends, and writes down
that it begins.

Violations: a task that finds the lock taken, or begins for the second time; a process, on any host, with the mark of
our tasks in its environment although its job has ended; a job that was acknowledged and is unknown later, or never
ends; a keeper that is left at the end. Prints how often what was killed, how long it took until all hosts were back,
and how jobs ended; fails at any violation.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.engine.lab.engines import ADD, BEGIN
from tests.engine.lab.hosts import Lab
from tests.engine.lab.packages import unavailable
from tests.engine.lab.site import Site

KINDS = {"keeper": 0.25, "guard": 0.15, "host": 0.15, "link": 0.15, "one way": 0.1, "instance": 0.2}
"""What fails, and how often."""
ACTIVE = {"DEPEND", "PRIORITY", "SCHED", "RUN", "CLEANUP"}
WAITING = 12
"""Jobs that are kept waiting or running."""
CUT_S = 45.0
"""A link is cut for so long at most: a host is given up 26 s after the cut, its tasks having been ended before."""
BACK_S = 120.0
"""Until all hosts are back."""
SETTLE_S = 180.0
CONFIG = """
[engine]
kind = "none"
orphan-timeout = "6s"
"""
LONG = 0.2
"""Share of jobs whose tasks run for longer than a lease lasts: what is left of them is there to be found."""
TASK = """
exec 9>>$RECORDS/lock-$(hostname)
flock -n 9 || echo "held $FLUX_JOB_ID $(hostname)" >>$RECORDS/violations
echo "$FLUX_JOB_ID $FLUX_TASK_RANK $(hostname)" >>$RECORDS/begun
case $FLUX_JOB_CC in
    *[123]) trap '' TERM ;;
    *[45]) setsid sleep $1$FLUX_JOB_CC & ;;
esac
sleep $1$FLUX_JOB_CC
wait
"""


class Trial:
    """A lab under load."""

    def __init__(self, lab: Lab, engine: str, seed: int) -> None:
        self.lab = lab
        self.engine = engine
        self.chance = random.Random(seed)
        self.records = lab.home / "records"
        self.records.mkdir()
        script = self.records / "task"
        script.write_text(TASK)
        self.mark = f"RECORDS={self.records}"
        config = self.records / "site.toml"
        config.write_text(CONFIG)
        self.site = Site(lab, engine, "--statedir", str(lab.home / "state"), "--config", str(config))
        self.acknowledged: set[str] = set()
        self.left: set[int] = set()
        """Processes of tasks that were found after the end of their jobs."""
        self.seen: set[int] = set()
        self.violations: list[str] = []
        self.back_s: defaultdict[str, list[float]] = defaultdict(list)

    def submit(self) -> None:
        """Keep some jobs waiting."""
        hosts = self.chance.choice([1, 1, 1, 2, len(self.lab.names)])
        copies, tens = (self.chance.randint(1, 9), "4") if self.chance.random() < LONG else ("1-9", "0.")
        options = [f"--cc={copies}", f"-N{hosts}", f"-n{hosts}", "--exclusive", f"--env={self.mark}"]
        with self.lab.popen("n1", "fluxsched", "submit", *options, "sh", self.records / "task", tens) as process:
            self.acknowledged |= set(process.communicate()[0].split())

    def jobs(self) -> dict[str, str]:
        """Return the state of all jobs by id; nothing if the instance does not answer."""
        with self.lab.popen("n1", "fluxsched", "jobs", "-a", "-n", "-c0", "-o", "{id.f58} {status}") as process:
            return dict(line.split()[:2] for line in process.communicate()[0].splitlines())

    def load(self, duration_s: float) -> None:
        end_s = time.monotonic() + duration_s
        while time.monotonic() < end_s:
            jobs = self.jobs()
            self.find_left(jobs)
            if sum(status in ACTIVE for status in jobs.values()) < WAITING:
                self.submit()
            time.sleep(0.1)

    def find_left(self, jobs: dict[str, str]) -> None:
        """Look for processes of jobs that had ended before."""
        found = self.tasks()
        self.seen |= found.keys()
        for pid, variables in found.items():
            jobid = variables.get("FLUX_JOB_ID", "")
            if jobs.get(jobid, "RUN") not in ACTIVE and pid not in self.left:
                self.left.add(pid)
                self.violations.append(f"left of {jobid}, which is {jobs[jobid]}: {task_text(pid, variables)}")

    def tasks(self) -> dict[int, dict[str, str]]:
        """Return the variables of our tasks' processes on all hosts by process id outside of the lab."""
        found: dict[int, dict[str, str]] = {}
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                words = path.read_bytes().decode(errors="replace").split("\0")
                if self.mark in words:
                    found[int(path.parent.name)] = dict(word.split("=", 1) for word in words if "=" in word)
        return found

    def fail(self) -> None:
        """Have something fail, and wait until all hosts are back."""
        kind = self.chance.choices([*KINDS], [*KINDS.values()])[0]
        name = self.chance.choice(self.lab.names[1:])  # the instance's own host fails as the instance
        begin_s = time.monotonic()
        getattr(self, "fail_" + kind.replace(" ", "_"))(name)
        while self.site.up() != f"n[1-{len(self.lab.names)}]":
            if time.monotonic() - begin_s > BACK_S:
                self.violations.append(f"{kind} {name}: only {self.site.up()} are up after {BACK_S:.0f} s")
                return
            self.load(0.2)
        self.back_s[kind].append(time.monotonic() - begin_s)
        print(f"{kind} {name}: {self.back_s[kind][-1]:.1f} s", file=sys.stderr, flush=True)

    def fail_keeper(self, name: str) -> None:
        self.kill_one(name, is_guard=False)

    def fail_guard(self, name: str) -> None:
        self.kill_one(name, is_guard=True)

    def kill_one(self, name: str, *, is_guard: bool) -> None:
        found = {one.pid: one for one in self.lab.processes(name) if "-m fluxsched.engine.keeper_main" in one.command}
        chosen = [one.pid for one in found.values() if (one.parent not in found) == is_guard]
        if chosen:
            self.lab.run(name, "kill", "-9", chosen[-1], status=None)

    def fail_host(self, name: str) -> None:
        self.lab.crash(name)
        self.load(self.chance.uniform(0.0, 15.0))
        self.lab.boot(name)
        BEGIN[self.engine](self.lab, name)

    def fail_link(self, name: str) -> None:
        self.lab.cut(name)
        self.load(self.chance.uniform(0.0, CUT_S))
        self.lab.mend(name)

    def fail_one_way(self, name: str) -> None:
        one, other = (name, "n1") if self.chance.random() < 0.5 else ("n1", name)
        self.lab.mute(one, other)
        self.load(self.chance.uniform(0.0, CUT_S))
        self.lab.unmute(one, other)

    def fail_instance(self, name: str) -> None:
        self.site.kill()
        time.sleep(self.chance.uniform(0.0, 8.0))
        self.site.start(is_up=False)

    def settle(self) -> None:
        """Judge what is left and what was recorded."""
        end_s = time.monotonic() + SETTLE_S
        while not (found := self.jobs()) or any(status in ACTIVE for status in found.values()):
            if time.monotonic() > end_s:
                self.violations.append(f"jobs never end: {found}")
                break
            time.sleep(0.5)
        self.find_left(found)
        self.violations += [f"lost: {jobid}" for jobid in self.acknowledged - found.keys()]
        lines = self.records.joinpath("begun").read_text().splitlines()
        begun = Counter(tuple(line.split()[:2]) for line in lines)
        self.violations += [
            f"task {task} of {jobid} ran {count} times" for (jobid, task), count in begun.items() if count > 1
        ]
        held = self.records / "violations"
        self.violations += held.read_text().splitlines() if held.exists() else []
        self.site.stop()
        time.sleep(1.0)
        keepers = self.site.everywhere("fluxsched.engine.keeper_main")
        self.violations += [f"left on {name}: {one}" for name, one in keepers.items()]
        self.violations += [f"left after the stop: {task_text(*one)}" for one in self.tasks().items()]
        print(f"{len(self.acknowledged)} jobs, {len(lines)} tasks began; {dict(Counter(found.values()))}")
        print(f"{len(self.seen)} processes of tasks were seen, {len(self.left)} of them after the end of their job")


def task_text(pid: int, variables: dict[str, str]) -> str:
    """Return the task to which a process belongs."""
    return f"process {pid} of task {variables.get('FLUX_TASK_RANK')} of {variables.get('FLUX_JOB_ID')}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--engine", choices=sorted(ADD), default="ssh")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    reason = unavailable(options.engine)
    if reason is not None:
        print(reason, file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))  # by way of the lab's end
    with Lab(options.hosts) as lab:
        ADD[options.engine](lab)
        trial = Trial(lab, options.engine, options.seed)
        with trial.site:
            for _ in range(options.kills):
                trial.load(trial.chance.uniform(0.2, 2.0))
                trial.fail()
            trial.settle()
    for kind, found in trial.back_s.items():
        median_s, largest_s = statistics.median(found), max(found)
        print(f"{kind:10} {len(found):4} times, all hosts up after {median_s:5.1f} s, at most {largest_s:.1f} s")
    print(f"load {os.getloadavg()[0]:.1f}; {len(trial.violations)} violations")
    print("\n".join(trial.violations))
    return bool(trial.violations)


if __name__ == "__main__":
    sys.exit(main())
