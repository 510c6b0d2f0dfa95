"""A scheduler with a tree of queues, on nodes of amounts: what tests of the tree do with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.quantities import Amounts
from fluxsched.core.request import Request
from fluxsched.core.resources import Children, Entry, ResourceSet
from fluxsched.sched.decisions import Effect, Granted
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.hooks import Plugin
from fluxsched.yunikorn.tree.asks import QuotaAdmission
from fluxsched.yunikorn.tree.policy import Tree
from fluxsched.yunikorn.tree.queues import PLAIN, Application, AskOptions, AskTerms, QueueSettings, QueueTree

DEFAULT_GROUP = "default"


def amounts(**kinds: int) -> Amounts:
    """`amounts(vcore=2, memory=3)`."""
    return tuple(sorted(kinds.items()))


def parent(name: str, *children: QueueSettings, **settings: Any) -> QueueSettings:
    return QueueSettings(name, is_parent=True, children=children, **settings)


def leaf(name: str, **settings: Any) -> QueueSettings:
    return QueueSettings(name, **settings)


class TreeSite:
    """Nodes have ranks in the order in which they are added; asks have ids in theirs."""

    def __init__(
        self, root: QueueSettings, plugins: Mapping[str, Sequence[Plugin]] | None = None, **options: str
    ) -> None:
        self.tree = QueueTree(root)
        admission = QuotaAdmission(self.tree)
        self.scheduler = Scheduler(Tree(**options), notify=False, admission=admission, plugins=plugins)
        self.now_s = 0.0
        self.nodes = 0
        self.last_id = 0
        self.ranks: dict[int, int] = {}  # of what was granted
        self.held: set[int] = set()

    def node(self, held: Amounts, up: bool = True) -> int:
        """One more node; its rank."""
        rank, self.nodes = self.nodes, self.nodes + 1
        ranks = Idset(1 << rank)
        added = ResourceSet((Entry(ranks, Children(amounts=held)),), Hostlist((f"n{rank}",)))
        self.do(self.scheduler.grown(DEFAULT_GROUP, added, *((ranks, EMPTY) if up else (EMPTY, ranks)), self.now_s))
        return rank

    def application(
        self, id: str, queue: str = "root.default", user: str = "ann", groups: Iterable[str] = ()
    ) -> Application:
        at = self.tree.queue(queue)
        assert at is not None
        return self.tree.add_application(id, at, user, tuple(groups), self.now_s)

    def ask(
        self,
        application: Application,
        amounts: Amounts,
        times: int = 1,
        priority: int = 1,
        options: AskOptions = PLAIN,
        t_s: float | None = None,
    ) -> list[int]:
        """So many asks for the same; their ids."""
        found = []
        for _ in range(times):
            self.last_id += 1
            found.append(self.last_id)
            request, t_submit_s = Request.of_amounts(amounts), self.now_s if t_s is None else t_s
            terms = AskTerms(application, options)
            self.do(self.scheduler.enter(self.last_id, priority, t_submit_s, request, terms, self.now_s))
        return found

    def run(self, until_s: float | None = None) -> list[int]:
        """The ids of asks that are granted now, and until a time by passes that are due, in this order."""
        granted = self.do(self.scheduler.schedule(self.now_s))
        while until_s is not None and self.scheduler.next_notice_s <= until_s:
            self.now_s = max(self.now_s, self.scheduler.next_notice_s)
            granted += self.do(self.scheduler.schedule(self.now_s))
        self.now_s = max(self.now_s, until_s or 0.0)
        self.scheduler.check()
        return granted

    def free(self, *ids: int) -> None:
        for id in ids:
            self.held.discard(id)
            self.do(self.scheduler.free_all(id, self.now_s))

    def do(self, effects: Iterable[Effect]) -> list[int]:
        granted = []
        for effect in effects:
            if isinstance(effect, Granted):
                granted.append(effect.jobid)
                self.held.add(effect.jobid)
                (part,) = effect.fit.parts
                self.ranks[effect.jobid] = part.rank
        return granted
