"""Law 5, cores: a core has at most one job; tasks run once, and on cores that exist."""

from __future__ import annotations

from tests.chaos.checkers.base import Checker, Site
from tests.chaos.observations import Answered, TaskBegan, TaskEnded
from tests.chaos.wire import cores_of


class Cores(Checker):
    """Follows which job's tasks use which cores."""

    name = "cores"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._users: dict[tuple[int, int], int] = {}
        self._used: dict[int, list[tuple[int, int]]] = {}

    def began(self, task: TaskBegan) -> None:
        """The cores must be free."""
        used = [(rank, core) for rank, cores in task.cores.items() for core in cores]
        for rank, core in used:
            if core not in self.site.cores.get(rank, ()):
                raise self.broken(f"job {task.jobid} runs on core {core} of rank {rank}, which does not exist")
            other = self._users.get((rank, core))
            if other is not None:
                raise self.broken(f"core {core} of rank {rank} is used by jobs {other} and {task.jobid}")
        self._users |= dict.fromkeys(used, task.jobid)
        self._used.setdefault(task.jobid, []).extend(used)

    def replied(self, message: Answered) -> None:
        """A scheduler places jobs on cores where nothing runs."""
        if message.topic == "sched.alloc" and message.payload["type"] == 0:
            for rank, cores in cores_of(message.payload["R"]).items():
                for core in cores:
                    other = self._users.get((rank, core))
                    if other is not None:
                        raise self.broken(
                            f"{message.actor} placed job {message.payload['id']} on core {core} of rank {rank}, "
                            f"where job {other} runs"
                        )

    def ended(self, task: TaskEnded) -> None:
        """They are free again."""
        for place in self._used.pop(task.jobid, ()):
            del self._users[place]
