"""After the faults stop all comes to rest: every job has ended, nothing is held, leaving or waiting."""

from __future__ import annotations

from tests.chaos.checkers.base import Checker, Truth


class Rest(Checker):
    """Looks at what is left."""

    name = "rest"

    def settled(self, truth: Truth) -> None:
        """Nothing is."""
        active = {jobid: job["state"] for jobid, job in truth.jobs.items() if job["state"] != "INACTIVE"}
        if active:
            raise self.broken(f"jobs have not ended: {active}")
        if truth.allocated:
            raise self.broken(f"targets {sorted(truth.allocated)} are still allocated")
        for group in truth.groups:
            if group["leaving"] or group["incoming"]:
                raise self.broken(f"targets still leave: {group}")
        for name, stats in truth.schedulers.items():
            waiting = sum(group["waiting"] for group in stats["groups"].values())
            if waiting or stats["running"]:
                raise self.broken(f"scheduler {name} still counts {waiting} waiting, {stats['running']} running jobs")
