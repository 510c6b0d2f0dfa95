"""Control of queues by administrators (RFC 33): enable, start, reconfigure; and what a restart restores of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxsched.jobs.effects import Effect, SaveQueue
from fluxsched.jobs.lifecycle.lifecycle import Lifecycle
from fluxsched.jobs.queue.queues import JobQueue, QueueConfig, checked_reason


class QueueControl:
    """Administrators' side of the job manager."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._queues = lifecycle.queues

    def enable(
        self, name: str | None, enable: bool, reason: str | None = None, *, all_queues: bool = False
    ) -> list[Effect]:
        """Take jobs, or refuse them with the reason. Raises Refused (ENOENT, EINVAL)."""
        text = "" if enable else checked_reason(reason, "disabled by an administrator")
        queues = self._queues.select(name, all_queues, "enable" if enable else "disable")
        for queue in queues:
            queue.enabled, queue.enable_reason = enable, text
        return [SaveQueue(queue.name, queue.state()) for queue in queues]

    def start(
        self, name: str | None, start: bool, reason: str | None = None, *, all_queues: bool = False, now_s: float
    ) -> list[Effect]:
        """Schedule, or hold back: then requests in hand are cancelled (RFC 33). Raises Refused (ENOENT, EINVAL)."""
        text = "" if start else checked_reason(reason, "stopped by an administrator")
        queues = self._queues.select(name, all_queues, "start" if start else "stop")
        self._lifecycle.begin(now_s)
        for queue in queues:
            queue.started, queue.start_reason = start, text
            self._lifecycle.out.append(SaveQueue(queue.name, queue.state()))
            self._lifecycle.touched[queue.group] = None
            if not start:
                self._withdraw_queue(queue)
        return self._lifecycle.end()

    def reconfigure(
        self, configs: Mapping[str | None, QueueConfig], default: str | None, now_s: float
    ) -> list[Effect]:
        """Other configurations of the queues, against which `queues.faults` has nothing to say.

        Jobs that were accepted stay accepted; those of a queue that is gone wait until it is back.
        """
        new, gone = self._queues.reconfigure(configs, default)
        self._lifecycle.begin(now_s)
        self._lifecycle.out += [SaveQueue(queue.name, queue.state()) for queue in new]
        for queue in gone:
            self._withdraw_queue(queue)
        for link in self._lifecycle.links:
            link.queues = self._queues.served_by(link.groups)
            self._lifecycle.touched.update(dict.fromkeys(link.groups))
        return self._lifecycle.end()

    def restore(self, name: str | None, state: Mapping[str, Any]) -> None:
        """Switches as SaveQueue stored them; those of a queue that is no more are ignored."""
        for queue in self._queues:
            if queue.name == name:
                queue.enabled, queue.enable_reason = bool(state["enable"]), str(state["enable_reason"])
                queue.started, queue.start_reason = bool(state["start"]), str(state["start_reason"])

    def held_back(self, queue: JobQueue) -> tuple[str | None, str]:
        """Return the obstacle to scheduling the queue besides administrators, and the reason why it is not scheduled.

        The obstacle is `scheduler` if none is ready; the reason is empty if the queue is scheduled.
        """
        link = self._lifecycle.links.serving(queue.group)
        if queue.started and (link is None or not link.ready):
            return "scheduler", f"no scheduler serves group {queue.groups_text}"
        return None, queue.start_reason

    def _withdraw_queue(self, queue: JobQueue) -> None:
        link = self._lifecycle.links.serving(queue.group)
        if link is not None:
            for job in link.outstanding.values():
                if job.queue is queue:
                    link.cancel(job, self._lifecycle.out)
