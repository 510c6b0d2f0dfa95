"""Plugins that break one rule of the suite for plugins each, at the line that is marked; and one that breaks none."""

from __future__ import annotations

from typing import Any, ClassVar

from fluxsched.sched.hooks import PASS, SKIP, Gate, Later, Wait


class Patient:
    """Keeps all rules: jobs wait a little for a permit, and each is booked and given back."""

    name = "patient"
    READS = ("user",)

    def __init__(self) -> None:
        self.booked: dict[int, Any] = {}

    def pre_filter(self, shape: Any, group: Any) -> Any:
        return SKIP if shape.label("user") == 2 else PASS

    def filter(self, shape: Any, kind: Any) -> Any:
        return PASS

    def score(self, shape: Any, kind: Any) -> Any:
        return 50.0

    def reserve(self, job: Any, fit: Any) -> Any:
        self.booked[job.jobid] = fit
        return PASS

    def unreserve(self, job: Any, fit: Any) -> None:
        del self.booked[job.jobid]

    def permit(self, job: Any, fit: Any, now_s: float) -> Any:
        return PASS if job.userid else Wait(30.0, "waits for its users")

    def on_free(self, job: Any, fit: Any) -> None:
        self.booked.pop(job.jobid, None)


class RaisesInFilter:
    """raises, progress"""

    name = "broken"

    def filter(self, shape: Any, kind: Any) -> Any:
        return {}[kind.cores]  # here


class RaisesWhenTold:
    """raises, leaks"""

    name = "broken"

    def on_free(self, job: Any, fit: Any) -> None:
        raise ValueError("no such job")  # here


class AnswersNothing:
    """answers, progress"""

    name = "broken"

    def reserve(self, job: Any, fit: Any) -> Any:  # here
        return None


class AnswersTrue:
    """answers, progress"""

    name = "broken"

    def score(self, shape: Any, kind: Any) -> Any:  # here
        return 101


class Moody:
    """pure, progress"""

    name = "broken"

    def __init__(self) -> None:
        self.asked = 0

    def look(self, job: Any, rank: int) -> Any:  # here
        self.asked += 1
        return PASS if self.asked % 3 else Later("is in a mood")


class Forgetful:
    """holds, progress"""

    name = "broken"

    def __init__(self) -> None:
        self.running = 0

    def pre_filter(self, shape: Any, group: Any) -> Any:  # here
        return PASS if self.running < 2 else Later("two jobs at once are enough")

    def post_bind(self, job: Any, fit: Any) -> None:
        self.running += 1

    def on_free(self, job: Any, fit: Any) -> None:
        self.running -= 1


class Restless:
    """calls, calls"""

    name = "broken"

    def __init__(self) -> None:
        self.generation = 0

    def pre_filter(self, shape: Any, group: Any) -> Any:  # here
        self.generation += 1
        return PASS


class Hoarder:
    """leaks, leaks"""

    name = "broken"

    def __init__(self) -> None:
        self.jobs: dict[int, Any] = {}

    def reserve(self, job: Any, fit: Any) -> Any:
        self.jobs[job.jobid] = fit
        return PASS

    def on_free(self, job: Any, fit: Any) -> None:  # here
        pass


class Leaky:
    """leaks, leaks"""

    name = "broken"

    def __init__(self) -> None:
        self.left = 40

    def reserve(self, job: Any, fit: Any) -> Any:
        if not self.left:
            return Later("40 jobs are enough")
        self.left -= 1
        return PASS

    def unreserve(self, job: Any, fit: Any) -> None:  # here
        pass

    def on_free(self, job: Any, fit: Any) -> None:
        self.left += 1


class Endless:
    """permit, permit"""

    name = "broken"

    def permit(self, job: Any, fit: Any, now_s: float) -> Any:  # here
        return Wait(1e9, "waits for the end of days")


class Silent:
    """progress, progress"""

    name = "broken"

    def pre_enqueue(self, job: Any) -> Any:
        return Gate("")


class Shared:
    """deterministic, deterministic"""

    name = "broken"
    seen: ClassVar[set[Any]] = set()

    def look(self, job: Any, rank: int) -> Any:
        return Later("it was here before") if (job.jobid, job.t_submit_s) in self.seen else PASS

    def post_bind(self, job: Any, fit: Any) -> None:
        self.seen.add((job.jobid, job.t_submit_s))


BREAKERS = (
    RaisesInFilter, RaisesWhenTold, AnswersNothing, AnswersTrue, Moody, Forgetful, Restless, Hoarder, Leaky, Endless,
    Silent, Shared,
)  # fmt: skip
