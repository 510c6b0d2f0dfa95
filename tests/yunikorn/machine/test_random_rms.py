"""Random resource managers, with crashes and other configurations: what is used is what is allocated, on both sides.

A manager believes what it is told and nothing else; after each step its allocations are those of the machine. Quotas
and nodes are exceeded only by facts. Each demand is made once more every now and then, and confirmed once.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.generated.share import examples

pytest.importorskip("google.protobuf")
pytest.importorskip("yaml")

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.quantities import Amounts
from fluxsched.yunikorn.bookings import Bookings
from fluxsched.yunikorn.messages import (
    ALLOCATIONS,
    APPLICATIONS,
    NODES,
    STOPPED_BY_RM,
    NodeInfo,
    PreemptionPolicy,
    UpdateConfigurationRequest,
    UserGroupInformation,
)

from .rms import Client, World, existing, resource

CONFIGS = tuple(
    f"""
partitions:
  - name: default
    preemption: {{enabled: {preemption}}}
    nodesortpolicy: {{type: {order}}}
    queues:
      - name: root
        submitacl: "*"
        queues:
          - {{name: a, resources: {{guaranteed: {{vcore: 10m}}, max: {{vcore: {most}m}}}},
              properties: {{preemption.delay: 1s}}}}
          - {{name: b, properties: {{application.sort.policy: stateaware}},
              limits: [{{limit: each, users: ["*"], maxresources: {{vcore: {most}m}}}}]}}
"""
    for preemption, order, most in (("true", "fair", 12), ("false", "binpacking", 30))
)

NAMES = st.sampled_from(["1", "2", "3"])
SMALL = st.integers(1, 9)
STEPS = st.one_of(
    st.tuples(st.just("node"), NAMES, st.integers(0, 20)),
    st.tuples(st.just("resize"), NAMES, st.integers(0, 20)),
    st.tuples(st.sampled_from(["drain", "undrain", "decommission"]), NAMES),
    st.tuples(st.just("application"), NAMES, st.sampled_from("ab"), st.sampled_from(["", "Hard", "Soft"])),
    st.tuples(st.just("remove"), NAMES),
    st.tuples(st.just("ask"), NAMES, NAMES, SMALL, st.integers(1, 3), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("gang"), st.just("2"), NAMES, SMALL, st.just(True)),
    st.tuples(st.just("gang"), st.just("2"), NAMES, SMALL, st.just(False)),
    st.tuples(st.just("gang"), NAMES, NAMES, SMALL, st.booleans()),
    st.tuples(st.just("single"), NAMES, NAMES, SMALL),
    st.tuples(st.just("single"), NAMES, NAMES, SMALL),
    st.tuples(st.just("single_gang"), NAMES, NAMES, SMALL, st.booleans()),
    st.tuples(st.just("exists"), NAMES, NAMES, SMALL, NAMES),
    st.tuples(st.just("foreign"), NAMES, SMALL, NAMES),
    st.tuples(st.just("release_key"), st.sampled_from(["", "1", "2", "3"]), NAMES),
    st.tuples(st.just("release_ask"), NAMES, NAMES),
    st.tuples(st.just("release"), st.integers(0, 9)),
    st.tuples(st.just("confirm"), st.integers(0, 9)),
    st.tuples(st.just("confirm"), st.integers(0, 9)),
    st.tuples(st.just("time"), st.sampled_from([0.5, 2.5, 40.0])),
    st.tuples(st.just("crash")),
    st.tuples(st.just("configure"), st.integers(0, 1)),
)


class Manager:
    """One resource manager: what it was told is what it knows."""

    def __init__(self, world: World, rm_id: str) -> None:
        self.client = Client(world, rm_id, CONFIGS[0])
        self.config = CONFIGS[0]
        self.nodes: dict[str, int] = {}
        self.applications: dict[str, str] = {}
        self.held: dict[str, Any] = {}
        self.demanded: set[str] = set()
        self.confirmed: set[str] = set()
        for name, queue, style in (("1", "a", ""), ("2", "b", "Hard"), ("3", "b", "")):
            self.do_node(name, 6)
            self.do_application(name, queue, style)
        self.hear()

    @property
    def bookings(self) -> Bookings:
        return self.client.machine._rms[self.client.rm_id].bookings

    # ---- steps

    def step(self, what: str, *args: Any) -> None:
        getattr(self, f"do_{what}")(*args)

    def do_node(self, name: str, amount: int) -> None:
        self.client.node(f"n{name}", amount)
        self.nodes.setdefault(name, amount)

    def do_resize(self, name: str, amount: int) -> None:
        self.client.node(f"n{name}", amount, NodeInfo.UPDATE)
        if name in self.nodes:
            self.nodes[name] = amount

    def do_drain(self, name: str) -> None:
        self.client.node(f"n{name}", action=NodeInfo.DRAIN_NODE)

    def do_undrain(self, name: str) -> None:
        self.client.node(f"n{name}", action=NodeInfo.DRAIN_TO_SCHEDULABLE)

    def do_decommission(self, name: str) -> None:
        self.client.node(f"n{name}", action=NodeInfo.DECOMISSION)
        self.nodes.pop(name, None)

    def do_application(self, name: str, queue: str, style: str) -> None:
        fields: dict[str, Any] = {"placeholderAsk": resource(6), "gangSchedulingStyle": style} if style else {}
        fields["executionTimeoutMilliSeconds"] = 20_000
        ugi = UserGroupInformation(user=name, groups=["g"])
        self.client.application(name, f"root.{queue}", ugi=ugi, **fields)
        self.applications.setdefault(name, queue)

    def do_remove(self, name: str) -> None:
        self.client.remove(name)

    def do_ask(self, name: str, key: str, amount: int, repeats: int, timeout_s: int, may_preempt: bool) -> None:
        policy = PreemptionPolicy(allowPreemptSelf=True, allowPreemptOther=may_preempt)
        self.client.ask(
            key, amount, repeats, applicationID=name, executionTimeoutMilliSeconds=timeout_s * 1000, priority=timeout_s,
            preemptionPolicy=policy,
        )  # fmt: skip

    def do_gang(self, name: str, key: str, amount: int, is_placeholder: bool) -> None:
        prefix = "p" if is_placeholder else "r"
        self.client.ask(prefix + key, amount, applicationID=name, taskGroupName="g", placeholder=is_placeholder)

    def do_single(self, name: str, key: str, amount: int) -> None:
        self.client.allocation(f"s{key}", amount, applicationID=name)

    def do_single_gang(self, name: str, key: str, amount: int, is_placeholder: bool) -> None:
        prefix = "sp" if is_placeholder else "sr"
        self.client.allocation(prefix + key, amount, applicationID=name, taskGroupName="g", placeholder=is_placeholder)

    def do_exists(self, name: str, key: str, amount: int, node: str) -> None:
        self.client.allocation(f"s{key}", amount, applicationID=name, nodeID=f"n{node}")

    def do_foreign(self, key: str, amount: int, node: str) -> None:
        foreign = {"foreign": "default"}
        self.client.allocation(f"f{key}", amount, applicationID="", nodeID=f"n{node}", allocationTags=foreign)

    def do_release_key(self, name: str, key: str) -> None:
        self.client.release(applicationID=name, allocationKey=f"s{key}" if name else f"f{key}")

    def do_release_ask(self, name: str, key: str) -> None:
        self.client.release_ask(key, applicationID=name)

    def do_release(self, at: int) -> None:
        if self.held:
            uuid = sorted(self.held)[at % len(self.held)]
            self.client.release(uuid, STOPPED_BY_RM, applicationID=self.held[uuid].applicationID)

    def do_confirm(self, at: int) -> None:
        if self.demanded:
            uuid = sorted(self.demanded)[at % len(self.demanded)]
            demand = self.bookings.held[uuid].demand
            self.client.release(uuid, demand, applicationID=self.held[uuid].applicationID)
            self.client.release(uuid, demand, applicationID=self.held[uuid].applicationID)  # a second one does nothing
            self.demanded.discard(uuid)
            self.confirmed.add(uuid)
            del self.held[uuid]

    def do_time(self, for_s: float) -> None:
        self.client.run(for_s)

    def do_configure(self, at: int) -> None:
        self.config = CONFIGS[at]
        request = UpdateConfigurationRequest(rmID=self.client.rm_id, config=self.config)
        self.client.machine.update_configuration(request, self.client.world.now_s)

    def do_crash(self) -> None:
        """It forgets nothing, registers again and sends all."""
        self.hear()
        before = self.usage()
        sizes = {uuid: dict(held.ask.resource.amounts)["vcore"] for uuid, held in self.bookings.held.items()}
        self.client = Client(self.client.world, self.client.rm_id, self.config)
        for name, queue in self.applications.items():
            self.client.application(name, f"root.{queue}", ugi=UserGroupInformation(user=name, groups=["g"]))
        self.client.run()
        for name, amount in self.nodes.items():
            mine = [
                existing(
                    uuid, sizes[uuid], applicationID=item.applicationID,
                    taskGroupName=item.taskGroupName, placeholder=item.placeholder,
                )
                for uuid, item in self.held.items() if item.nodeID == f"n{name}"
            ]  # fmt: skip
            self.client.node(f"n{name}", amount, existingAllocations=mine)
        self.demanded.clear()
        self.hear()
        assert self.usage() == before

    # ---- what it hears

    def hear(self) -> None:
        for field, item in self.client.items(APPLICATIONS):
            if field == "updated" and item.state in ("Completed", "Failed"):
                self.applications.pop(item.applicationID, None)
        for field, item in self.client.items(NODES):
            assert field in ("accepted", "rejected"), item
        for response in self.client.heard(ALLOCATIONS):
            for item in response.new:
                assert item.UUID not in self.held
                self.held[item.UUID] = item
            for item in response.released:
                if not item.UUID:
                    assert item.allocationKey.startswith("s"), "other asks end by releasedAsks"
                elif item.terminationType == STOPPED_BY_RM:
                    self.held.pop(item.UUID, None)
                    self.demanded.discard(item.UUID)
                else:
                    assert item.UUID in self.held
                    assert item.UUID not in self.confirmed
                    self.demanded.add(item.UUID)

    # ---- what holds

    def usage(self) -> tuple[Any, ...]:
        """Of nodes, applications and users; the queues of applications that are over do not count."""
        by_node, by_application = Counter[str](), Counter[str]()
        for held in self.bookings.held.values():
            amount = dict(held.ask.resource.amounts)["vcore"]
            by_node[held.node.node_id] += amount
            by_application[held.ask.application.application_id] += amount
        return by_node, by_application, self.bookings.held.keys() == self.held.keys()

    def check(self) -> None:
        bookings = self.bookings
        assert bookings.held.keys() == self.held.keys()
        assert {uuid for uuid, held in bookings.held.items() if held.demand} == self.demanded
        assert {f"n{name}" for name in self.nodes} == bookings.nodes.keys()
        assert self.applications.keys() == bookings.partitions["default"].applications.keys()
        for partition in bookings.partitions.values():
            partition.scheduler.check()
            partition.tree.check()
            for application in partition.applications.values():
                progress = application.progress
                assert progress.allocations == len(application.held)
                assert progress.pending == sum(ask.left for ask in application.asks.values())
                sums = _sum([held.ask.resource.amounts for held in application.held.values()])
                assert dict(application.account.usage) == sums
            asks = [ask for each in partition.applications.values() for ask in each.asks.values()]
            assert {jobid for ask in asks for jobid in ask.jobids} == partition.asks.keys()
            assert all(len(ask.jobids) <= ask.queued for ask in asks)
        foreign = {key: node for node in bookings.nodes.values() for key in node.foreign}
        assert foreign == bookings.foreign
        for application in bookings.partitions["default"].applications.values():
            singles = {held.ask.key: held for held in application.held.values() if held.ask.is_single}
            assert singles == application.by_key
        assert sum(len(node.held) for node in bookings.nodes.values()) == len(bookings.held) == len(bookings._by_job)

    def excess(self) -> Counter[str]:
        """By how much each node, queue and user has more than it may."""
        found = Counter[str]()
        partition = self.bookings.partitions["default"]
        for node in partition.ranks.values():
            used = _sum([held.ask.resource.amounts for held in node.held.values()])
            found[node.node_id] = used.get("vcore", 0) - dict(node.capacity).get("vcore", 0)
        for queue in partition.tree.root.walk():
            for kind, bound in queue.settings.maximum:
                found[queue.path] = queue.used.get(kind, 0) - bound
            for meter in queue.meters.values():
                for kind, bound in meter.bounds.items():
                    found[f"{queue.path} {meter.name}"] = meter.used.get(kind, 0) - bound
        return Counter({name: amount for name, amount in found.items() if amount > 0})


def _sum(parts: list[Amounts]) -> dict[str, int]:
    found = Counter[str]()
    for part in parts:
        found.update(dict(part))
    return dict(found)


@given(st.lists(st.tuples(st.integers(0, 1), STEPS), min_size=15, max_size=30))
@settings(max_examples=examples(30), deadline=None)
def test_what_is_used_is_what_is_allocated(steps: list[tuple[int, tuple[Any, ...]]]) -> None:
    world = World()
    managers = [Manager(world, name) for name in ("one", "two")]
    for who, (what, *args) in steps:
        before = [manager.excess() for manager in managers]
        managers[who].step(what, *args)
        for manager, had in zip(managers, before, strict=True):
            manager.hear()
            manager.check()
            if what not in ("crash", "configure", "resize", "single", "single_gang", "exists", "foreign"):
                assert manager.excess() <= had
