"""The rows of a resource manager's tables.

Law: an ask never changes but for what is pending of it: another with its key is another row, and allocations keep the
row for which they were made.
"""

from __future__ import annotations

import re
from copy import copy
from typing import Final

from fluxsched.adapters.si.config.settings import PartitionSettings
from fluxsched.adapters.si.machine.applications import ApplicationProgress
from fluxsched.adapters.si.machine.tables.quantities import KnownResource
from fluxsched.adapters.si.messages import Allocation
from fluxsched.core.amounts import Amounts, less, total
from fluxsched.core.request import Request
from fluxsched.core.rfields import PROPERTY_ILLEGAL
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.policies.tree import Tree
from fluxsched.sched.quotas.queue import PLAIN, Application
from fluxsched.sched.quotas.tree import QueueTree

PRIORITY_ZERO: Final = (1 << 31) + 1
"""Added to an ask's priority: a job's is not negative, and 0 would hold it."""

HEADS_MAX = 16
"""Sizes of allocations of which one application remembers the bytes."""

READY: Final = "ready"
"""The attribute of nodes that is `false` while nothing may be placed there."""

HOSTNAME: Final = "si/hostname"
NODE_PARTITION: Final = "si/node-partition"
NO_PROPERTIES: Final = frozenset((READY, HOSTNAME, "si/local-images"))
"""Attributes of nodes that are no properties."""

_NO_HOST: Final = re.compile(r"[^!-+\--Z\\^-~]")


class Partition:
    """A scheduler with its tree of queues.

    `asks` are those that are queued, by job id; by their required node `required` are those of them that have one, and
    `absent` those that wait for it to come. `is_cut` means that the last pass was not finished, or that another one is
    due.
    """

    __slots__ = (
        "absent", "applications", "asks", "is_cut", "name", "policy", "ranks", "required", "scheduler", "settings",
        "tree",
    )  # fmt: skip

    def __init__(self, settings: PartitionSettings, tree: QueueTree, policy: Tree, scheduler: Scheduler) -> None:
        self.name = settings.name
        self.settings = settings
        self.tree = tree
        self.policy = policy
        self.scheduler = scheduler
        self.applications: dict[str, ApplicationEntry] = {}
        self.asks: dict[int, AskEntry] = {}
        self.absent: dict[str, list[AskEntry]] = {}
        self.required: dict[str, dict[tuple[str, str], AskEntry]] = {}
        self.ranks: dict[int, NodeEntry] = {}
        self.is_cut = False

    def no_longer_requires(self, ask: AskEntry) -> None:
        """An ask with a required node is not queued any more."""
        asks = self.required.get(ask.required_node, {})
        asks.pop((ask.key, ask.application.application_id), None)
        if not asks:
            self.required.pop(ask.required_node, None)


class NodeEntry:
    """`held` are its allocations by job id; `foreign` is what other schedulers have placed there, by key, which counts
    beside what the node itself is said to have `occupied`.
    """

    __slots__ = (
        "attributes", "foreign", "held", "is_draining", "node_id", "occupied", "partition", "rank", "schedulable",
    )  # fmt: skip

    def __init__(self, node_id: str, rank: int, partition: Partition) -> None:
        self.node_id = node_id
        self.rank = rank
        self.partition = partition
        self.schedulable: Amounts = ()
        self.occupied: Amounts = ()
        self.foreign: dict[str, Amounts] = {}
        self.attributes: dict[str, str] = {}
        self.is_draining = False
        self.held: dict[int, HeldAllocation] = {}

    @property
    def is_up(self) -> bool:
        """Return whether anything may be placed on the node."""
        return not self.is_draining and self.attributes.get(READY) != "false"

    @property
    def host(self) -> str:
        """The name of its host, as a list of hosts can have it."""
        return _NO_HOST.sub("-", self.attributes.get(HOSTNAME) or self.node_id)

    @property
    def properties(self) -> frozenset[str]:
        """`KEY=VALUE` of its attributes but for those that mean something else, and texts that no property can be."""
        pairs = [f"{key}={value}" for key, value in self.attributes.items() if key not in NO_PROPERTIES]
        return frozenset([pair for pair in pairs if PROPERTY_ILLEGAL.isdisjoint(pair)])

    @property
    def others_use(self) -> Amounts:
        """Return the amounts of the node that others than this scheduler use."""
        found = self.occupied
        for amounts in self.foreign.values():
            found = total(found, amounts)
        return found

    @property
    def capacity(self) -> Amounts:
        """Return the amounts for allocations, held or free."""
        return less(self.schedulable, self.others_use)


class ApplicationEntry:
    """`account` is where its usage is booked, `progress` its state; `asks` are those of which something is pending or
    being replaced, by key, `held` its allocations by UUID, `by_key` those that were asked for, or reported, as an
    Allocation each. It has a timer at `wake_s`, if that is not 0.0.
    """

    __slots__ = ("_heads", "account", "application_id", "asks", "by_key", "held", "partition", "progress", "wake_s")

    def __init__(
        self, application_id: str, partition: Partition, account: Application, progress: ApplicationProgress
    ) -> None:
        self.application_id = application_id
        self.partition = partition
        self.account = account
        self.progress = progress
        self.asks: dict[str, AskEntry] = {}
        self.held: dict[str, HeldAllocation] = {}
        self.by_key: dict[str, HeldAllocation] = {}
        self.wake_s = 0.0
        self._heads: dict[bytes, bytes] = {}

    def head(self, resource: KnownResource) -> bytes:
        """Return the common part of all allocations of so much to the application, as the bytes of an Allocation."""
        found = self._heads.get(resource.text)
        if found is None:
            common = Allocation(
                resourcePerAlloc=resource.message, applicationID=self.application_id, partitionName=self.partition.name
            )
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            found = self._heads[resource.text] = common.SerializeToString()
        return found


class AskEntry:
    """`left` repeats are pending, of which `queued` are for the queue: the next waits there, and those before it for
    which nodes are kept, as `jobids`. The others wait for placeholders. `replacing` placeholders are being replaced by
    it. `t_s` orders it, `created_s` is what its resource manager says, 0.0 if nothing. `tags` is None without any;
    `told` the container state that was told last, `told_s` when; `head` are the first bytes of its allocations. One
    that `is_single` was asked for as an Allocation: at most one has its key.
    """

    __slots__ = (
        "application", "created_s", "head", "is_placeholder", "is_single", "jobids", "key", "left", "options",
        "priority", "queued", "replacing", "request", "required_node", "resource", "t_s", "tags", "task_group",
        "timeout_s", "told", "told_s",
    )  # fmt: skip

    def __init__(
        self, application: ApplicationEntry, key: str, resource: KnownResource, request: Request, t_s: float
    ) -> None:
        self.application = application
        self.key = key
        self.resource = resource
        self.request = request
        self.t_s = t_s
        self.head = application.head(resource)
        self.created_s = 0.0
        self.priority = 0
        self.tags: dict[str, str] | None = None
        self.task_group = ""
        self.is_placeholder = False
        self.is_single = False
        self.required_node = ""
        self.timeout_s = 0.0
        self.options = PLAIN
        self.left = 0
        self.queued = 0
        self.replacing = 0
        self.jobids: tuple[int, ...] = ()
        self.told = 0, ""
        self.told_s = 0.0

    def of_size(self, resource: KnownResource) -> AskEntry:
        """Return the same ask for another size, in a row of its own."""
        found = copy(self)
        found.resource, found.head = resource, self.application.head(resource)
        found.request = resource.request(self.request.constraint)
        return found


class HeldAllocation:
    """`demand` is the TerminationType with which its release is demanded, 0 while it is not; so is said again at
    `repeat_s`, with `message`.
    """

    __slots__ = ("ask", "demand", "jobid", "message", "node", "repeat_s", "uuid")

    def __init__(self, uuid: str, jobid: int, ask: AskEntry, node: NodeEntry) -> None:
        self.uuid = uuid
        self.jobid = jobid
        self.ask = ask
        self.node = node
        self.demand = 0
        self.message = ""
        self.repeat_s = 0.0
