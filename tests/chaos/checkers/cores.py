"""Law 5, cores: a core has at most one job; tasks run once, and on cores that exist."""

from __future__ import annotations

from typing import Any

from tests.chaos.checkers.base import Call, Checker, Site
from tests.chaos.observations import Answered, TaskBegan, TaskEnded, TaskGrew, TasksBegan, TasksEnded, TaskShrank
from tests.chaos.wire import cores_of


class Cores(Checker):
    """Follows which job's tasks use which cores."""

    name = "cores"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._users: dict[tuple[int, int], int] = {}
        self._used: dict[int, list[tuple[int, int]]] = {}

    def began(self, task: TaskBegan | TaskGrew | TasksBegan) -> None:
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

    def grew(self, task: TaskGrew) -> None:
        """So must be those of further targets."""
        self.began(task)

    def replied(self, message: Answered) -> None:
        """A scheduler places jobs on cores where nothing runs."""
        if message.topic == "sched.alloc" and message.payload["type"] == 0:
            self._placed(message.actor, message.payload)

    def asked(self, call: Call) -> None:
        """So it does where it lets one grow."""
        if call.topic == "job-manager.sched-grow":
            self._placed(call.actor, call.payload)

    def _placed(self, actor: str, payload: dict[str, Any]) -> None:
        for rank, cores in cores_of(payload["R"]).items():
            for core in cores:
                other = self._users.get((rank, core))
                if other is not None:
                    raise self.broken(
                        f"{actor} placed job {payload['id']} on core {core} of rank {rank}, where job {other} runs"
                    )

    def tasks_began(self, tasks: TasksBegan) -> None:
        """So must be those of each of several hosts."""
        self.began(tasks)

    def shrank(self, task: TaskShrank) -> None:
        """They are free again."""
        self._left(task.jobid, task.ranks)

    def tasks_ended(self, tasks: TasksEnded) -> None:
        """They are free again."""
        self._left(tasks.jobid, frozenset({tasks.rank}))

    def _left(self, jobid: int, ranks: frozenset[int]) -> None:
        kept = []
        for place in self._used.get(jobid, ()):
            if place[0] in ranks:
                del self._users[place]
            else:
                kept.append(place)
        self._used[jobid] = kept

    def ended(self, task: TaskEnded) -> None:
        """They are free again."""
        for place in self._used.pop(task.jobid, ()):
            del self._users[place]
