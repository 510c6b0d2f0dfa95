"""Gangs through real messages, on virtual time: a resource manager that does what it likes, and what must hold then."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.generated.share import examples

pytest.importorskip("google.protobuf")
pytest.importorskip("yaml")

from fluxsched.yunikorn.messages import PLACEHOLDER_REPLACED, STOPPED_BY_RM, TIMEOUT, NodeInfo

from .rms import Client, resource

ENDED = ("Completed", "Failed")
APPS = st.sampled_from(["app0", "app1"])


class GangsInTheMachine(RuleBasedStateMachine):
    """Two applications on up to three nodes. The model has what the manager was told: allocations by UUID."""

    def __init__(self) -> None:
        super().__init__()
        self.rm = Client()
        self.nodes: set[str] = set()
        self.held: dict[str, Any] = {}  # the `new` of each UUID that is not known to have gone
        self.demands: dict[str, int] = {}
        self.ends: Counter[str] = Counter()
        self.states: dict[str, str] = {}
        self.asked: Counter[tuple[str, str]] = Counter()  # repeats of real asks, by application and key
        self.allocated: Counter[tuple[str, str]] = Counter()
        self.keys = 0

    @initialize(styles=st.tuples(*[st.sampled_from(["Hard", "Soft"])] * 2))
    def begin(self, styles: tuple[str, str]) -> None:
        self.add_node("n1")
        for at, style in enumerate(styles):
            self.add(f"app{at}", style)

    def add(self, app: str, style: str) -> None:
        self.rm.application(
            app, gangSchedulingStyle=style, executionTimeoutMilliSeconds=20_000, placeholderAsk=resource(8)
        )
        self.states[app] = "New"
        self.listen()

    def listen(self) -> None:
        for field, item in self.rm.items("applications"):
            if field == "updated":
                self.states[item.applicationID] = item.state
        for field, item in self.rm.items("allocations"):
            match field:
                case "new":
                    assert item.UUID not in self.held
                    assert item.nodeID in self.nodes
                    self.held[item.UUID] = item
                    if not item.placeholder:
                        self.allocated[item.applicationID, item.allocationKey] += 1
                case "released" if item.terminationType == STOPPED_BY_RM:
                    self.gone(item.UUID)
                case "released":
                    assert self.demands.setdefault(item.UUID, item.terminationType) == item.terminationType
                    assert self.held[item.UUID].placeholder or item.terminationType == TIMEOUT
                case "rejected":
                    assert self.states[item.applicationID] in ("Failing", *ENDED), item.reason

    def gone(self, uuid: str) -> None:
        del self.held[uuid]
        self.demands.pop(uuid, None)
        self.ends[uuid] += 1

    def add_node(self, node_id: str) -> None:
        self.nodes.add(node_id)
        self.rm.node(node_id, 10)

    def new_key(self) -> str:
        self.keys += 1
        return f"k{self.keys}"

    @rule(node_id=st.sampled_from(["n1", "n2", "n3"]))
    def toggle_node(self, node_id: str) -> None:
        if node_id in self.nodes:
            self.rm.node(node_id, action=NodeInfo.DECOMISSION)
            self.listen()
            self.nodes.remove(node_id)
        else:
            self.add_node(node_id)
            self.listen()

    @rule(app=APPS, size=st.integers(3, 6), repeats=st.integers(1, 2))
    def ask_placeholders(self, app: str, size: int, repeats: int) -> None:
        self.rm.ask(self.new_key(), size, repeats, applicationID=app, taskGroupName="g", placeholder=True)
        self.listen()

    @rule(app=APPS, size=st.integers(2, 5), repeats=st.integers(1, 3), group=st.sampled_from("ggg-"))
    def ask(self, app: str, size: int, repeats: int, group: str) -> None:
        key = self.new_key()
        self.asked[app, key] = repeats
        self.rm.ask(key, size, repeats, applicationID=app, taskGroupName=group.strip("-"))
        self.listen()

    @rule(app=APPS, data=st.data())
    def release_ask(self, app: str, data: st.DataObject) -> None:
        keys = [f"k{at}" for at in range(1, self.keys + 1)]
        if keys:
            self.rm.release_ask(data.draw(st.sampled_from(keys)), applicationID=app)
            self.listen()

    @rule(data=st.data(), is_stopped=st.booleans())
    def end(self, data: st.DataObject, is_stopped: bool) -> None:
        """A demand is confirmed, or an allocation is stopped, whatever was demanded."""
        uuids = sorted(self.held if is_stopped else self.demands)
        if not uuids:
            return
        uuid = data.draw(st.sampled_from(uuids))
        item = self.held[uuid]
        if is_stopped:
            self.rm.release(uuid, STOPPED_BY_RM, applicationID=item.applicationID)
            self.listen()
        else:
            self.rm.release(uuid, self.demands[uuid], applicationID=item.applicationID)
            self.gone(uuid)
            self.listen()

    @rule(delay_s=st.sampled_from([1.0, 12.0, 40.0]))
    def wait(self, delay_s: float) -> None:
        self.rm.run(delay_s)
        self.listen()

    @rule(app=APPS, size=st.integers(1, 4))
    def gang(self, app: str, size: int) -> None:
        """Two placeholders, and a task for each."""
        self.rm.ask(self.new_key(), 4, 2, applicationID=app, taskGroupName="g", placeholder=True)
        self.listen()
        self.ask(app, size, 2, "g")

    @rule()
    def confirm_all(self) -> None:
        for uuid, type in list(self.demands.items()):
            self.rm.release(uuid, type, applicationID=self.held[uuid].applicationID)
            self.gone(uuid)
        self.listen()

    @rule(app=APPS, style=st.sampled_from(["Hard", "Soft"]), is_sure=st.sampled_from([True, False, False, False]))
    def remove(self, app: str, style: str, is_sure: bool) -> None:
        if self.states[app] in ENDED:
            self.add(app, style)
        elif is_sure:
            self.rm.remove(app)
            self.listen()

    @invariant()
    def what_is_used_is_what_is_held(self) -> None:
        on_nodes: Counter[str] = Counter()
        of_applications: Counter[str] = Counter()
        for item in self.held.values():
            amount = item.resourcePerAlloc.resources["vcore"].value
            on_nodes[item.nodeID] += amount
            of_applications[item.applicationID] += amount
        dump = self.rm.dump()
        assert {uuid for node in dump["nodes"] for uuid in node["allocations"]} == self.held.keys()
        for each in dump["applications"]:
            assert each["used"].get("vcore", 0) == of_applications[each["applicationID"]]
        assert self.rm.used().get("vcore", 0) == on_nodes.total()
        assert max(on_nodes.values(), default=0) <= 10

    @invariant()
    def each_ends_once_and_no_ask_gets_more_than_it_wants(self) -> None:
        assert set(self.ends.values()) <= {1}
        assert self.allocated <= self.asked

    @invariant()
    def nothing_is_left_of_an_application_that_has_ended(self) -> None:
        for item in self.held.values():
            assert self.states[item.applicationID] not in ENDED
            assert self.states[item.applicationID] != "Failing" or item.UUID in self.demands

    def teardown(self) -> None:
        """Once all that is demanded is confirmed and time has passed, no application is left half-way."""
        for _ in range(3):
            self.rm.run(25.0)
            self.listen()
            self.confirm_all()
        assert not self.demands
        assert not {"Failing", "Resuming"} & set(self.states.values())


TestGangsInTheMachine = GangsInTheMachine.TestCase
TestGangsInTheMachine.settings = settings(max_examples=examples(30), stateful_step_count=25, deadline=None)


def test_placeholders_replaced_by_real_tasks_in_a_whole_life() -> None:
    rm = Client().node("n1", 10).application(placeholderAsk=resource(8), gangSchedulingStyle="Hard")
    rm.ask("p", 4, 2, taskGroupName="g", placeholder=True).new()
    rm.ask("t", 3, 2, taskGroupName="g")
    demanded = [uuid for _, uuid, _ in rm.allocation_items()]
    for uuid in demanded:
        rm.release(uuid, PLACEHOLDER_REPLACED)
    real = rm.new()
    assert [(item.allocationKey, item.placeholder) for item in real] == [("t", False)] * 2
    assert rm.used() == {"vcore": 6}
    for item in real:
        rm.release(item.UUID, STOPPED_BY_RM)
    rm.run(31.0)
    states = [state for field, _, state in rm.application_items() if field == "updated"]
    assert states == ["Accepted", "Starting", "Running", "Completing", "Completed"]
