"""No more jobs of a queue run at once than `[[limits]]` allow, whatever was killed and started again."""

from __future__ import annotations

from tests.chaos.checkers.base import Call, Checker, Site
from tests.chaos.observations import TaskBegan, TaskEnded


class SiteLimits(Checker):
    """Counts the jobs whose tasks run, by queue."""

    name = "site-limits"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._queues: dict[int, str] = {}
        self._running: dict[str, set[int]] = {}

    def answered(self, call: Call, payload: object, errnum: int) -> None:
        """A job is accepted, whose queue is in its jobspec."""
        if call.topic == "job-manager.submit" and not errnum:
            assert isinstance(payload, dict)
            self._queues[payload["id"]] = call.payload["jobspec"]["attributes"]["system"]["queue"]

    def began(self, task: TaskBegan) -> None:
        """One more runs; a job whose submit was not answered is not known."""
        queue = self._queues.get(task.jobid)
        most = None if queue is None else self.site.running_max.get(queue)
        if queue is None or most is None:
            return
        running = self._running.setdefault(queue, set())
        running.add(task.jobid)
        if len(running) > most:
            raise self.broken(f"jobs {sorted(running)} of queue {queue} run at once; its limit is {most}")

    def ended(self, task: TaskEnded) -> None:
        """One less runs."""
        for running in self._running.values():
            running.discard(task.jobid)
